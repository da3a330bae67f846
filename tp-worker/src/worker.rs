//! One rank: weights, cache, slots and sampler behind `step`.

mod batch;
mod cpu;
mod digest;
mod emit;
mod error;
mod limits;
pub mod local;
mod pages;
mod plans;
mod slots;

use std::{path::Path, time::Instant};

use lockstep_backend::Backend;
use lockstep_config::EngineConfig;
use lockstep_model::{LoadProgress, Transformer};
use lockstep_proto::step::{SlotOutput, StepPlan, StepResult};
use lockstep_sampling::Sampler;

use batch::BatchBuffers;
use digest::Digest;
use emit::{Emitter, FAILED};
use slots::Slots;

pub use cpu::cpu_backend;
pub use error::{PlanError, WorkerError};
pub use limits::WorkerLimits;
pub use lockstep_model::WeightOrigin;
pub use plans::{Geometry, PlanRegistry, PreparedPlan};

/// One tensor-parallel rank. Every rank of a group takes the same plans in the
/// same order; results differ only in that rank 0's carries the outputs.
pub struct Worker<B: Backend> {
    backend: B,
    transformer: Transformer<B>,
    cache: B::KvCache,
    kv_bytes: usize,
    slots: Slots,
    plans: PlanRegistry,
    batch: BatchBuffers,
    sampler: Sampler,
    /// Tokens sampled in a step, in row order.
    sampled: Vec<u32>,
    digest: Digest,
    last_step: u64,
    broken: bool,
}

impl<B: Backend> Worker<B> {
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
        Self::load_cached(config, rank, backend, None, progress)
    }

    /// [`Self::load`], with the folder of packed weights that
    /// [`Transformer::load_cached`] reads and fills.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_cached(
        config: &EngineConfig,
        rank: usize,
        mut backend: B,
        weight_cache: Option<&Path>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, WorkerError> {
        let size = config.parallel.tp_size;
        if backend.group() != (rank, size) {
            return Err(WorkerError::Group {
                rank,
                size,
                found: backend.group(),
            });
        }
        let limits = WorkerLimits::new(config);
        limits.check()?;
        let forward = limits.forward(config);
        let (device, model) = (&mut backend, &config.model);
        let transformer = Transformer::load_cached(device, model, forward, weight_cache, progress)?;
        let shape = transformer.kv_shape(config.kv.num_pages, config.kv.page_size, limits.kv_dtype);
        let cache = backend.kv_cache(&shape)?;
        let plans = PlanRegistry::prepare(&limits, &transformer.schedule());
        compare_plans(&mut backend, rank, &plans)?;
        Ok(Self {
            slots: Slots::new(&limits),
            batch: BatchBuffers::new(&limits),
            sampler: Sampler::new(config.model.vocab_size),
            sampled: Vec::with_capacity(limits.requests),
            digest: Digest::new(),
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
        self.backend.group()
    }

    /// The backend in words, for people.
    pub fn describe(&self) -> String {
        self.backend.describe()
    }

    /// Where the weights came from.
    pub fn weight_origin(&self) -> &WeightOrigin {
        self.transformer.weight_origin()
    }

    /// Bytes of packed weights.
    pub fn weight_bytes(&self) -> usize {
        self.transformer.weight_bytes(&self.backend)
    }

    /// Bytes of the KV cache when it is full.
    pub fn kv_bytes(&self) -> usize {
        self.kv_bytes
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
        self.take(plan).map_err(invalid)?;
        let prepared = self.plans.find(self.batch.geometry()).map_err(invalid)?;
        self.digest.plan(plan);
        self.digest.word(prepared.digest);
        let outputs = self.forward()?;
        Ok(StepResult {
            step: plan.step,
            digest: self.digest.value(),
            outputs,
            forward_us: u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
        })
    }

    /// Brings the slots to where the plan wants them and lays out its batch.
    fn take(&mut self, plan: &StepPlan) -> Result<(), PlanError> {
        let expected = self.last_step + 1;
        if plan.step != expected {
            return Err(PlanError::OutOfOrder { expected });
        }
        self.last_step = plan.step;
        for slot in &plan.closes {
            self.slots.close(*slot)?;
        }
        for open in &plan.opens {
            self.slots.open(open)?;
        }
        self.batch.clear();
        for extend in &plan.extends {
            let row = self.slots.extend(plan.step, extend)?;
            self.batch.push(row, &self.slots)?;
        }
        self.batch.seal(&self.slots)
    }

    /// Runs the batch, samples, and tells every slot its token.
    fn forward(&mut self) -> Result<Vec<SlotOutput>, WorkerError> {
        let mut outputs = Vec::new();
        self.sampled.clear();
        if self.backend.group().0 == 0 {
            outputs.extend(self.batch.outputs(&self.slots));
        }
        let mut emitter = Emitter {
            slots: &mut self.slots,
            uses: self.batch.uses(),
            sampler: &mut self.sampler,
            outputs: &mut outputs,
            sampled: &mut self.sampled,
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
        self.sampled.resize(self.batch.samples(), FAILED);
        if !self.sampled.is_empty() {
            self.backend.broadcast_tokens(&mut self.sampled)?;
        }
        for token in &self.sampled {
            self.digest.word(u64::from(*token));
        }
        self.batch.commit(&mut self.slots, &self.sampled);
        Ok(outputs)
    }
}

/// Every rank's prepared plans must be rank 0's.
fn compare_plans<B: Backend>(
    backend: &mut B,
    rank: usize,
    plans: &PlanRegistry,
) -> Result<(), WorkerError> {
    let ours = plans.digest();
    let mut words = [ours as u32, (ours >> 32) as u32];
    backend.broadcast_tokens(&mut words)?;
    let theirs = u64::from(words[0]) | u64::from(words[1]) << 32;
    if ours == theirs {
        return Ok(());
    }
    Err(WorkerError::PlansDiffer { rank, ours, theirs })
}

#[cfg(test)]
mod tests;
