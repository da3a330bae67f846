//! Drafting by EAGLE heads and small models.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/groups.rs"]
mod groups;
#[path = "../support/head.rs"]
mod head;
#[path = "../support/naive.rs"]
mod naive;
#[path = "../support/pass.rs"]
mod pass;

mod capture;
mod dflash;
mod goldens;
mod gpt_oss;
mod moved;
mod nextn;
mod oracle;
mod refusals;
mod support;
mod trees;
