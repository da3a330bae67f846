//! Speculative decoding in the whole engine: it never changes a text, and it
//! accepts what the reference accepts.
//!
//! [`matrix`] takes every algorithm through an orthogonal array of settings and,
//! on request, through their whole product; [`lengths`] compares the accepted
//! drafts of every round with those of the reference implementation; [`depth`]
//! changes how much is drafted while requests run, and [`adaptive`] lets the ranks
//! agree on it by a policy, [`data_parallel`] also where DP ranks have requests of
//! their own, and [`cuda`] where those compute on GPUs; [`pauses`] has steps that draft nothing; [`modes`] is
//! about the other ways to verify; [`soak`] runs for as long as it is told to.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adaptive;
mod cuda;
mod data_parallel;
mod depth;
mod goldens;
mod lengths;
mod load;
mod matrix;
mod modes;
mod oracle;
mod pauses;
mod policies;
mod requests;
mod setup;
mod soak;
