//! Operations that models ask of a device, on a GPU. Started by cargo, the tests run on the
//! fake GPU; started by hand, on the machine's own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod alone;
mod attend;
mod chains;
mod choose;
mod draft_broadcast;
mod drafts;
mod endings;
mod errors;
mod exchanged;
mod experts;
mod faults;
mod hangs;
mod latent;
mod memory;
mod nccl;
mod notes;
mod passes;
mod planned;
mod ranks;
mod rows;
mod selected;
mod stalls;
mod support;
mod table;
mod weights;
