//! Checks that dependencies between sibling modules go one way.
//!
//! A module may use everything that its parent shares with all its parts, as Rust's
//! modules are meant. But if two parts of one module need each other, a reader must
//! read both together.

mod circles;
mod names;

use std::collections::BTreeMap;

use crate::{Finding, Tree, workspace};
use names::{Crate, Path};

/// Known circles that stay: the folder of the crate, the modules sorted by name, and
/// the reason.
const KNOWN: [(&str, &[&str], &str); 9] = [
    (
        "config",
        &["memory", "resolve"],
        "sizing hands back a resolved value with its warnings, as resolving does",
    ),
    (
        "process",
        &["link", "role"],
        "a role begins by taking its link, whose messages name the role",
    ),
    (
        "scheduler/planner",
        &["kv", "request"],
        "a request's state holds its part of the cache, which the cache alone opens",
    ),
    (
        "tp-worker/backend",
        &["backend", "composed"],
        "an operation that is made of others, unless a device has a faster way, asks for those",
    ),
    (
        "tp-worker/backend-cpu",
        &["formats", "gemm", "number"],
        "the shapes of panels are the product's, which reads what is packed",
    ),
    (
        "tp-worker/backend-cpu",
        &[
            "gemm::amx",
            "gemm::amx_emulated",
            "gemm::avx2",
            "gemm::avx512",
            "gemm::avx512_bf16",
            "gemm::neon",
            "gemm::scalar",
            "gemm::tiles",
        ],
        "a table of tiles names each instruction set's, which are of its types",
    ),
    (
        "tp-worker/backend-cpu",
        &["partition", "pool"],
        "the pool cuts jobs by the shares that it runs",
    ),
    (
        "tp-worker/backend-cpu",
        &[
            "roofline::amx",
            "roofline::avx2",
            "roofline::avx512",
            "roofline::neon",
            "roofline::peak",
            "roofline::scalar",
        ],
        "a table of loops names each instruction set's, which are of its types",
    ),
    (
        "tp-worker/speculation",
        &["drafter", "drafts"],
        "what a drafter is asked for is what its drafts are cut to",
    ),
];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    // The check `workspace` reports errors in the manifests.
    let members = workspace::members(tree).unwrap_or_default();
    let mut findings = Vec::new();
    let mut found = Vec::new();
    for member in &members {
        for circle in of_crate(&Crate::read(tree, member)) {
            if let Some(known) = KNOWN.iter().position(|(folder, modules, _)| {
                folder == member && circle.iter().eq(modules.iter())
            }) {
                found.push(known);
                continue;
            }
            let message = format!(
                "`{}` need each other in a circle: move what they share down, or list \
                 them with the reason in xtask/src/modules.rs",
                circle.join("`, `")
            );
            findings.push(Finding::new(&format!("{member}/src"), 0, message));
        }
    }
    let gone = KNOWN.iter().enumerate();
    let gone = gone.filter(|(at, (folder, ..))| {
        members.iter().any(|member| member == folder) && !found.contains(at)
    });
    findings.extend(gone.map(|(_, (folder, modules, _))| {
        let message = format!(
            "lists a circle of `{}` in `{folder}`, which is none",
            modules.join("`, `")
        );
        Finding::new("xtask/src/modules.rs", 0, message)
    }));
    findings
}

/// Returns the circles among parts of one module, each as the sorted paths of its
/// parts.
fn of_crate(source: &Crate) -> Vec<Vec<String>> {
    let mut knows: BTreeMap<Path, circles::Graph> = BTreeMap::new();
    for (from, to) in source.references() {
        let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        // A module and its ancestor are not siblings.
        if shared < from.len() && shared < to.len() {
            let parent = knows.entry(from[..shared].to_vec()).or_default();
            let [from, to] = [from, to].map(|path| path[..=shared].join("::"));
            parent.entry(from).or_default().insert(to);
        }
    }
    knows.values().flat_map(circles::circles).collect()
}

#[cfg(test)]
mod tests;
