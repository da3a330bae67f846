//! Speculative decoding: who drafts, what a draft is, and how it is verified.
//!
//! A [`Drafter`] proposes tokens for running requests; the worker runs the
//! target over all of them in one ragged extend, verifies, and tells the
//! drafter what was accepted. Drafters run on rank 0 alone, as a group of their
//! own; the other ranks get the drafted tokens by broadcast, so nothing of a
//! drafter has to be equal anywhere.

#![forbid(unsafe_code)]

mod drafter;
mod drafts;
mod error;
mod registry;
mod tree;
mod verify;

pub use drafter::{Device, DraftRow, Drafter, ExtendRow, PageTable, Requests, batch_row};
pub use drafts::{Drafts, Node};
pub use error::DraftError;
pub use registry::{Build, Drafting, Registry};
pub use tree::{Expanded, TreeGrower, TreeShape, push_depths, push_masks};
pub use verify::{Verified, Verifier, VerifyRow};
