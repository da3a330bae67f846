//! One step of a rank, from a plan to what it brought.

use std::time::Instant;

use lockstep_adaptive::Row;
use lockstep_backend::{Axis, Backend, Batch, ChainBatch, PassKey};
use lockstep_model::Staged;
use lockstep_speculation::{Node, PageTable};
use lockstep_types::step::{PlanPart, RankResult, SlotOutput, StageTimes, StepPlan};

use super::begun::Begun;
use super::draft_stage::ForPass;
use super::{
    PlanError, PreparedPass, Worker, WorkerError, emit::Emitter, faults::Fault,
    recorder::StepRecord,
};

impl<B: Backend + 'static> Worker<B> {
    /// Follows a plan.
    pub(super) fn run(&mut self, plan: &StepPlan) -> Result<RankResult, WorkerError> {
        self.faults.end_process(plan.step);
        let mut clock = StageClock::start();
        self.record = StepRecord {
            step: plan.step,
            depth: plan.draft_steps,
            ..StepRecord::default()
        };
        let invalid = |reason| WorkerError::Plan {
            step: plan.step,
            reason,
        };
        let part = self.part_of(plan).map_err(invalid)?;
        self.digests.plan(plan, part);
        self.take(plan.step, part).map_err(invalid)?;
        self.depth.begin(plan).map_err(invalid)?;
        if !self.data_parallel() && self.depth.adapts() {
            let row = self.row(plan, part);
            if !self.faults.strikes(plan.step, Fault::SkippedExchange) {
                self.rows.attach(&mut self.backend, &row)?;
            }
        }
        let depth = plan.draft_steps ^ self.faults.other_depth(plan.step);
        let decodes = plan.rows().filter(|row| row.prefill_len == 0);
        self.drafting.decodes = decodes.count();
        let (backend, target) = (&mut self.backend, &self.transformer);
        self.drafting
            .draft(backend, target, &self.slots, &self.tasks, depth)?;
        let draft_us = clock.stage_us();
        self.lay_out().map_err(invalid)?;
        self.drafting.digest(&mut self.digests.tensor);
        self.note_batch();
        let key = self.agree_on_pass(plan, part)?;
        let pass = self.passes.find(key).map_err(invalid)?;
        self.digests.world.word(pass.digest);
        self.agree_to_begin(plan.step, key, &pass)?;
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
        let decided = self.decide(plan);
        let seen = self.seen(plan, stages);
        self.depth.note(seen);
        (self.record.digests, self.record.times) = (self.digests.values(), stages);
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

    /// Whether DP ranks have requests of their own.
    fn data_parallel(&self) -> bool {
        self.config.parallel.dp_size > 1
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
        self.batch.seal(&self.tasks, &self.slots)?;
        self.choices.clear();
        if self.transformer.chooses() {
            let (tasks, slots, verifier) = (&self.tasks, &self.slots, &self.verifier);
            let drafts = self.drafting.drafts();
            self.choices
                .lay_out(&self.batch, tasks, slots, verifier, drafts);
        }
        self.drafting.address(&self.tasks);
        Ok(())
    }

    /// Notes what the batch is, for when something goes wrong with it.
    fn note_batch(&mut self) {
        let key = self.batch.key();
        self.record.requests = key.requests as u32;
        self.record.tokens = key.tokens as u32;
        self.record.longest = key.max_q_len as u32;
        self.record.wanted = self.batch.uses().len() as u32;
        self.record.digests = self.digests.values();
    }

    /// What this rank brings to the step. Ranks whose attention is data-parallel have
    /// other requests than their peers: these compare what all share, and the ranks of
    /// a DP rank the rest.
    fn row(&mut self, plan: &StepPlan, part: &PlanPart) -> Row {
        let StepRecord {
            requests,
            tokens,
            wanted,
            longest,
            ..
        } = self.record;
        let shared = match self.data_parallel() {
            true => self.digests.world,
            false => self.digests.tensor,
        };
        let leads = self.backend.leads(Axis::Attention);
        let mut row = Row {
            requests,
            tokens,
            wanted,
            longest,
            group_digest: self.digests.tensor.value(),
            ..self.depth.row(plan, part, leads, shared)
        };
        self.spoil(&mut row);
        row
    }

    /// What tests plant.
    fn spoil(&mut self, row: &mut Row) {
        let step = row.step;
        let strikes = |fault| self.faults.strikes(step, fault);
        self.faults.delay(step);
        let stale = strikes(Fault::StaleRow);
        row.depth ^= self.faults.other_depth(step);
        row.digest ^= u64::from(strikes(Fault::WorldDigest)) << 17;
        row.group_digest ^= u64::from(strikes(Fault::GroupDigest)) << 17;
        let current = std::mem::replace(&mut self.last_row, *row);
        if stale {
            *row = current;
        }
    }

    /// The size of the step's pass, which all ranks know alike before it begins. With
    /// data-parallel attention they tell each other; otherwise they have the same batch.
    fn agree_on_pass(&mut self, plan: &StepPlan, part: &PlanPart) -> Result<PassKey, WorkerError> {
        if !self.data_parallel() {
            return Ok(self.batch.key());
        }
        let row = self.row(plan, part);
        let verified = self
            .config
            .speculation
            .draft_tokens_at(plan.draft_steps as usize);
        let drafts = verified.saturating_sub(1) as u32;
        if self.faults.strikes(plan.step, Fault::SkippedExchange) {
            let dp_rank = self.config.parallel.dp_rank(self.group().0);
            self.rows.alone(dp_rank, &row);
        } else {
            self.rows.open(&mut self.backend, plan, &row, drafts)?;
        }
        let world = self.rows.world();
        for rows in [&world.tokens, &world.wanted] {
            let sum: usize = rows.iter().sum();
            self.digests.world.word(sum as u64);
        }
        Ok(self.rows.key())
    }

    /// Agrees with all ranks on what the step's pass is, where their data would not tell
    /// that they differ; what is attached travels with it.
    fn agree_to_begin(
        &mut self,
        step: u64,
        key: PassKey,
        pass: &PreparedPass,
    ) -> Result<(), WorkerError> {
        let idle = match self.data_parallel() {
            true => self.rows.world().tokens.iter().all(|tokens| *tokens == 0),
            false => key.tokens == 0,
        };
        if idle || self.group().1 == 1 || self.backend.words_ride_on_data() {
            return Ok(());
        }
        let shared = match self.data_parallel() {
            true => self.digests.world.value(),
            false => self.digests.tensor.value(),
        };
        let begun = Begun {
            step,
            shared: shared ^ u64::from(self.faults.strikes(step, Fault::Begun)),
            key,
            pass: pass.digest,
        };
        let control = self.backend.control(Axis::World);
        Ok(control.agree(&begun.to_words())?)
    }

    /// Runs the batch and chooses tokens, on the rank that leads.
    fn forward(&mut self) -> Result<Vec<SlotOutput>, WorkerError> {
        let mut outputs = Vec::new();
        self.outcomes.begin(self.batch.choices());
        if self.backend.leads(Axis::Attention) {
            outputs.reserve_exact(self.batch.reporting());
            outputs.extend(self.batch.outputs(&self.tasks, &self.slots));
        }
        let ForPass { drafts, mut chains } = self.drafting.for_pass();
        let mut emitter = Emitter {
            slots: &mut self.slots,
            tasks: &self.tasks,
            batch: &self.batch,
            choices: self.choices.batch(),
            drafts,
            sampler: &mut self.sampler,
            verifier: &mut self.verifier,
            outputs: &mut outputs,
            outcomes: &mut self.outcomes,
        };
        // The page tables are borrowed by the batch while the emitter changes
        // slots, so they are handed out for the pass.
        let tables = emitter.slots.lend_tables();
        let pages = PageTable {
            entries: &tables,
            page_size: self.config.kv.page_size as u32,
        };
        let laid_out = chains.as_ref().map(|own| (own.chains, own.requests));
        let first = laid_out.map(|(chains, _)| chains.batch(pages));
        let chain = first.as_ref().zip(laid_out);
        let batch = Batch {
            chain: chain.map(|(first, (_, requests))| ChainBatch { first, requests }),
            ..self.batch.batch(&tables, self.choices.batch())
        };
        let world = (self.config.parallel.dp_size > 1).then(|| self.rows.world());
        let (backend, cache) = (&mut self.backend, &mut self.cache);
        let mut draft = |backend: &mut B, staged: Staged<'_, B>| match &mut chains {
            Some(own) => own.drafter.run(backend, staged, own.chains),
            None => Ok(()),
        };
        let target = &mut self.transformer;
        let result = target.forward_into(backend, cache, &batch, world, &mut draft, &mut emitter);
        self.slots.return_tables(tables);
        result?;
        Ok(outputs)
    }

    /// Tells all ranks what was chosen, and the slots what it means.
    fn settle(&mut self) -> Result<(), WorkerError> {
        let (backend, cache) = (&mut self.backend, &mut self.cache);
        let (tasks, choices) = (&self.tasks, self.choices.batch());
        if self.drafting.know(tasks, &self.outcomes)? {
            self.drafting.digest(&mut self.digests.tensor);
        }
        self.outcomes.broadcast(backend)?;
        self.outcomes.digest(&mut self.digests.tensor);
        self.outcomes
            .commit(backend, cache, tasks, choices, &mut self.slots);
        Ok(())
    }

    /// Tells the drafter what was chosen.
    fn extend_drafts(&mut self) -> Result<(), WorkerError> {
        let (backend, target) = (&mut self.backend, &self.transformer);
        let (slots, tasks) = (&self.slots, &self.tasks);
        self.drafting
            .extend(backend, target, slots, tasks, &self.batch, &self.outcomes)
    }

    /// Decides, if the depth adapts and the rows have travelled: the depth of the step
    /// [`LAG`](lockstep_adaptive::LAG) after this one, and what its policy expects that
    /// it takes, in microseconds.
    fn decide(&mut self, plan: &StepPlan) -> Option<(u32, u32)> {
        if !self.depth.adapts() {
            return None;
        }
        let rows = self.rows.arrived(&mut self.backend)?;
        self.depth.decide(rows, plan)
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
