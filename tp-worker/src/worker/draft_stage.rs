//! The stage of a step that drafts, and what all ranks know about the drafts.

mod broadcast;
mod cut;
mod extend;
mod forced;
mod on_device;
mod record;
mod target_tables;

use std::sync::Arc;

use lockstep_backend::{Axis, Backend, DraftShape};
use lockstep_model::{CaptureSpec, FileAccess, ForwardLimits, LoadProgress, Transformer};
use lockstep_speculation::{
    Build, ChainPass, CommandHandler, Device, DraftError, DraftRow, Drafter, DrafterRegistry,
    Drafts, ExtendRow, Node, OwnDepths, Requests as _,
};
use lockstep_types::{EngineConfig, SpeculationConfig, Verification};

use super::{
    WorkerError, WorkerLimits,
    slots::{RowTask, Slots},
};

use forced::Forced;

pub use on_device::PassDrafts;
pub use target_tables::TargetTables;

/// Drafts of a step. The lead alone drafts, and broadcasts its drafts.
pub struct DraftStage<B: Backend> {
    config: SpeculationConfig,
    drafter: Option<Box<dyn Drafter<B>>>,
    of_target: TargetTables<B>,
    drafts: Drafts,
    /// Shape of the drafts that the lead's device makes in this step, in `chains`; `None` if
    /// its device makes none.
    on_device: Option<DraftShape>,
    chains: ChainPass,
    /// For each chain of `chains`, the index of its row among the rows that sample.
    chain_requests: Vec<u32>,
    /// For each decode row, its index among the rows that sample.
    choices: Vec<u32>,
    /// Drafts of a row that does not draft: one row without nodes.
    none: Drafts,
    /// The step's decode rows.
    rows: Vec<DraftRow>,
    /// Drafts that constraints force for them.
    forced: Forced,
    /// Number of rows that decode, on all DP ranks together.
    pub decodes: usize,
    /// Most nodes of a row.
    most: usize,
    /// For every decode row: the number of nodes, then token and parent of each node.
    words: Vec<u32>,
    /// Number of words of a row, at the step's depth.
    stride: usize,
    extends: Vec<ExtendRow>,
    /// True if the step drafts nothing and the drafter can do without it.
    paused: bool,
    feature_rows: Vec<u32>,
    /// Depth of each request by its own past drafts; used where the group's depth adapts.
    own: OwnDepths,
    /// Draft steps of the previous step.
    last_steps: u32,
    /// Number of tokens in the target's vocabulary.
    vocab: u32,
    /// True if rows get as many nodes as they may have, whatever the drafter finds.
    fills_up: bool,
}

impl<B: Backend> DraftStage<B> {
    /// Loads the configured drafter on the lead, and makes the target keep the features that it
    /// reads. [`super::agreement::share_drafting`] then does so on the other ranks. No collective
    /// runs, so that a rank that fails leaves none waiting.
    ///
    /// # Errors
    /// [`WorkerError`] if the drafter's files can't be used, or for want of memory.
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
        let (mut of_target, mut drafter) = (TargetTables::Target, None);
        if backend.leads(Axis::Attention) {
            let forward = ForwardLimits::of_drafts(&limits.step, limits.page_size, limits.vocab);
            drafter = drafters.build(Build {
                backend,
                speculation,
                target: &config.model,
                requests: limits.step.requests,
                limits: forward,
                pages: limits.pages.full,
                page_size: limits.page_size,
                kv_dtype: limits.kv_dtype,
                files,
                progress,
            })?;
        }
        if let Some(drafter) = drafter.as_deref() {
            of_target = TargetTables::load(drafter, config, backend, target, files, progress)?;
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
            on_device: None,
            chains: ChainPass::new(limits.step.requests, limits.step.tokens),
            chain_requests: Vec::with_capacity(limits.step.requests),
            choices: Vec::with_capacity(limits.step.requests),
            none: no_drafts(),
            rows: Vec::with_capacity(limits.step.requests),
            forced: Forced::new(limits.step.requests, most),
            decodes: 0,
            words: Vec::with_capacity(limits.step.requests * (1 + 2 * most)),
            stride: 1,
            extends: Vec::with_capacity(limits.step.requests),
            paused: false,
            feature_rows: Vec::with_capacity(limits.step.tokens),
            drafter,
            of_target,
            most,
            own: OwnDepths::new(limits.step.requests),
            last_steps: 0,
            vocab: config.model.vocab_size as u32,
            fills_up: false,
        })
    }

    /// Returns the features that the target's passes must keep for the drafter; `None` on ranks
    /// that do not draft.
    pub fn capture(&self) -> Option<CaptureSpec> {
        self.drafter.as_ref().map(|drafter| drafter.capture())
    }

    /// Returns the handler of commands to the drafter.
    pub fn commands(&self) -> Option<Arc<dyn CommandHandler>> {
        self.drafter.as_ref()?.commands()
    }

    /// Returns the bytes of the drafter's weights, and of its cache.
    pub fn bytes(&self, backend: &B) -> (usize, usize) {
        let Some(drafter) = &self.drafter else {
            return (0, 0);
        };
        let tables = self.of_target.weight_bytes(backend);
        let (weights, kv) = drafter.bytes(backend);
        (weights + tables, kv)
    }

    /// Tells the drafter that a slot was given to a request.
    pub fn open(&mut self, slot: usize, slots: &Slots) {
        if let Some(drafter) = &mut self.drafter {
            let request = slots.get(slot);
            let cached = request.kv_len as usize;
            // If the drafter lacks keys and values of the cached prefix, its text begins behind
            // the prefix.
            let from = if request.drafted { 0 } else { cached };
            drafter.open(slot, &request.tokens, from..cached);
            self.own.open(slot);
        }
    }

    /// Tells the drafter that a slot's request is gone.
    pub fn close(&mut self, slot: usize, slots: &Slots) {
        if let Some(drafter) = &mut self.drafter {
            drafter.close(slot, slots.tokens(slot));
        }
    }

    /// Drafts at most `steps` deep for every decode row.
    ///
    /// # Errors
    /// [`WorkerError::Draft`] if the drafter fails or breaks the rules;
    /// [`WorkerError::Backend`] when a peer is gone.
    pub fn draft(
        &mut self,
        backend: &mut B,
        target: &Transformer<B>,
        slots: &mut Slots,
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
        self.on_device = None;
        self.words.clear();
        let drafts = self.most > 0 && self.rows.iter().any(|row| row.steps > 0);
        self.find_forced(slots);
        if settled && drafts {
            self.cut();
        }
        self.spare_forced();
        let asked = self.rows.iter().any(|row| row.steps > 0);
        let choosable = drafts && self.are_choosable(target, slots, tasks);
        let mut laid_out = false;
        if let Some(drafter) = &mut self.drafter {
            let mut device = Device {
                backend,
                tables: self.of_target.tables(target.tables()),
                features: target.features(),
                feature_rows: &[],
                pages: slots.pages().table(),
                requests: &*slots,
            };
            if let Some(on_device) = drafter.on_device() {
                let (drafts, chains) = (&mut self.drafts, &mut self.chains);
                laid_out =
                    choosable && on_device.lay_out(&mut device, &self.rows, drafts, chains)?;
                if laid_out {
                    self.on_device = (chains.size().0 > 0).then(|| chains.shape());
                } else {
                    on_device.settle(&mut device)?;
                }
            }
            if asked && !laid_out {
                drafter.draft(&mut device, &self.rows, &mut self.drafts)?;
                self.check()?;
            }
        }
        if !drafts {
            return Ok(());
        }
        if !laid_out {
            self.apply_forced(slots);
        }
        if self.fills_up && self.drafter.is_some() {
            self.fill_up();
        }
        self.broadcast(backend)
    }

    /// Returns the drafts of the step's `decode`-th decode row.
    pub fn nodes(&self, decode: usize) -> &[Node] {
        self.drafts.nodes(decode)
    }

    /// Returns the step's drafts, and the drafts of a row that does not draft. Drafts that the
    /// device makes have no tokens before the pass.
    pub fn drafts(&self) -> (&Drafts, &Drafts) {
        (&self.drafts, &self.none)
    }

    /// Begins or ends measuring. While it lasts, rows get as many nodes as they may have; nodes
    /// that the drafter does not find are made up. At the end the drafter forgets what it has
    /// seen.
    pub fn measure(&mut self, begins: bool) {
        self.fills_up = begins;
        if let Some(drafter) = self.drafter.as_mut().filter(|_| !begins) {
            drafter.forget();
        }
    }

    /// Adds arbitrary tokens: to a chain at its end, to a tree in chains that begin at the
    /// row's last known token.
    fn fill_up(&mut self) {
        for (at, row) in self
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| row.steps > 0)
        {
            let own = self.drafts.nodes(at).len();
            // The device alone knows the drafts that it makes, and it fills a row by itself.
            if self.on_device.is_some() && own > 0 {
                continue;
            }
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

    /// Checks that the drafts keep to the rules, before other ranks rely on them. Any author's
    /// drafter may run here.
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
}

/// Makes drafts of one row without nodes.
fn no_drafts() -> Drafts {
    let mut none = Drafts::new(1, 0, 0);
    none.begin(1);
    none
}

/// Returns the limits of a decode row's drafts: no deeper than plan and request allow, and
/// within the row's pages and positions.
fn draft_row(config: &SpeculationConfig, slots: &Slots, task: &RowTask, steps: u32) -> DraftRow {
    let (start, slot) = (task.start as usize, slots.get(task.slot));
    let held = slots.pages().held(task.slot).min(slots.positions());
    let room = held.saturating_sub(start);
    let most = slot.generation.max_draft_steps;
    let wanted = most.map_or(steps, |most| most.min(steps)) as usize;
    let most = config.draft_tokens_at(wanted).saturating_sub(1);
    let most = most.min(room.saturating_sub(1));
    DraftRow {
        slot: task.slot,
        pages_start: slots.pages().start(task.slot) as u32,
        kv_len: start,
        // Only the lead knows of slots that have failed, and all ranks must compute the same
        // steps here. So a failed slot drafts on until the scheduler closes it.
        steps: wanted.min(config.num_steps).min(most),
        topk: config.topk,
        most,
        room,
        may_stop: false,
    }
}
