//! One rank: weights, cache, slots and sampler behind [`Worker::step`].

mod adapters;
mod agreement;
mod batch;
mod choices;
mod constraints;
mod draft_stage;
mod emit;
mod error;
pub mod faults;
mod limits;
pub mod local;
mod masks;
mod open_device;
mod outcome;
mod pages;
mod pass_start;
mod passes;
mod profile;
mod reload;
mod slots;
mod states;
mod step;
mod step_exchanges;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use lockstep_adaptive::Decider;
use lockstep_backend::{Axis, Backend};
use lockstep_model::{
    ForwardLimits, LoadOptions, LoadPhase, LoadProgress, ModelCache, Transformer,
};
use lockstep_sampling::Sampler;
use lockstep_speculation::{CommandHandler, DrafterRegistry, Verifier};
use lockstep_types::step::{RankResult, StepPlan};
use lockstep_types::{EngineConfig, MatrixRole};

use agreement::Agreement;
use batch::BatchBuffers;
use choices::Choices;
use constraints::Constraints;
use draft_stage::DraftStage;
use faults::Faults;
use masks::RowMasks;
use outcome::Outcomes;
use slots::{RowTask, Slots};
use states::States;

pub use error::{PlanError, WorkerError};
pub use limits::WorkerLimits;
pub use lockstep_model::WeightOrigin;
pub use masks::MaskPlace;
pub use open_device::open;
pub use passes::{PassRegistry, PreparedPass};
pub use reload::{Folders, Served};
pub use states::{SeenState, StateProbe};
pub use step_exchanges::{DecodeStep, StepExchange};

/// Most times that passes are recorded. The first recording may take memory for drafting and so
/// make the target's passes void; after the second nothing does.
const RECORDINGS: usize = 2;

/// One rank. All ranks take the same plans in the same order, and each follows the part of its
/// DP rank. In the results of a DP rank only the lead's has outputs.
pub struct Worker<B: Backend> {
    config: EngineConfig,
    drafters: DrafterRegistry<B>,
    transformer: Transformer<B>,
    cache: ModelCache<B>,
    slots: Slots,
    states: States,
    state_probe: StateProbe,
    constraints: Constraints,
    passes: PassRegistry,
    /// The rows of the step.
    tasks: Vec<RowTask>,
    agreement: Agreement,
    drafting: DraftStage<B>,
    /// Dropped after the passes that were recorded on it: a communicator of the devices ends
    /// only once no recorded pass holds it.
    backend: B,
    batch: BatchBuffers,
    choices: Choices,
    masks: RowMasks,
    sampler: Sampler,
    verifier: Verifier,
    outcomes: Outcomes,
    last_step: u64,
    broken: bool,
}

/// Parts of a worker beside its configuration and its backend.
pub struct WorkerOptions<'a, B: Backend> {
    /// The algorithms that speculation may name.
    pub drafters: &'a DrafterRegistry<B>,
    /// Folder of packed weights: see [`LoadOptions::cache`].
    pub weight_cache: Option<&'a Path>,
    /// Called after each matrix.
    pub progress: &'a mut dyn FnMut(LoadProgress),
}

impl<B: Backend + 'static> Worker<B> {
    /// Loads this rank's shard, allocates cache and buffers, prepares the passes and compares
    /// them with the passes of the other ranks. All ranks call it together.
    ///
    /// # Errors
    /// [`WorkerError`] if the model, the split, the memory or the group is wrong.
    pub fn load(
        config: &EngineConfig,
        rank: usize,
        mut backend: B,
        options: WorkerOptions<'_, B>,
    ) -> Result<Self, WorkerError> {
        let WorkerOptions {
            drafters,
            weight_cache,
            progress,
        } = options;
        let size = config.parallel.tp_size;
        let found = backend.group(Axis::World);
        if found != (rank, size) {
            return Err(WorkerError::Group { rank, size, found });
        }
        let limits = WorkerLimits::new(config);
        limits.check()?;
        let pass = ForwardLimits::of_steps(&limits.step, limits.page_size, &config.model);
        let options = LoadOptions {
            cache: weight_cache,
            ..load_options(config, pass)
        };
        let (device, model, files) = (&mut backend, &config.model, options.files);
        let mut transformer = Transformer::load(device, model, options, progress)?;
        let target = &mut transformer;
        let mut drafting = DraftStage::load(config, drafters, device, target, files, progress)?;
        agreement::share_drafting(device, &mut transformer, &mut drafting)?;
        let (pages, page_size) = (limits.pages, limits.page_size);
        let mut cache = transformer.kv_cache(&mut backend, pages, page_size, limits.kv_dtype)?;
        transformer.allocate_states(&mut backend, &mut cache, limits.states)?;
        let (schedule, dp_ranks) = (transformer.schedule(), config.parallel.dp_size);
        let passes = PassRegistry::prepare(&limits.step, &schedule, dp_ranks);
        let adaptive = config.speculation.adaptive.as_ref();
        let tiers = adaptive.map_or(&[][..], |adaptive| &adaptive.tiers);
        agreement::compare_passes(&mut backend, passes.digest(tiers)?)?;
        let mut worker = Self {
            agreement: Agreement::new(config, rank),
            config: config.clone(),
            drafters: drafters.clone(),
            slots: Slots::new(&limits, &config.model.kv_windows()),
            states: States::new(limits.states),
            state_probe: StateProbe::default(),
            constraints: Constraints::new(&config.model, config.speculation.num_steps > 0),
            batch: BatchBuffers::new(&limits),
            choices: Choices::new(&limits),
            masks: RowMasks::new(config.model.vocab_size),
            sampler: Sampler::new(config.model.vocab_size),
            verifier: Verifier::new(
                config.speculation.verification,
                config.model.vocab_size,
                limits.step.max_commit,
            ),
            outcomes: Outcomes::of_steps(&limits.step),
            tasks: Vec::with_capacity(limits.step.requests),
            drafting,
            last_step: 0,
            broken: false,
            backend,
            transformer,
            cache,
            passes,
        };
        worker.prepare(progress)?;
        // Set last, so that no fault strikes in steps that are measured.
        worker.agreement.faults = Faults::of_rank(rank)?;
        Ok(worker)
    }

    /// Sets the place of the masks of constrained requests, before any step. On the device, all
    /// recorded passes are recorded anew, as their choices come behind them.
    ///
    /// # Errors
    /// [`WorkerError::Masks`] if no device takes masks here; [`WorkerError`] if memory is short.
    pub fn set_mask_place(&mut self, place: MaskPlace) -> Result<(), WorkerError> {
        if place == MaskPlace::Host && !self.masks.on_device() {
            return Ok(());
        }
        let step = WorkerLimits::new(&self.config).step;
        let rows = step.requests * step.verified;
        if place == MaskPlace::Device {
            let vocab = self.config.model.vocab_size;
            let device = self.backend.sampler();
            let device = device.filter(|_| self.transformer.may_mask());
            let Some(device) = device else {
                return Err(WorkerError::Masks(
                    "masks on the device need one rank, on a GPU; let LOCKSTEP_CONSTRAINT_MASKS \
                     be host, or serve with --device cuda --tp-size 1"
                        .to_owned(),
                ));
            };
            device.prepare_masks(rows, vocab)?;
        }
        self.masks.set_place(place, rows);
        self.record(&mut |_| {})
    }

    /// Does all that takes time and must be done before requests come.
    fn prepare(&mut self, progress: &mut dyn FnMut(LoadProgress)) -> Result<(), WorkerError> {
        self.record(progress)?;
        self.learn_costs(progress)
    }

    /// Has the device record the passes that it will repeat, of the target and of the drafter.
    /// Ranks can only meet in equal passes, so a pass is recorded on all ranks or on none.
    /// Drafting, on the leads, may take more of the memory that both use and so make the
    /// target's passes void; then all ranks record anew.
    fn record(&mut self, progress: &mut dyn FnMut(LoadProgress)) -> Result<(), WorkerError> {
        let (mut done, mut total) = (0, 0);
        let mut each = |left: usize| {
            done += 1;
            total = total.max(done + left as u64);
            progress(LoadProgress {
                phase: LoadPhase::Recording,
                done,
                total,
            });
        };
        let (backend, target) = (&mut self.backend, &mut self.transformer);
        let (drafting, slots) = (&mut self.drafting, &self.slots);
        backend.forget_passes();
        target.set_cut(self.masks.on_device());
        agreement::compare_exchanges(backend, target.planned_exchanges())?;
        let mut void = Vec::new();
        for _ in 0..RECORDINGS {
            target.forget_passes();
            target.record(backend, &mut self.cache, &mut each)?;
            drafting.record(backend, target, slots, &mut each)?;
            void = agreement::which(backend, !target.keeps_passes(backend))?;
            if void.is_empty() {
                let exchanged = agreement::compare_exchanges(backend, &target.noted_exchanges())?;
                self.passes.recorded(exchanged);
                return Ok(());
            }
        }
        Err(WorkerError::Unrecorded { ranks: void })
    }

    /// Makes the depth adapt, if the configuration says so. A policy that reads costs first
    /// gets the measured costs of steps on this machine.
    fn learn_costs(&mut self, progress: &mut dyn FnMut(LoadProgress)) -> Result<(), WorkerError> {
        let Some(adaptive) = self.config.speculation.adaptive.clone() else {
            return Ok(());
        };
        let policies = self.drafters.policies().clone();
        let policy = policies.find(&adaptive.policy);
        let profile = match policy.is_some_and(|policy| policy.reads_costs()) {
            true => self.profile(progress)?,
            false => Vec::new(),
        };
        let decider = Decider::new(&adaptive, &policies, &profile)?;
        self.agreement.adapt(&adaptive, decider);
        Ok(())
    }

    /// Runs this rank's part of a plan: it closes and opens slots and runs one ragged batch.
    /// The lead samples.
    ///
    /// # Errors
    /// [`WorkerError`]. The worker is unusable afterwards and says so: a plan
    /// that can't be followed means that scheduler and worker disagree.
    pub fn step(&mut self, plan: &StepPlan) -> Result<RankResult, WorkerError> {
        if self.broken {
            return Err(WorkerError::Broken);
        }
        let result = self.run(plan).map_err(agreement::named);
        let result = result.map_err(|error| error.in_step(plan.step));
        self.agreement.keep_record();
        self.broken = result.is_err();
        result
    }

    /// Writes this rank's last steps to a new file in `folder`, a line of JSON for each.
    ///
    /// # Errors
    /// [`io::Error`].
    pub fn write_steps(&self, folder: &Path) -> io::Result<PathBuf> {
        self.agreement.write_steps(folder, self.group().0)
    }

    /// Returns the rank and the number of ranks.
    pub fn group(&self) -> (usize, usize) {
        self.backend.group(Axis::World)
    }

    /// Describes the backend, for people.
    pub fn describe(&self) -> String {
        let weights = self.config.model.weight_format(MatrixRole::Projection);
        self.backend.describe(weights)
    }

    /// Returns the origin of the weights.
    pub fn weight_origin(&self) -> &WeightOrigin {
        self.transformer.weight_origin()
    }

    /// Returns the bytes of packed weights, the drafter's included.
    pub fn weight_bytes(&self) -> usize {
        let (draft, _) = self.drafting.bytes(&self.backend);
        self.transformer.weight_bytes(&self.backend) + draft
    }

    /// Returns the bytes of the KV cache when it is full, the drafter's included.
    pub fn kv_bytes(&self) -> usize {
        let (_, draft) = self.drafting.bytes(&self.backend);
        self.cache.bytes() + draft
    }

    /// Returns the handler of commands to the drafter. It is `None` if the drafter takes none,
    /// and on ranks that do not draft.
    pub fn drafter_commands(&self) -> Option<Arc<dyn CommandHandler>> {
        self.drafting.commands()
    }

    /// Begins to read the vocabulary, on a lead, so that the first constrained request need not
    /// wait for it. A model without a tokenizer has none, and its requests are not constrained.
    pub fn read_vocabulary(&self) {
        if self.backend.leads(Axis::Attention) {
            self.constraints.read_vocabulary();
        }
    }

    /// Returns the prepared passes.
    pub fn passes(&self) -> &PassRegistry {
        &self.passes
    }
}

/// Returns options for loading the model of `config` from its checkpoint, for passes within `limits`.
fn load_options<'a>(config: &EngineConfig, limits: ForwardLimits) -> LoadOptions<'a> {
    LoadOptions {
        notes: Some(agreement::NOTE),
        ep_size: config.parallel.ep_size,
        adapters: config.adapters,
        ..LoadOptions::new(Axis::World, limits)
    }
}

#[cfg(test)]
mod tests;
