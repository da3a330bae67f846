//! The repository's rules as code: checks that clippy cannot make.
//!
//! [`check`] looks at every text file of the repository and returns its findings, one
//! for each place. The crate's own tests run it over the repository, so `cargo test`
//! fails when a rule is broken.

#![forbid(unsafe_code)]

mod documents;
mod floors;
mod modules;
mod promises;
mod rust;
mod text;
mod tree;
mod workspace;

pub use tree::{Finding, Tree};

/// Returns all findings in `tree`, sorted by place.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Finding> {
    let checks = [
        text::check,
        rust::check,
        workspace::check,
        floors::check,
        modules::check,
        promises::check,
        documents::check,
    ];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(tree)).collect();
    findings.sort();
    findings
}
