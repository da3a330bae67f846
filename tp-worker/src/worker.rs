//! One rank: weights, cache, slots and sampler behind `step`.

mod agree;
mod batch;
mod depth;
mod digest;
mod draft_stage;
mod emit;
mod error;
mod limits;
pub mod local;
mod outcome;
mod pages;
mod passes;
mod profile;
mod reload;
mod slots;

use std::{path::Path, sync::Arc, time::Instant};

use lockstep_adaptive::Decider;
use lockstep_backend::{Axis, Backend};
use lockstep_model::{ForwardLimits, LoadOptions, LoadProgress, Transformer};
use lockstep_sampling::Sampler;
use lockstep_speculation::{CommandHandler, DrafterRegistry, Node, Verifier};
use lockstep_types::EngineConfig;
use lockstep_types::step::{PlanPart, RankResult, SlotOutput, StageTimes, StepPlan};

use batch::BatchBuffers;
use depth::DepthControl;
use digest::Digests;
use draft_stage::DraftStage;
use emit::Emitter;
use outcome::Outcomes;
use slots::{RowTask, Slots};

pub use error::{PlanError, WorkerError};
pub use limits::WorkerLimits;
pub use lockstep_model::WeightOrigin;
pub use passes::{PassRegistry, PreparedPass};
pub use reload::{Folders, Served};

/// One tensor-parallel rank. Every rank of a group takes the same plans in the
/// same order; results differ only in that the one that leads has the outputs.
pub struct Worker<B: Backend> {
    config: EngineConfig,
    drafters: DrafterRegistry<B>,
    backend: B,
    transformer: Transformer<B>,
    cache: B::KvCache,
    kv_bytes: usize,
    slots: Slots,
    passes: PassRegistry,
    /// The step's rows.
    tasks: Vec<RowTask>,
    depth: DepthControl,
    drafting: DraftStage<B>,
    batch: BatchBuffers,
    sampler: Sampler,
    verifier: Verifier,
    outcomes: Outcomes,
    digests: Digests,
    last_step: u64,
    broken: bool,
}

/// What a worker takes beside its configuration and its backend.
pub struct WorkerOptions<'a, B: Backend> {
    /// The algorithms that speculation may name.
    pub drafters: &'a DrafterRegistry<B>,
    /// Folder of packed weights: see [`LoadOptions::cache`].
    pub weight_cache: Option<&'a Path>,
    /// Called after each matrix.
    pub progress: &'a mut dyn FnMut(LoadProgress),
}

impl<B: Backend + 'static> Worker<B> {
    /// Loads this rank's shard, allocates cache and buffers, prepares the
    /// passes and compares them with the other ranks'. All ranks call it
    /// together.
    ///
    /// # Errors
    /// [`WorkerError`]: what is wrong with the model, the split, the memory or
    /// the group.
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
        let pass = ForwardLimits::of_steps(&limits.step, limits.page_size, limits.vocab);
        let options = LoadOptions {
            cache: weight_cache,
            ..LoadOptions::new(Axis::World, pass)
        };
        let (device, model, files) = (&mut backend, &config.model, options.files);
        let mut transformer = Transformer::load(device, model, options, progress)?;
        let target = &mut transformer;
        let drafting = DraftStage::load(config, drafters, device, target, files, progress)?;
        agree::share_capture(device, &mut transformer, &drafting)?;
        let shape = transformer.kv_shape(config.kv.num_pages, config.kv.page_size, limits.kv_dtype);
        let cache = backend.kv_cache(&shape)?;
        let passes = PassRegistry::prepare(&limits.step, &transformer.schedule());
        let adaptive = config.speculation.adaptive.as_ref();
        let tiers = adaptive.map_or(&[][..], |adaptive| &adaptive.tiers);
        agree::compare_passes(&mut backend, passes.digest(tiers)?)?;
        let mut worker = Self {
            depth: DepthControl::fixed(&config.speculation),
            config: config.clone(),
            drafters: drafters.clone(),
            slots: Slots::new(&limits),
            batch: BatchBuffers::new(&limits),
            sampler: Sampler::new(config.model.vocab_size),
            verifier: Verifier::new(
                config.speculation.verification,
                config.model.vocab_size,
                limits.step.max_commit,
            ),
            outcomes: Outcomes::new(limits.step.requests, limits.step.max_commit),
            tasks: Vec::with_capacity(limits.step.requests),
            drafting,
            digests: Digests::new(),
            last_step: 0,
            kv_bytes: shape.bytes_per_token() * config.kv.num_pages * config.kv.page_size,
            broken: false,
            backend,
            transformer,
            cache,
            passes,
        };
        if let Some(adaptive) = &config.speculation.adaptive {
            let policies = drafters.policies();
            let policy = policies.find(&adaptive.policy);
            let profile = match policy.is_some_and(|policy| policy.reads_costs()) {
                true => worker.profile(progress)?,
                false => Vec::new(),
            };
            let decider = Decider::new(adaptive, policies, &profile)?;
            worker.depth = DepthControl::adaptive(adaptive, decider, size);
        }
        Ok(worker)
    }

    /// Runs its part of one plan: closes, opens, one ragged batch, sampling on the
    /// rank that leads.
    ///
    /// # Errors
    /// [`WorkerError`]. The worker is unusable afterwards and says so: a plan
    /// that can't be followed means that scheduler and worker disagree.
    pub fn step(&mut self, plan: &StepPlan) -> Result<RankResult, WorkerError> {
        if self.broken {
            return Err(WorkerError::Broken);
        }
        let result = self.run(plan).map_err(depth::named);
        self.broken = result.is_err();
        result
    }

    /// Rank and group size.
    pub fn group(&self) -> (usize, usize) {
        self.backend.group(Axis::World)
    }

    /// The backend in words, for people.
    pub fn describe(&self) -> String {
        self.backend.describe()
    }

    /// Where the weights came from.
    pub fn weight_origin(&self) -> &WeightOrigin {
        self.transformer.weight_origin()
    }

    /// Bytes of packed weights, the drafter's included.
    pub fn weight_bytes(&self) -> usize {
        let (draft, _) = self.drafting.bytes(&self.backend);
        self.transformer.weight_bytes(&self.backend) + draft
    }

    /// Bytes of the KV cache when it is full, the drafter's included.
    pub fn kv_bytes(&self) -> usize {
        let (_, draft) = self.drafting.bytes(&self.backend);
        self.kv_bytes + draft
    }

    /// What handles commands to the drafter; `None` where it takes none, and on
    /// ranks that do not draft.
    pub fn drafter_commands(&self) -> Option<Arc<dyn CommandHandler>> {
        self.drafting.commands()
    }

    /// What is prepared.
    pub fn passes(&self) -> &PassRegistry {
        &self.passes
    }

    fn run(&mut self, plan: &StepPlan) -> Result<RankResult, WorkerError> {
        let mut clock = StageClock::start();
        let invalid = |reason| WorkerError::Plan {
            step: plan.step,
            reason,
        };
        let part = self.part_of(plan).map_err(invalid)?;
        self.digests.plan(plan, part);
        self.take(plan.step, part).map_err(invalid)?;
        let (backend, target) = (&mut self.backend, &self.transformer);
        let digest = self.digests.tensor;
        self.depth.begin(backend, plan, part, digest)?;
        self.drafting
            .draft(backend, target, &self.slots, &self.tasks, plan.draft_steps)?;
        let draft_us = clock.stage_us();
        self.lay_out().map_err(invalid)?;
        let pass = self.passes.find(self.batch.key()).map_err(invalid)?;
        self.digests.world.word(pass.digest);
        self.drafting.digest(&mut self.digests.tensor);
        if self.batch.key().tokens > 0 {
            self.depth.send(&mut self.backend)?;
        }
        let outputs = self.forward()?;
        self.settle()?;
        let verify_us = clock.stage_us();
        let forward_us = clock.total_us();
        self.extend_drafts()?;
        let stages = StageTimes {
            draft_us,
            verify_us,
            extend_us: clock.stage_us(),
        };
        let decided = self.depth.decide(&mut self.backend, plan);
        let seen = self.seen(plan, stages);
        self.depth.note(seen);
        Ok(RankResult {
            step: plan.step,
            digests: self.digests.values(),
            outputs,
            forward_us,
            stages,
            agreed_depth: decided.map(|(depth, _)| depth),
            expected_us: decided.map_or(0, |(_, expected)| expected),
        })
    }

    /// What its DP rank does in a step.
    fn part_of<'a>(&self, plan: &'a StepPlan) -> Result<&'a PlanPart, PlanError> {
        let (rank, _) = self.group();
        let dp_rank = self.config.parallel.dp_rank(rank);
        let parts = plan.parts.len();
        let part = plan.parts.get(dp_rank);
        part.ok_or(PlanError::NoPart { parts, dp_rank })
    }

    /// Brings the slots to where the step wants them.
    fn take(&mut self, step: u64, part: &PlanPart) -> Result<(), PlanError> {
        let expected = self.last_step + 1;
        if step != expected {
            return Err(PlanError::OutOfOrder { expected });
        }
        self.last_step = step;
        for slot in &part.closes {
            self.slots.close(*slot)?;
            self.drafting.close(*slot as usize, &self.slots);
        }
        for open in &part.opens {
            self.slots.open(open)?;
            self.drafting.open(open.slot as usize, &self.slots);
        }
        self.tasks.clear();
        for extend in &part.extends {
            self.tasks.push(self.slots.extend(step, extend)?);
        }
        Ok(())
    }

    /// Lays the rows out as one batch, each with its drafts.
    fn lay_out(&mut self) -> Result<(), PlanError> {
        self.batch.clear();
        let mut decodes = 0;
        for task in &mut self.tasks {
            let mut nodes: &[Node] = &[];
            if task.decodes {
                nodes = self.drafting.nodes(decodes);
                task.drafts = Some(decodes);
                decodes += 1;
            }
            self.batch.push(task, &self.slots, nodes)?;
        }
        self.batch.seal(&self.tasks, &self.slots)
    }

    /// Runs the batch and chooses tokens, on the rank that leads.
    fn forward(&mut self) -> Result<Vec<SlotOutput>, WorkerError> {
        let mut outputs = Vec::new();
        self.outcomes.clear();
        if self.backend.leads(Axis::Attention) {
            outputs.extend(self.batch.outputs(&self.tasks, &self.slots));
        }
        let mut emitter = Emitter {
            slots: &mut self.slots,
            tasks: &self.tasks,
            batch: &self.batch,
            drafts: self.drafting.drafts(),
            sampler: &mut self.sampler,
            verifier: &mut self.verifier,
            outputs: &mut outputs,
            outcomes: &mut self.outcomes,
        };
        // The page tables are borrowed by the batch while the emitter changes
        // slots, so they are handed out for the pass.
        let tables = emitter.slots.lend_tables();
        let batch = self.batch.batch(&tables);
        let result = self.transformer.forward(
            &mut self.backend,
            &mut self.cache,
            &batch,
            None,
            &mut |block| {
                emitter.take(block);
            },
        );
        self.slots.return_tables(tables);
        result?;
        Ok(outputs)
    }

    /// Tells all ranks what was chosen, and the slots what it means.
    fn settle(&mut self) -> Result<(), WorkerError> {
        let (backend, tasks) = (&mut self.backend, &self.tasks);
        self.outcomes.broadcast(backend, tasks)?;
        self.outcomes.digest(&mut self.digests.tensor);
        self.outcomes
            .commit(backend, &mut self.cache, tasks, &mut self.slots);
        Ok(())
    }

    /// Tells the drafter what was chosen.
    fn extend_drafts(&mut self) -> Result<(), WorkerError> {
        let (backend, target) = (&mut self.backend, &self.transformer);
        let (slots, tasks) = (&self.slots, &self.tasks);
        self.drafting
            .extend(backend, target, slots, tasks, &self.batch, &self.outcomes)
    }
}

/// Tells where a step's time goes. What it says is reported, and never decides
/// anything on this rank alone.
struct StageClock {
    begun: Instant,
    stage: Instant,
}

impl StageClock {
    fn start() -> Self {
        let begun = Instant::now();
        Self {
            begun,
            stage: begun,
        }
    }

    /// Microseconds since the last call, or since the start.
    fn stage_us(&mut self) -> u32 {
        let before = std::mem::replace(&mut self.stage, Instant::now());
        let spent = self.stage.duration_since(before).as_micros();
        u32::try_from(spent).unwrap_or(u32::MAX)
    }

    /// Microseconds since the start.
    fn total_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
