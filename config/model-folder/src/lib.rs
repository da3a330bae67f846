//! Description of a model's folder, of a draft's, or of an adapter's: Hugging Face's `config.json`, the
//! tokenizer's end token, and the tensors beside them.

#![forbid(unsafe_code)]

pub mod adapter;
mod checkpoint;
pub mod draft;
mod families;
mod head;
mod model;
mod numbers;
mod raw;
mod scales;
mod tokenizer;

pub use families::served;
pub use model::{Described, load};

#[cfg(test)]
mod testing;
