//! One rank: weights, cache, slots and sampler behind `step`.

mod agree;
mod batch;
mod digest;
mod drafting;
mod emit;
mod error;
mod limits;
pub mod local;
mod outcome;
mod pages;
mod plans;
mod reload;
mod slots;

use std::{path::Path, time::Instant};

use lockstep_backend::{Axis, Backend};
use lockstep_model::{LoadOptions, LoadProgress, Transformer};
use lockstep_sampling::Sampler;
use lockstep_speculation::{Corpora, DrafterRegistry, Verifier};
use lockstep_types::EngineConfig;
use lockstep_types::step::{SlotOutput, StepPlan, StepResult};

use batch::{BatchBuffers, Drafted};
use digest::Digests;
use drafting::Drafting;
use emit::Emitter;
use outcome::Outcomes;
use slots::{RowPlan, Slots};

pub use error::{PlanError, WorkerError};
pub use limits::WorkerLimits;
pub use lockstep_model::WeightOrigin;
pub use plans::{Geometry, PlanRegistry, PreparedPlan};

/// One tensor-parallel rank. Every rank of a group takes the same plans in the
/// same order; results differ only in that rank 0's carries the outputs.
pub struct Worker<B: Backend> {
    config: EngineConfig,
    registry: DrafterRegistry<B>,
    backend: B,
    transformer: Transformer<B>,
    cache: B::KvCache,
    kv_bytes: usize,
    slots: Slots,
    plans: PlanRegistry,
    /// The step's rows.
    rows: Vec<RowPlan>,
    drafting: Drafting<B>,
    batch: BatchBuffers,
    sampler: Sampler,
    verifier: Verifier,
    outcomes: Outcomes,
    digests: Digests,
    last_step: u64,
    broken: bool,
}

impl<B: Backend + 'static> Worker<B> {
    /// Loads this rank's shard, allocates cache and buffers, prepares the
    /// plans and compares them with rank 0's. All ranks call it together.
    ///
    /// # Errors
    /// [`WorkerError`]: what is wrong with the model, the split, the memory or
    /// the group.
    pub fn load(
        config: &EngineConfig,
        rank: usize,
        backend: B,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, WorkerError> {
        Self::load_with(
            config,
            rank,
            backend,
            &DrafterRegistry::builtin(),
            None,
            progress,
        )
    }

    /// [`Self::load`], with the algorithms that speculation may name and the
    /// folder of packed weights that [`LoadOptions::cache`] says.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_with(
        config: &EngineConfig,
        rank: usize,
        mut backend: B,
        registry: &DrafterRegistry<B>,
        weight_cache: Option<&Path>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, WorkerError> {
        let size = config.parallel.tp_size;
        let found = backend.group(Axis::Tensor);
        if found != (rank, size) {
            return Err(WorkerError::Group { rank, size, found });
        }
        let limits = WorkerLimits::new(config);
        limits.check()?;
        let options = LoadOptions {
            axis: Axis::Tensor,
            limits: limits.forward(config),
            cache: weight_cache,
        };
        let (device, model) = (&mut backend, &config.model);
        let mut transformer = Transformer::load(device, model, options, progress)?;
        let drafting = Drafting::load(config, registry, device, &mut transformer, progress)?;
        agree::share_capture(device, &mut transformer, &drafting)?;
        let shape = transformer.kv_shape(config.kv.num_pages, config.kv.page_size, limits.kv_dtype);
        let cache = backend.kv_cache(&shape)?;
        let plans = PlanRegistry::prepare(&limits, &transformer.schedule());
        agree::compare_passes(&mut backend, plans.digest())?;
        Ok(Self {
            config: config.clone(),
            registry: registry.clone(),
            slots: Slots::new(&limits),
            batch: BatchBuffers::new(&limits),
            sampler: Sampler::new(config.model.vocab_size),
            verifier: Verifier::new(
                config.speculation.verification,
                config.model.vocab_size,
                limits.max_commit,
            ),
            outcomes: Outcomes::new(limits.requests, limits.max_commit),
            rows: Vec::with_capacity(limits.requests),
            drafting,
            digests: Digests::new(),
            last_step: 0,
            kv_bytes: shape.bytes_per_token() * config.kv.num_pages * config.kv.page_size,
            broken: false,
            backend,
            transformer,
            cache,
            plans,
        })
    }

    /// Runs one plan: closes, opens, one ragged batch, sampling on rank 0.
    ///
    /// # Errors
    /// [`WorkerError`]. The worker is unusable afterwards and says so: a plan
    /// that can't be followed means that scheduler and worker disagree.
    pub fn step(&mut self, plan: &StepPlan) -> Result<StepResult, WorkerError> {
        if self.broken {
            return Err(WorkerError::Broken);
        }
        let result = self.run(plan);
        self.broken = result.is_err();
        result
    }

    /// Rank and group size.
    pub fn group(&self) -> (usize, usize) {
        self.backend.group(Axis::Tensor)
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

    /// Texts that it drafts from, for whoever adds and removes them; `None`
    /// where it drafts otherwise, or on ranks that do not draft.
    pub fn corpora(&self) -> Option<&Corpora> {
        self.drafting.corpora()
    }

    /// What is prepared.
    pub fn plans(&self) -> &PlanRegistry {
        &self.plans
    }

    fn run(&mut self, plan: &StepPlan) -> Result<StepResult, WorkerError> {
        let begun = Instant::now();
        let invalid = |reason| WorkerError::Plan {
            step: plan.step,
            reason,
        };
        self.digests.plan(plan);
        self.take(plan).map_err(invalid)?;
        let (backend, target) = (&mut self.backend, &self.transformer);
        self.drafting
            .draft(backend, target, &self.slots, &self.rows, plan.draft_steps)?;
        self.lay_out().map_err(invalid)?;
        let prepared = self.plans.find(self.batch.geometry()).map_err(invalid)?;
        self.digests.world.word(prepared.digest);
        self.drafting.digest(&mut self.digests.tensor);
        let outputs = self.forward()?;
        self.settle()?;
        Ok(StepResult {
            step: plan.step,
            digests: self.digests.values(),
            outputs,
            forward_us: u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
        })
    }

    /// Brings the slots to where the plan wants them.
    fn take(&mut self, plan: &StepPlan) -> Result<(), PlanError> {
        let expected = self.last_step + 1;
        if plan.step != expected {
            return Err(PlanError::OutOfOrder { expected });
        }
        self.last_step = plan.step;
        for slot in &plan.closes {
            self.slots.close(*slot)?;
            self.drafting.close(*slot as usize, &self.slots);
        }
        for open in &plan.opens {
            self.slots.open(open)?;
            self.drafting.open(open.slot as usize, &self.slots);
        }
        self.rows.clear();
        for extend in &plan.extends {
            self.rows.push(self.slots.extend(plan.step, extend)?);
        }
        Ok(())
    }

    /// Lays the rows out as one batch, each with its drafts.
    fn lay_out(&mut self) -> Result<(), PlanError> {
        self.batch.clear();
        let mut decodes = 0;
        for row in &self.rows {
            let drafted = if row.decodes {
                decodes += 1;
                self.drafting.of(decodes - 1)
            } else {
                Drafted::NONE
            };
            self.batch.push(*row, &self.slots, drafted)?;
        }
        self.batch.seal(&self.slots)
    }

    /// Runs the batch and chooses tokens, on rank 0.
    fn forward(&mut self) -> Result<Vec<SlotOutput>, WorkerError> {
        let mut outputs = Vec::new();
        self.outcomes.clear();
        if self.backend.leads(Axis::Tensor) {
            outputs.extend(self.batch.outputs(&self.slots));
        }
        let mut emitter = Emitter {
            slots: &mut self.slots,
            uses: self.batch.uses(),
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
        let result =
            self.transformer
                .forward(&mut self.backend, &mut self.cache, &batch, &mut |block| {
                    emitter.take(block);
                });
        self.slots.return_tables(tables);
        result?;
        Ok(outputs)
    }

    /// Tells all ranks what was chosen, and slots and drafter what it means.
    fn settle(&mut self) -> Result<(), WorkerError> {
        let (backend, batch) = (&mut self.backend, &self.batch);
        self.outcomes.broadcast(backend, batch)?;
        self.outcomes.digest(&mut self.digests.tensor);
        self.outcomes
            .commit(backend, &mut self.cache, batch, &mut self.slots);
        let (target, slots) = (&self.transformer, &self.slots);
        self.drafting
            .extend(backend, target, slots, batch, &self.outcomes)
    }
}

#[cfg(test)]
mod tests;
