//! Token sampling with a counter-based generator.
//!
//! A token depends only on its logits, the request's parameters and history, and the pair
//! (seed, output position), never on slot, step, batch or rank. For speculation there are also
//! the distribution itself, the rest that rejected drafts leave of it, and the drawing of
//! drafts.

#![forbid(unsafe_code)]

mod candidates;
mod constraint;
mod draft;
mod error;
mod exp;
mod history;
mod inverse;
mod logprob;
mod mass;
mod normalizer;
mod philox;
mod residual;
mod sampler;

pub use constraint::{TokenConstraint, allows};
pub use draft::{DraftKey, DraftSampler};
pub use error::SamplingError;
pub use history::TokenHistory;
pub use inverse::{inverse_cdf, total};
pub use logprob::{log_normalizer, token_logprob};
pub use mass::MassScale;
pub use normalizer::log_mass;
pub use philox::{Stream, philox4x32_10, uniform, uniform_bits};
pub use residual::subtract;
pub use sampler::{Request, Sampler};
