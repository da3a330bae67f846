//! Speculative decoding in the whole engine: it never changes a text, and it accepts the
//! same drafts as the reference.
//!
//! - [`matrix`] tests every algorithm in an orthogonal array of settings and, on request, in
//!   their whole product.
//! - [`lengths`] compares the accepted drafts of every round with the reference
//!   implementation's.
//! - [`depth`] changes the depth of drafts while requests run.
//! - [`adaptive`] lets the ranks agree on the depth by a policy.
//! - [`data_parallel`] does so with DP ranks, which have requests of their own, and [`cuda`]
//!   does so on GPUs.
//! - [`dflash`] has the settings of [`matrix`] and [`adaptive`] for DFLASH, which drafts no trees.
//! - [`two_caches`] has a model with two groups of layers.
//! - [`windows`] has a model with sliding windows in some layers, [`experts`] one with mixtures of
//!   experts, and [`gpt_oss`] one with both, and with sinks. [`mechanisms`] has every drafter on
//!   each of them. [`latent`] has one with latent attention.
//! - [`hybrid`] has a model with recurrent layers.
//! - [`conversations`] asks in turns, and compares the bits of recurrent states with those of plain
//!   decoding. [`recurrent_matrix`] does so in many settings, [`field_bugs`] where other
//!   engines had bugs, and [`state_search`] at random.
//! - [`gemma4`] has a model with shared caches, embeddings of each layer, and experts beside MLPs.
//! - [`pauses`] has steps that draft nothing.
//! - [`constraints`] checks constrained outputs; the random requests of all others have some, too.
//! - [`budgets`] limits the reasoning before outputs.
//! - [`forced`] drafts text that constraints force.
//! - [`modes`] tests the other ways to verify.
//! - [`adapters`] has requests with several adapters in one batch.
//! - [`soak`] runs for as long as it is told to.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adapters;
mod adaptive;
mod budgets;
mod constraints;
mod conversations;
mod cuda;
mod data_parallel;
mod depth;
mod dflash;
mod experts;
mod field_bugs;
mod forced;
mod gemma4;
mod goldens;
mod gpt_oss;
mod hybrid;
mod latent;
mod lengths;
mod load;
mod matrix;
mod mechanisms;
mod modes;
mod oracle;
mod pauses;
mod policies;
mod recurrent_matrix;
mod requests;
mod setup;
mod soak;
mod state_search;
mod two_caches;
mod windows;
