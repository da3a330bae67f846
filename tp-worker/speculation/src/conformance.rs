//! The rules for every algorithm, checked from outside.
//!
//! [`answers`] checks an algorithm's description of itself. [`watch`] puts a guard around every
//! drafter of a registry. The guard checks each draft before it is verified. The worker's crate
//! has a battery that drives a real worker with guards, and compares texts.

mod guard;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use lockstep_backend::Backend;
use lockstep_types::{Algorithm, DraftKv, ModelConfig};

use crate::{DrafterRegistry, Drafts};

/// Returns the contradictions in an algorithm's answers, one sentence each. `draft` is a folder
/// that the algorithm can draft with, if it needs one.
pub fn answers(
    algorithm: &dyn Algorithm,
    target: &ModelConfig,
    draft: Option<&Path>,
) -> Vec<String> {
    let capabilities = algorithm.capabilities();
    let shape = algorithm.default_shape();
    let name = algorithm.name();
    let mut wrong = Vec::new();
    let mut rule = |holds: bool, rule: &str| {
        if !holds {
            wrong.push(format!("{name}: {rule}"));
        }
    };
    let named = !name.is_empty() && name == name.to_ascii_uppercase();
    rule(named, "a name is in capitals");
    rule(!algorithm.summary().is_empty(), "a summary says something");
    rule(shape.num_steps >= 1, "the default shape has a step");
    if shape.topk == 1 {
        let chain = shape.num_draft_tokens == shape.num_steps + 1;
        rule(
            chain,
            "a default chain has a token per step and the last known one",
        );
    } else {
        let tree = capabilities.supports_tree;
        rule(tree, "a default shape with branches needs supports_tree");
    }
    let model = capabilities.needs_draft_model;
    let keeps = capabilities.draft_kv != DraftKv::None;
    rule(model || !keeps, "draft keys and values need a draft model");
    let passes = capabilities.supports_target_verify_for_draft;
    rule(
        model || !passes,
        "passes of the draft model need a draft model",
    );
    for tokens in 2..=64 {
        let verified = algorithm.tokens_per_request_for_verify(tokens, false);
        rule(verified >= tokens, "the target verifies all drafted tokens");
        let drafted = algorithm.tokens_per_request_for_verify(tokens, true);
        let own = passes || drafted == tokens;
        rule(
            own,
            "a width of its own on the draft model needs supports_target_verify_for_draft",
        );
    }
    let none = algorithm.load_draft(None, target);
    if capabilities.draft_in_target {
        rule(model, "a draft in the target's folder is a draft model");
        rule(
            matches!(none, Ok(Some(_))),
            "the draft of the battery's target can be loaded",
        );
    } else if model {
        rule(
            none.is_err(),
            "without a folder, a draft model can't be loaded",
        );
        let loaded = draft.map(|path| algorithm.load_draft(Some(path), target));
        let loaded = matches!(loaded, Some(Ok(Some(_))));
        rule(loaded, "the draft model of the battery can be loaded");
    } else {
        rule(
            !matches!(none, Ok(Some(_))),
            "without needs_draft_model nothing is loaded",
        );
    }
    wrong.dedup();
    wrong
}

/// Returns the algorithms of `registry`, each with a guard, and the findings of the guards.
///
/// A drafter that breaks a rule fails with [`crate::DraftError::Rules`], so that no later code
/// has to handle its drafts.
pub fn watch<B: Backend + 'static>(
    registry: &DrafterRegistry<B>,
) -> (DrafterRegistry<B>, Findings) {
    let findings = Findings::default();
    let watched = registry.map(|algorithm| {
        let findings = findings.clone();
        Arc::new(guard::Guarded::new(algorithm, findings))
    });
    (watched, findings)
}

/// Findings of the guards. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Findings(Arc<Mutex<Seen>>);

/// A guard's access to the findings.
#[derive(Debug)]
struct Finder {
    findings: Findings,
    /// Index of the guard among all guards.
    number: usize,
}

#[derive(Debug, Default)]
struct Seen {
    drafted: usize,
    branched: usize,
    /// Digests by drafter, since drafters of several ranks draft at the same time.
    all: Vec<DefaultHasher>,
}

impl Findings {
    /// Returns the number of tokens that were drafted.
    pub fn drafted(&self) -> usize {
        self.seen(|seen| seen.drafted)
    }

    /// Returns the number of rows that were not chains.
    pub fn branched(&self) -> usize {
        self.seen(|seen| seen.branched)
    }

    /// Returns a digest of the drafts of all drafters. It does not depend on the order in which
    /// the drafters were built.
    pub fn digest(&self) -> u64 {
        self.seen(|seen| {
            let digests = seen.all.iter().map(Hasher::finish);
            digests.fold(0, u64::wrapping_add)
        })
    }

    /// Returns the access for another guard.
    fn finder(&self) -> Finder {
        let number = self.seen(|seen| {
            seen.all.push(DefaultHasher::new());
            seen.all.len() - 1
        });
        let findings = self.clone();
        Finder { findings, number }
    }

    fn seen<T>(&self, f: impl FnOnce(&mut Seen) -> T) -> T {
        // The counts stay valid even if a holder of the lock has panicked.
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Finder {
    fn take(&self, drafts: &Drafts) {
        self.findings.seen(|seen| {
            let own = &mut seen.all[self.number];
            for row in 0..drafts.rows() {
                let nodes = drafts.nodes(row);
                seen.drafted += nodes.len();
                seen.branched += usize::from(!drafts.is_chain(row));
                nodes.len().hash(own);
                for node in nodes {
                    (node.token, node.parent).hash(own);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests;
