//! The messages between Lockstep's processes.
//!
//! [`pb`] holds the wire types generated from `protos/`; [`sampling`] and
//! [`step`] are the plain Rust types that planner and workers compute with.
//! Conversions between the two live here and nowhere else, so that no other
//! crate ever has to ask what an absent proto3 field means.

#![forbid(unsafe_code)]

pub mod error;
pub mod limits;
pub mod pb;
pub mod request;
pub mod sampling;
pub mod step;

pub use error::WireError;
