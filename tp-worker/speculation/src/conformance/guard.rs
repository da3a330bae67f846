//! A guard between the worker and a drafter.

mod chains;

use std::{fmt, ops::Range, path::Path, sync::Arc};

use lockstep_backend::Backend;
use lockstep_model::CaptureSpec;
use lockstep_types::{
    Algorithm, Capabilities, ConfigError, DraftKv, DraftModel, DraftShape, ModelConfig, OptionSpec,
    OptionValues, SpeculationConfig,
    drafter::{CorpusCommand, DrafterCommand},
};

use super::{Finder, Findings};
use crate::{
    Build, CommandHandler, Device, DraftError, DraftRow, Drafter, DrafterFactory, Drafts,
    DraftsOnDevice, ExtendRow, depth,
};

/// An algorithm whose drafters get guards.
pub(super) struct Guarded<B: Backend> {
    algorithm: Arc<dyn DrafterFactory<B>>,
    findings: Findings,
}

// A derived implementation would demand `Debug` of the backend.
impl<B: Backend> fmt::Debug for Guarded<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.algorithm.fmt(f)
    }
}

impl<B: Backend> Guarded<B> {
    pub(super) fn new(algorithm: Arc<dyn DrafterFactory<B>>, findings: Findings) -> Self {
        Self {
            algorithm,
            findings,
        }
    }
}

impl<B: Backend> Algorithm for Guarded<B> {
    fn name(&self) -> &str {
        self.algorithm.name()
    }
    fn summary(&self) -> &str {
        self.algorithm.summary()
    }
    fn capabilities(&self) -> Capabilities {
        self.algorithm.capabilities()
    }
    fn default_shape(&self) -> DraftShape {
        self.algorithm.default_shape()
    }
    fn default_shape_with(&self, draft: &DraftModel) -> DraftShape {
        self.algorithm.default_shape_with(draft)
    }
    fn load_draft(
        &self,
        path: Option<&Path>,
        target: &ModelConfig,
    ) -> Result<Option<DraftModel>, ConfigError> {
        self.algorithm.load_draft(path, target)
    }
    fn validate(
        &self,
        speculation: &SpeculationConfig,
        target: &ModelConfig,
    ) -> Result<(), ConfigError> {
        self.algorithm.validate(speculation, target)
    }
    fn tokens_per_request_for_verify(&self, draft_tokens: usize, is_draft: bool) -> usize {
        self.algorithm
            .tokens_per_request_for_verify(draft_tokens, is_draft)
    }
    fn options(&self) -> &[OptionSpec] {
        self.algorithm.options()
    }
    fn why_others_refuse_options(&self) -> &str {
        self.algorithm.why_others_refuse_options()
    }
    fn complete_options(&self, given: &mut OptionValues) -> Result<(), ConfigError> {
        self.algorithm.complete_options(given)
    }
    fn pause_window(&self) -> usize {
        self.algorithm.pause_window()
    }
    fn memory_bytes(&self, speculation: &SpeculationConfig) -> u64 {
        self.algorithm.memory_bytes(speculation)
    }
    fn max_draft_tokens(&self, speculation: &SpeculationConfig) -> usize {
        self.algorithm.max_draft_tokens(speculation)
    }
}

impl<B: Backend + 'static> DrafterFactory<B> for Guarded<B> {
    fn build(&self, build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        let vocab = build.target.vocab_size;
        let guard = Guard {
            name: self.name().to_owned(),
            capabilities: self.capabilities(),
            drafter: self.algorithm.build(build)?,
            finder: self.findings.finder(),
            vocab,
        };
        let reads = !guard.drafter.capture().is_empty();
        if reads != guard.capabilities.carries_hidden_states {
            return guard.rules("carries_hidden_states says whether it captures any");
        }
        if takes_texts(guard.drafter.commands().as_deref()) != guard.capabilities.drafts_from_texts
        {
            return guard.rules("drafts_from_texts says whether it takes texts");
        }
        Ok(Box::new(guard))
    }
}

/// Returns true if texts can be listed. Listing changes nothing.
fn takes_texts(commands: Option<&dyn CommandHandler>) -> bool {
    let list = DrafterCommand::Corpora(CorpusCommand::List);
    commands.is_some_and(|commands| commands.handle(list).is_ok())
}

struct Guard<B: Backend> {
    name: String,
    capabilities: Capabilities,
    drafter: Box<dyn Drafter<B>>,
    finder: Finder,
    vocab: usize,
}

impl<B: Backend> Guard<B> {
    fn rules<T>(&self, reason: impl Into<String>) -> Result<T, DraftError> {
        Err(DraftError::Rules {
            algorithm: self.name.clone(),
            reason: reason.into(),
        })
    }

    /// Returns the rule that a row's draft breaks.
    fn broken(&self, row: &DraftRow, drafts: &Drafts, at: usize) -> Option<&'static str> {
        let nodes = drafts.nodes(at);
        let tree = row.topk > 1 && self.capabilities.supports_tree;
        let later = |(number, node): (usize, &crate::Node)| node.parent as usize > number;
        let siblings = |parent: u32| nodes.iter().filter(move |node| node.parent == parent);
        let crowd = |parent: u32| siblings(parent).count() > row.topk;
        let twice = |(number, node): (usize, &crate::Node)| nodes[..number].contains(node);
        let parents = || 0..=nodes.len() as u32;
        [
            (nodes.len() > row.most, "a row has at most `most` nodes"),
            (
                nodes.len() >= row.room.max(1),
                "nodes and the root fit the row's room",
            ),
            (
                nodes.iter().enumerate().any(later),
                "parents come before children",
            ),
            (
                nodes.iter().any(|node| node.token as usize >= self.vocab),
                "tokens are the target's",
            ),
            (
                nodes.iter().enumerate().any(twice),
                "children of a node differ",
            ),
            (
                !tree && !drafts.is_chain(at),
                "without supports_tree and branches, drafts are chains",
            ),
            (parents().any(crowd), "a node has at most `topk` children"),
        ]
        .into_iter()
        .find_map(|(broken, rule)| broken.then_some(rule))
        // Only a sound tree has a depth, so it is checked last.
        .or_else(|| (depth(nodes) as usize > row.steps).then_some("a row is at most `steps` deep"))
    }

    /// Checks the drafts of all `rows` against the rules.
    ///
    /// # Errors
    /// [`DraftError::Rules`] of the first row whose draft breaks one.
    fn check(&self, rows: &[DraftRow], drafts: &Drafts) -> Result<(), DraftError> {
        for (at, row) in rows.iter().enumerate() {
            if let Some(rule) = self.broken(row, drafts, at) {
                return self.rules(format!("{rule}; row {row:?} got {:?}", drafts.nodes(at)));
            }
        }
        Ok(())
    }

    /// Returns true if a sampled draft lacks the distribution that it was sampled from.
    fn without_law(&self, drafts: &Drafts, at: usize) -> bool {
        let nodes = drafts.nodes(at).iter().zip(1..);
        nodes.into_iter().any(|(node, number)| {
            let law = drafts.probabilities(at, number).unwrap_or(&[]);
            let sum: f64 = law.iter().map(|p| f64::from(*p)).sum();
            let proper = law.iter().all(|p| *p >= 0.0) && (sum - 1.0).abs() < 1e-3;
            !proper || law[node.token as usize] <= 0.0
        })
    }
}

impl<B: Backend> Drafter<B> for Guard<B> {
    fn capture(&self) -> CaptureSpec {
        self.drafter.capture()
    }

    fn bytes(&self, backend: &B) -> (usize, usize) {
        self.drafter.bytes(backend)
    }

    fn open(&mut self, slot: usize, tokens: &[u32], cached: Range<usize>) {
        self.drafter.open(slot, tokens, cached);
    }

    fn close(&mut self, slot: usize, tokens: &[u32]) {
        self.drafter.close(slot, tokens);
    }

    fn draft(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        let (_, kv) = self.drafter.bytes(device.backend);
        if (kv > 0) != (self.capabilities.draft_kv != DraftKv::None) {
            return self.rules("draft_kv says whether it keeps keys and values");
        }
        self.drafter.draft(device, rows, drafts)?;
        self.check(rows, drafts)?;
        for (at, row) in rows.iter().enumerate() {
            let samples = device.requests.sampling(row.slot).temperature > 0.0;
            if drafts.sampled() && samples && self.without_law(drafts, at) {
                return self.rules("a sampled draft has its probabilities");
            }
        }
        self.finder.take(drafts);
        Ok(())
    }

    fn cut(&mut self, slot: usize, left: usize) {
        self.drafter.cut(slot, left);
    }

    fn record(
        &mut self,
        device: &mut Device<'_, B>,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), DraftError> {
        self.drafter.record(device, each)
    }

    fn on_device(&mut self) -> Option<&mut dyn DraftsOnDevice<B>> {
        self.drafter.on_device().is_some().then_some(self as _)
    }

    fn extend(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        self.drafter.extend(device, rows)
    }

    fn pause(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        self.drafter.pause(device, rows)
    }

    fn forget(&mut self) {
        self.drafter.forget();
    }

    fn commands(&self) -> Option<Arc<dyn CommandHandler>> {
        self.drafter.commands()
    }
}

#[cfg(test)]
mod tests;
