//! The messages between Lockstep's processes.
//!
//! [`pb`] holds the wire types generated from `protos/`. The plain data that planner and
//! workers compute with is in `lockstep-types`. Conversions between the two live here and
//! nowhere else. So no other crate has to ask about the meaning of an absent proto3 field.

#![forbid(unsafe_code)]

pub mod limits;
pub mod pb;

mod adapter;
mod codec;
mod constraint;
mod drafter;
mod error;
mod generation;
mod load;
mod mirror;
mod parts;
mod request;
mod sampling;
mod step;

pub use error::WireError;
pub use load::Waiting;
pub use request::{output, status, submit};
