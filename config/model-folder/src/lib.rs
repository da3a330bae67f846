//! What the folder of a model, or of what drafts for it, says of itself:
//! Hugging Face's `config.json` and the names of the tensors beside it.

#![forbid(unsafe_code)]

pub mod draft;
mod model;
mod raw;

pub use model::{load, load_for};

#[cfg(test)]
mod testing;
