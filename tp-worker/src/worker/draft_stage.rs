//! The stage of a step that drafts, and what all ranks know of the drafts.

mod cut;
mod exchange;
mod record;

use std::sync::Arc;

use lockstep_adaptive::Digest;
use lockstep_backend::{Axis, Backend};
use lockstep_model::{CaptureSpec, FileAccess, ForwardLimits, LoadProgress, Transformer};
use lockstep_speculation::{
    Build, CommandHandler, Device, DraftError, DraftRow, Drafter, DrafterRegistry, Drafts,
    ExtendRow, Node, OwnDepths, Requests as _,
};
use lockstep_types::{EngineConfig, SpeculationConfig, Verification, pause};

use super::{
    WorkerError, WorkerLimits,
    batch::BatchBuffers,
    outcome::Outcomes,
    slots::{RowTask, Slots},
};

pub use exchange::OfTarget;

/// Drafts of a step. The rank that leads drafts, alone, and broadcasts them.
pub struct DraftStage<B: Backend> {
    config: SpeculationConfig,
    drafter: Option<Box<dyn Drafter<B>>>,
    of_target: OfTarget<B>,
    drafts: Drafts,
    /// Of a row that does not draft.
    none: Drafts,
    /// The step's decode rows.
    rows: Vec<DraftRow>,
    /// How many decode on all DP ranks together.
    pub decodes: usize,
    /// Nodes of a row at the most.
    most: usize,
    /// For every decode row: nodes, then token and parent of each.
    words: Vec<u32>,
    /// Words of a row, by the step's depth.
    stride: usize,
    extends: Vec<ExtendRow>,
    /// Rows that the drafter need not take in yet.
    pauses: Vec<ExtendRow>,
    /// The step drafts nothing, and the drafter can do without it.
    paused: bool,
    feature_rows: Vec<u32>,
    /// How deep each request drafts by its own past; where the group adapts.
    own: OwnDepths,
    /// Draft steps of the step before.
    last_steps: u32,
    /// Tokens of the target's vocabulary.
    vocab: u32,
    page_size: u32,
    /// Rows get as many nodes as they may have, whatever the drafter finds.
    fills_up: bool,
}

impl<B: Backend> DraftStage<B> {
    /// Loads the configured drafter on the rank that leads and lets the target
    /// keep what it reads; [`super::agree::share_capture`] then does so on the
    /// other ranks. No collective runs, so that a rank that fails leaves none waiting.
    ///
    /// # Errors
    /// [`WorkerError`]: its files, or the memory.
    pub fn load(
        config: &EngineConfig,
        drafters: &DrafterRegistry<B>,
        backend: &mut B,
        target: &mut Transformer<B>,
        files: FileAccess,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, WorkerError> {
        let limits = WorkerLimits::new(config);
        let speculation = &config.speculation;
        let (mut of_target, mut drafter) = (OfTarget::Target, None);
        if backend.leads(Axis::Attention) {
            let forward = ForwardLimits::of_drafts(&limits.step, limits.page_size, limits.vocab);
            drafter = drafters.build(Build {
                backend,
                speculation,
                target: &config.model,
                requests: limits.step.requests,
                limits: forward,
                pages: limits.pages,
                page_size: limits.page_size,
                kv_dtype: limits.kv_dtype,
                files,
                progress,
            })?;
        }
        if let Some(drafter) = drafter.as_deref() {
            of_target = OfTarget::load(drafter, config, backend, target, files, progress)?;
        }
        let most = speculation
            .max_speculative_num_draft_tokens
            .saturating_sub(1);
        let vocab = match speculation.verification {
            Verification::Target => 0,
            Verification::Rejection | Verification::Block => config.model.vocab_size,
        };
        Ok(Self {
            config: speculation.clone(),
            drafts: Drafts::new(limits.step.requests, most, vocab),
            none: no_drafts(),
            rows: Vec::with_capacity(limits.step.requests),
            decodes: 0,
            words: Vec::with_capacity(limits.step.requests * (1 + 2 * most)),
            stride: 1,
            extends: Vec::with_capacity(limits.step.requests),
            pauses: Vec::with_capacity(limits.step.requests),
            paused: false,
            feature_rows: Vec::with_capacity(limits.step.tokens),
            drafter,
            of_target,
            most,
            own: OwnDepths::new(limits.step.requests),
            last_steps: 0,
            vocab: config.model.vocab_size as u32,
            page_size: limits.page_size as u32,
            fills_up: false,
        })
    }

    /// What the target's passes must keep for the drafter; `None` on ranks that
    /// do not draft.
    pub fn capture(&self) -> Option<CaptureSpec> {
        self.drafter.as_ref().map(|drafter| drafter.capture())
    }

    /// What handles commands to the drafter.
    pub fn commands(&self) -> Option<Arc<dyn CommandHandler>> {
        self.drafter.as_ref()?.commands()
    }

    /// Bytes of the drafter's weights and of its cache.
    pub fn bytes(&self, backend: &B) -> (usize, usize) {
        let Some(drafter) = &self.drafter else {
            return (0, 0);
        };
        let tables = self.of_target.weight_bytes(backend);
        let (weights, kv) = drafter.bytes(backend);
        (weights + tables, kv)
    }

    /// A slot was given to a request.
    pub fn open(&mut self, slot: usize, slots: &Slots) {
        if let Some(drafter) = &mut self.drafter {
            let request = slots.get(slot);
            drafter.open(slot, &request.tokens, request.kv_len as usize);
            self.own.open(slot);
        }
    }

    /// A slot's request is gone.
    pub fn close(&mut self, slot: usize, slots: &Slots) {
        if let Some(drafter) = &mut self.drafter {
            drafter.close(slot, slots.tokens(slot));
        }
    }

    /// Drafts at most `steps` deep for every decode row.
    ///
    /// # Errors
    /// [`WorkerError::Draft`] by the drafter, or when it breaks the rules;
    /// [`WorkerError::Backend`] when a peer is gone.
    pub fn draft(
        &mut self,
        backend: &mut B,
        target: &Transformer<B>,
        slots: &Slots,
        tasks: &[RowTask],
        steps: u32,
    ) -> Result<(), WorkerError> {
        self.paused = steps == 0 && self.config.pause_window > 0;
        let settled = std::mem::replace(&mut self.last_steps, steps) == steps;
        self.rows.clear();
        let decodes = tasks.iter().filter(|task| task.decodes);
        self.rows
            .extend(decodes.map(|task| draft_row(&self.config, slots, task, steps)));
        self.stride = 1 + 2 * self
            .config
            .draft_tokens_at(steps as usize)
            .saturating_sub(1);
        self.drafts.begin(self.rows.len());
        self.words.clear();
        if self.most == 0 || self.rows.iter().all(|row| row.steps == 0) {
            return Ok(());
        }
        if settled {
            self.cut();
        }
        if let Some(drafter) = &mut self.drafter {
            let mut device = Device {
                backend,
                tables: self.of_target.tables(target),
                features: None,
                feature_rows: &[],
                pages: slots.pages().table(),
                requests: slots,
            };
            drafter.draft(&mut device, &self.rows, &mut self.drafts)?;
            self.check()?;
        }
        if self.fills_up && self.drafter.is_some() {
            self.fill_up();
        }
        self.broadcast(backend)
    }

    /// The drafts of the step's `decode`-th decode row.
    pub fn nodes(&self, decode: usize) -> &[Node] {
        self.drafts.nodes(decode)
    }

    /// The step's drafts, and those of a row that does not draft.
    pub fn drafts(&self) -> (&Drafts, &Drafts) {
        (&self.drafts, &self.none)
    }

    /// Takes the drafts into the step's digest.
    pub fn digest(&self, digest: &mut Digest) {
        digest.list(&self.words);
    }

    /// Hands the drafter what the pass brought; slots have committed it.
    ///
    /// # Errors
    /// [`WorkerError::Draft`].
    pub fn extend(
        &mut self,
        backend: &mut B,
        target: &Transformer<B>,
        slots: &Slots,
        tasks: &[RowTask],
        batch: &BatchBuffers,
        outcomes: &Outcomes,
    ) -> Result<(), WorkerError> {
        let Some(drafter) = &mut self.drafter else {
            return Ok(());
        };
        self.extends.clear();
        self.pauses.clear();
        self.feature_rows.clear();
        let window = self.config.pause_window as u32;
        let rows = batch.rows().iter().zip(outcomes.of(tasks));
        for (task, (row, outcome)) in tasks.iter().zip(rows) {
            let from = self.feature_rows.len();
            self.feature_rows.extend(row.start..row.start + task.q_len);
            let accepted = outcome.path.iter().map(|node| row.start + node);
            self.feature_rows.extend(accepted);
            if task.decodes {
                let proposed = task.draft_depth as usize;
                self.own.count(task.slot, proposed, outcome.path.len());
            }
            let piece = task.start..task.start + task.q_len;
            let waits = task.decodes || pause::leaves(&piece, self.page_size, window);
            let later = self.paused && waits;
            let rows = if later {
                &mut self.pauses
            } else {
                &mut self.extends
            };
            rows.push(ExtendRow {
                slot: task.slot,
                pages_start: slots.pages().start(task.slot) as u32,
                start: task.start as usize,
                features: from..self.feature_rows.len(),
                ends: task.sample,
            });
        }
        let mut device = Device {
            backend,
            tables: self.of_target.tables(target),
            features: target.features(),
            feature_rows: &self.feature_rows,
            pages: slots.pages().table(),
            requests: slots,
        };
        if !self.extends.is_empty() {
            drafter.extend(&mut device, &self.extends)?;
        }
        if !self.pauses.is_empty() {
            drafter.pause(&mut device, &self.pauses)?;
        }
        Ok(())
    }

    /// Begins or ends measuring: rows then get as many nodes as they may have,
    /// made up where the drafter finds none, and at the end the drafter forgets
    /// what it has seen.
    pub fn measure(&mut self, begins: bool) {
        self.fills_up = begins;
        if let Some(drafter) = self.drafter.as_mut().filter(|_| !begins) {
            drafter.forget();
        }
    }

    /// Adds any tokens: to a chain, or in chains from the row's last known one
    /// on.
    fn fill_up(&mut self) {
        for (at, row) in self
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| row.steps > 0)
        {
            let own = self.drafts.nodes(at).len();
            let (first, most) = match row.topk {
                1 => (0, row.most.min(row.steps)),
                _ => (own, row.most),
            };
            for number in own..most {
                let level = (number - first) % row.steps;
                self.drafts.push(
                    at,
                    Node {
                        token: number as u32 % self.vocab,
                        parent: if level == 0 { 0 } else { number as u32 },
                    },
                );
            }
        }
    }

    /// Stops a drafter, which may be anybody's, before others rely on its drafts.
    fn check(&self) -> Result<(), DraftError> {
        for (at, row) in self.rows.iter().enumerate() {
            if let Some(rule) = self.drafts.fault(at, row) {
                return Err(DraftError::Rules {
                    algorithm: self.config.algorithm.clone().unwrap_or_default(),
                    reason: format!("{rule}; row {row:?} got {:?}", self.drafts.nodes(at)),
                });
            }
        }
        Ok(())
    }

    /// Gives every rank the drafts of the one that leads.
    fn broadcast(&mut self, backend: &mut B) -> Result<(), WorkerError> {
        let stride = self.stride;
        self.words.clear();
        self.words.resize(self.rows.len() * stride, 0);
        let rows = self.words.chunks_exact_mut(stride).enumerate();
        for (row, words) in rows.filter(|_| self.drafter.is_some()) {
            let nodes = self.drafts.nodes(row);
            words[0] = nodes.len() as u32;
            for (words, node) in words[1..].chunks_exact_mut(2).zip(nodes) {
                words.copy_from_slice(&[node.token, node.parent]);
            }
        }
        backend
            .control(Axis::Attention)
            .broadcast(0, &mut self.words)?;
        if self.drafter.is_none() {
            for (row, words) in self.words.chunks_exact(stride).enumerate() {
                for node in words[1..].chunks_exact(2).take(words[0] as usize) {
                    let (token, parent) = (node[0], node[1]);
                    self.drafts.push(row, Node { token, parent });
                }
            }
        }
        Ok(())
    }
}

/// One row without drafts.
fn no_drafts() -> Drafts {
    let mut none = Drafts::new(1, 0, 0);
    none.begin(1);
    none
}

/// What a decode row may draft: no deeper than plan and request allow, and
/// within its pages and its positions.
fn draft_row(config: &SpeculationConfig, slots: &Slots, task: &RowTask, steps: u32) -> DraftRow {
    let (start, slot) = (task.start as usize, slots.get(task.slot));
    let held = slots.pages().held(task.slot).min(slots.positions());
    let room = held.saturating_sub(start);
    let wanted = steps.min(slot.max_draft_steps) as usize;
    let most = config.draft_tokens_at(wanted).saturating_sub(1);
    let most = most.min(room.saturating_sub(1));
    DraftRow {
        slot: task.slot,
        pages_start: slots.pages().start(task.slot) as u32,
        kv_len: start,
        // The rank that leads alone knows of slots that have failed, and all ranks must see the
        // same steps here: such a slot drafts on until its scheduler closes it.
        steps: wanted.min(config.num_steps).min(most),
        topk: config.topk,
        most,
        room,
        may_stop: false,
    }
}
