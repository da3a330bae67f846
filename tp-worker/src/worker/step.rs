//! One step of a rank, from a plan to its result.

use std::time::Instant;

use lockstep_adaptive::Seen;
use lockstep_backend::{Axis, Backend, Batch, ChainBatch};
use lockstep_model::Staged;
use lockstep_speculation::Node;
use lockstep_types::step::{PlanPart, RankResult, SlotOutput, StageTimes, StepPlan};

use super::draft_stage::PassDrafts;
use super::{
    PlanError, Worker, WorkerError,
    agreement::{Extent, Planned},
    choices::ChoiceRules,
    emit::Emitter,
};

impl<B: Backend + 'static> Worker<B> {
    /// Follows a plan.
    pub(super) fn run(&mut self, plan: &StepPlan) -> Result<RankResult, WorkerError> {
        self.agreement.faults.end_process(plan.step);
        let mut clock = StageClock::start();
        self.agreement.record_step(plan);
        let invalid = |reason| WorkerError::Plan {
            step: plan.step,
            reason,
        };
        let planned = self.planned(plan).map_err(invalid)?;
        self.agreement.digests.plan(plan, planned.part);
        self.take(plan.step, planned.part).map_err(invalid)?;
        self.restore_states()?;
        self.agreement.begin(plan).map_err(invalid)?;
        let (backend, target) = (&mut self.backend, &self.transformer);
        self.agreement.announce(planned, backend, target)?;
        let depth = plan.draft_steps ^ self.agreement.faults.other_depth(plan.step);
        let decodes = plan.rows().filter(|row| row.prefill_len == 0);
        self.drafting.decodes = decodes.count();
        self.drafting
            .draft(backend, target, &mut self.slots, &self.tasks, depth)?;
        let draft_us = clock.stage_us();
        self.lay_out().map_err(invalid)?;
        self.drafting.digest(&mut self.agreement.digests.tensor);
        let (agreement, own) = (&mut self.agreement, self.batch.key());
        agreement.note_batch(own, self.batch.uses().len());
        let (backend, target) = (&mut self.backend, &self.transformer);
        let extent = agreement.extent(planned, own, backend, target)?;
        let pass = self.passes.find(extent.key()).map_err(invalid)?;
        agreement.start_pass(planned, extent, &pass, backend, target)?;
        let outputs = self.forward(extent);
        let (backend, target) = (&mut self.backend, &self.transformer);
        let agreement = &mut self.agreement;
        let mut outputs = agreement.take_rows(planned, extent, outputs, backend, target)?;
        self.settle(&mut outputs)?;
        self.probe_states();
        let verify_us = clock.stage_us();
        let forward_us = clock.total_us();
        self.extend_drafts()?;
        let extend_us = clock.stage_us();
        let stages = self.stage_times(StageTimes {
            draft_us,
            verify_us,
            extend_us,
        })?;
        let with_pass = extent.carries_rows(&self.transformer);
        let decided = self.agreement.decide(plan, with_pass, &mut self.backend);
        let seen = self.seen(plan, stages);
        Ok(RankResult {
            step: plan.step,
            digests: self.agreement.end(seen, stages),
            outputs,
            forward_us,
            stages,
            agreed_depth: decided.map(|(depth, _)| depth),
            expected_us: decided.map_or(0, |(_, expected)| expected),
            constraints: self.constraints.take_work(),
        })
    }

    /// Returns the stage times that the host measured. The time in which the device drafted
    /// moves from the pass to drafting. A rank that was told the drafts during its pass returns
    /// zeros.
    fn stage_times(&mut self, mut seen: StageTimes) -> Result<StageTimes, WorkerError> {
        if self.drafting.are_told() {
            return Ok(StageTimes::default());
        }
        if let Some(device) = self.backend.drafter() {
            seen.count_as_drafting(device.clocked_us()?);
        }
        Ok(seen)
    }

    /// Returns a plan with the part of the rank's DP rank.
    fn planned<'a>(&self, plan: &'a StepPlan) -> Result<Planned<'a>, PlanError> {
        let (rank, _) = self.group();
        let dp_rank = self.config.parallel.dp_rank(rank);
        let parts = plan.parts.len();
        let part = plan.parts.get(dp_rank);
        let depth = plan.draft_steps as usize;
        let verified = self.config.speculation.draft_tokens_at(depth);
        Ok(Planned {
            plan,
            part: part.ok_or(PlanError::NoPart { parts, dp_rank })?,
            drafts: verified.saturating_sub(1) as u32,
        })
    }

    /// Returns the measurements of a step on this rank. Only a rank that verifies counts
    /// requests.
    pub(super) fn seen(&self, plan: &StepPlan, times: StageTimes) -> Seen {
        let prompts = self.tasks.iter().filter(|task| !task.decodes);
        let mut seen = Seen {
            depth: plan.draft_steps,
            tokens: self.batch.key().tokens as u32,
            prompt_tokens: prompts.map(|task| task.q_len).sum(),
            draft_us: times.draft_us,
            verify_us: times.verify_us,
            extend_us: times.extend_us,
            ..Seen::default()
        };
        if self.backend.leads(Axis::Attention) {
            let rows = self.tasks.iter().zip(self.outcomes.of(&self.tasks));
            for (task, outcome) in rows.filter(|(task, _)| task.decodes) {
                seen.decodes += 1;
                let accepted = outcome.path.len() as u32;
                match task.forced {
                    0 => seen.count(task.draft_depth, accepted),
                    _ => seen.count_forced(accepted),
                }
            }
        }
        seen
    }

    /// Closes, opens and extends the slots as the step's plan says.
    fn take(&mut self, step: u64, part: &PlanPart) -> Result<(), PlanError> {
        let expected = self.last_step + 1;
        if step != expected {
            return Err(PlanError::OutOfOrder { expected });
        }
        self.last_step = step;
        self.states.begin();
        for slot in &part.closes {
            self.slots.close(*slot)?;
            self.states.close(*slot);
            self.drafting.close(*slot as usize, &self.slots);
        }
        for open in &part.opens {
            self.slots.open(open)?;
            self.states.open(open)?;
            if self.backend.leads(Axis::Attention) {
                let slot = self.slots.get_mut(open.slot as usize);
                slot.constraint = self.constraints.open(open);
            }
            self.drafting.open(open.slot as usize, &self.slots);
        }
        self.tasks.clear();
        for extend in &part.extends {
            self.tasks.push(self.slots.extend(step, extend)?);
            self.states.extend(step, extend)?;
        }
        Ok(())
    }

    /// Copies the cached states from which the slots opened by the plan go on.
    fn restore_states(&mut self) -> Result<(), WorkerError> {
        match self.states.moves() {
            [] => Ok(()),
            moves => Ok(self.cache.copy_states(&mut self.backend, moves)?),
        }
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
                task.forced = self.drafting.forced(decodes);
                decodes += 1;
            }
            self.batch.push(task, &self.slots, nodes)?;
        }
        self.batch.seal(&self.tasks, &self.slots)?;
        let lengths = self.batch.rows().iter().map(|row| row.q_len);
        self.states.lay_out(&self.tasks, lengths);
        self.choices.clear();
        if self.transformer.chooses() {
            let (tasks, slots, batch) = (&self.tasks, &self.slots, &self.batch);
            let rules = ChoiceRules {
                verifier: &self.verifier,
                masks: self.masks.on_device(),
            };
            let drafts = self.drafting.drafts();
            self.choices.lay_out(batch, tasks, slots, rules, drafts);
        }
        let choices = self.choices.batch();
        self.masks
            .begin(&self.batch, &self.tasks, &self.slots, choices);
        self.drafting.address(&self.tasks);
        Ok(())
    }

    /// Runs the batch; the lead also chooses tokens.
    fn forward(&mut self, extent: Extent) -> Result<Vec<SlotOutput>, WorkerError> {
        let mut outputs = Vec::new();
        self.outcomes.begin(self.batch.choices());
        if self.backend.leads(Axis::Attention) {
            outputs.reserve_exact(self.batch.reporting());
            outputs.extend(self.batch.outputs(&self.tasks, &self.slots));
        }
        let PassDrafts {
            drafts,
            mut chains,
            told,
        } = self.drafting.for_pass();
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
            masks: &mut self.masks,
            constraints: &mut self.constraints.work,
        };
        // The batch borrows the page tables while the emitter changes slots, so the tables are
        // handed out for the pass.
        let tables = emitter.slots.lend_tables();
        let pages = emitter.slots.pages().table_in(&tables);
        let laid_out = chains.as_ref().map(|own| (own.chains, own.requests));
        let first = laid_out.map(|(chains, _)| chains.batch(pages));
        let chain = first.as_ref().zip(laid_out);
        let states = self.states.batch();
        let batch = Batch {
            states: states.rows,
            replays: states.replays,
            keeps: states.keeps,
            chain: chain.map(|(first, (chains, requests))| ChainBatch {
                first,
                requests,
                sources: chains.sources(),
                trees: chains.trees(),
            }),
            told,
            ..self.batch.batch(&tables, self.choices.batch())
        };
        let world = extent.world(self.agreement.world());
        let (backend, cache) = (&mut self.backend, &mut self.cache);
        let mut draft = |backend: &mut B, staged: Staged<'_, B>| match &mut chains {
            Some(own) => own.run(backend, staged),
            None => Ok(()),
        };
        let target = &mut self.transformer;
        let result = target.forward_into(backend, cache, &batch, world, &mut draft, &mut emitter);
        self.slots.return_tables(tables);
        result?;
        Ok(outputs)
    }

    /// Tells all ranks the chosen tokens, and commits them to the slots.
    fn settle(&mut self, outputs: &mut [SlotOutput]) -> Result<(), WorkerError> {
        let (backend, cache) = (&mut self.backend, &mut self.cache);
        if self.drafting.know(&mut self.tasks, &self.outcomes)? {
            self.drafting.digest(&mut self.agreement.digests.tensor);
            for task in &self.tasks {
                let output = task.output.and_then(|output| outputs.get_mut(output));
                if let Some(output) = output {
                    output.draft_depth = task.draft_depth;
                }
            }
        }
        let (tasks, choices) = (&self.tasks, self.choices.batch());
        self.outcomes.broadcast(backend, choices)?;
        self.outcomes.digest(&mut self.agreement.digests.tensor);
        self.outcomes
            .commit(backend, cache, tasks, choices, &mut self.slots);
        self.states.commit(tasks, self.outcomes.of(tasks));
        Ok(())
    }

    /// Tells the drafter the chosen tokens.
    fn extend_drafts(&mut self) -> Result<(), WorkerError> {
        let (backend, target) = (&mut self.backend, &self.transformer);
        let (slots, tasks) = (&self.slots, &self.tasks);
        self.drafting
            .extend(backend, target, slots, tasks, &self.batch, &self.outcomes)
    }
}

/// Measures the parts of a step's time. The times are reported, and never decide anything on
/// this rank alone.
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

    /// Returns the microseconds since the last call, or since the start.
    fn stage_us(&mut self) -> u32 {
        let before = std::mem::replace(&mut self.stage, Instant::now());
        let spent = self.stage.duration_since(before).as_micros();
        u32::try_from(spent).unwrap_or(u32::MAX)
    }

    /// Returns the microseconds since the start.
    fn total_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
