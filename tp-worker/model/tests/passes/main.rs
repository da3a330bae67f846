//! Passes and their weights, besides the logits, which the goldens check. They are one program,
//! since compiling the runner takes longer than its tests.
//!
//! - [`forward`] has the promises of a pass, [`data_parallel`] those of several DP ranks.
//! - [`tail`] has last layers that run over wanted tokens alone.
//! - [`packed`] has weights that are packed once, [`exchange`] those that are read while the
//!   server runs.
//! - [`adapters`] has adapters that come and go, and those that are refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/loader.rs"]
mod loader;
#[path = "../support/naive.rs"]
mod naive;
#[path = "../support/pass.rs"]
mod pass;
#[path = "../support/ranks.rs"]
mod ranks;

mod adapters;
mod data_parallel;
mod exchange;
mod forward;
mod packed;
mod tail;
