//! Speculative decoding: drafters, drafts, and their verification.
//!
//! A [`Drafter`] proposes tokens for running requests. The worker runs the target over all of
//! them in one ragged extend, verifies them, and tells the drafter which were accepted.
//! Drafters run only on the lead of a DP rank, as a group of their own. The other ranks get the
//! drafted tokens by broadcast, so that nothing of a drafter has to be equal on several ranks.

#![forbid(unsafe_code)]

mod builtin;
mod chains;
mod choose;
pub mod conformance;
mod corpora;
mod dflash;
mod drafter;
mod drafts;
mod eagle;
mod error;
mod jump_forward;
mod missed;
mod ngram;
mod own_depth;
mod page_table;
mod pass;
mod propose;
mod registry;
mod span;
mod standalone;
mod tree;
mod verify;

pub use builtin::{DFLASH, EAGLE, EAGLE3, NEXTN, STANDALONE, WithModel};
pub use chains::ChainPass;
pub use corpora::{Corpora, CorporaView, CorpusError, CorpusIndex, MAX_CORPORA, MAX_CORPUS_TOKENS};
pub use dflash::DflashDrafter;
pub use drafter::{CommandHandler, Device, DraftRow, Drafter, DraftsOnDevice, ExtendRow, Requests};
pub use drafts::{Drafts, Node, depth, is_chain};
pub use eagle::EagleDrafter;
pub use error::DraftError;
pub use jump_forward::JumpForward;
pub use ngram::{Ngram, Trie};
pub use own_depth::OwnDepths;
pub use page_table::PageTable;
pub use pass::Pass;
pub use registry::{Build, DrafterFactory, DrafterRegistry};
pub use standalone::StandaloneDrafter;
pub use tree::{Drawing, Expanded, TreeGrower, TreeShape, push_depths, push_masks};
pub use verify::{Verified, Verifier, VerifyRow, forbidden};
