//! The whole engine, planner and CPU ranks, against goldens of transformers
//! and against itself.
//!
//! [`matrix`] covers tensor parallelism × page size × chunk size and the rest by an
//! orthogonal array. Each of the other modules tests one more property.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod architectures;
mod goldens;
mod matrix;
mod mixes;
mod nextn;
mod params;
mod ranks;
mod reference;
mod same;
mod sampling;
mod setup;
