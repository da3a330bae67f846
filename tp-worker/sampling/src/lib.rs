//! Token sampling with a counter-based generator.
//!
//! A token depends on its logits, the request's parameters and history, and
//! the pair (seed, output position) alone: never on slot, step, batch or rank.

#![forbid(unsafe_code)]

mod candidates;
mod error;
mod exp;
mod history;
mod logprob;
mod philox;
mod sampler;

pub use error::SamplingError;
pub use history::TokenHistory;
pub use logprob::{log_normalizer, token_logprob};
pub use philox::{Stream, philox4x32_10, uniform};
pub use sampler::{Request, Sampler};
