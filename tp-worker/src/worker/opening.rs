//! What ranks tell each other, and agree on, before a step's pass.

use lockstep_adaptive::Row;
use lockstep_backend::{Axis, Backend};
use lockstep_model::ModelError;
use lockstep_types::step::{PlanPart, StepPlan};

use super::begun::Begun;
use super::{
    PreparedPass, Worker, WorkerError, extent::Extent, faults::Fault, recorder::StepRecord,
};

impl<B: Backend + 'static> Worker<B> {
    /// Whether DP ranks have requests of their own.
    pub(super) fn data_parallel(&self) -> bool {
        self.config.parallel.dp_size > 1
    }

    /// Drafts of a row that decodes, at the most.
    fn most_drafts(&self, plan: &StepPlan) -> u32 {
        let depth = plan.draft_steps as usize;
        let verified = self.config.speculation.draft_tokens_at(depth);
        verified.saturating_sub(1) as u32
    }

    /// What this rank brings to the step. Ranks whose attention is data-parallel have
    /// other requests than their peers: these compare what all share, and the ranks of
    /// a DP rank the rest.
    pub(super) fn row(&mut self, plan: &StepPlan, part: &PlanPart) -> Row {
        let StepRecord {
            requests,
            tokens,
            wanted,
            longest,
            ..
        } = match self.data_parallel() {
            true => self.record,
            false => StepRecord::default(),
        };
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
        let current = std::mem::replace(&mut self.rows.last, *row);
        if stale {
            *row = current;
        }
    }

    /// How large the step's pass is, which all ranks know alike before it begins. Without
    /// data-parallel attention they have the same batch. With it the plan tells where all
    /// rows decode, so that a recorded pass holds whatever comes of it; and otherwise they
    /// tell each other.
    pub(super) fn agree_on_extent(
        &mut self,
        plan: &StepPlan,
        part: &PlanPart,
    ) -> Result<Extent, WorkerError> {
        if !self.data_parallel() {
            return Ok(Extent::Own(self.batch.key()));
        }
        let row = self.row(plan, part);
        self.rows.own = row;
        let skips = self.faults.strikes(plan.step, Fault::SkippedExchange);
        let padded = Extent::padded(plan, self.most_drafts(plan), |most| {
            self.transformer.repeats(&self.backend, most)
        });
        if let Some(extent) = padded {
            self.digests.world.word(extent.tokens() as u64);
            return Ok(extent);
        }
        if skips {
            let dp_rank = self.config.parallel.dp_rank(self.group().0);
            self.rows.alone(dp_rank, &row);
        } else {
            self.rows.open(&mut self.backend, &row)?;
            self.rows.check(plan, self.most_drafts(plan))?;
        }
        let world = self.rows.world();
        for rows in [&world.tokens, &world.wanted] {
            let sum: usize = rows.iter().sum();
            self.digests.world.word(sum as u64);
        }
        Ok(Extent::Counted(self.rows.key()))
    }

    /// Agrees with all ranks on what the step's pass is, where their data would not tell
    /// that they differ; what is attached travels with it.
    pub(super) fn agree_to_begin(
        &mut self,
        plan: &StepPlan,
        extent: Extent,
        pass: &PreparedPass,
    ) -> Result<(), WorkerError> {
        let idle = match extent {
            Extent::Counted(_) => self.rows.world().tokens.iter().all(|tokens| *tokens == 0),
            Extent::Own(key) | Extent::Padded { most: key, .. } => key.tokens == 0,
        };
        if idle || self.group().1 == 1 || self.backend.words_ride_on_data() {
            return Ok(());
        }
        let shared = match self.data_parallel() {
            true => self.digests.world.value(),
            false => self.digests.tensor.value(),
        };
        let begun = Begun {
            step: plan.step,
            depth: plan.draft_steps ^ self.faults.other_depth(plan.step),
            shared: shared ^ u64::from(self.faults.strikes(plan.step, Fault::Begun)),
            key: extent.key(),
            pass: pass.digest,
            keeps: self.transformer.keeps_passes(&self.backend),
        };
        let control = self.backend.control(Axis::World);
        Ok(control.agree(&begun.to_words())?)
    }

    /// Tells all ranks what it begins, with the first words that they exchange: where the
    /// depth adapts and all have the same batch, so that ranks that differ learn it before
    /// they draft differently. Rows that travel with the pass come later whole.
    pub(super) fn announce(&mut self, plan: &StepPlan, part: &PlanPart) -> Result<(), WorkerError> {
        if self.data_parallel() || !self.depth.adapts() {
            return Ok(());
        }
        if self.transformer.takes_notes() {
            let mut row = self.depth.row(plan, part, false, self.digests.tensor);
            row.depth ^= self.faults.other_depth(plan.step);
            return self.rows.attach_shared(&mut self.backend, &row);
        }
        let row = self.row(plan, part);
        match self.faults.strikes(plan.step, Fault::SkippedExchange) {
            true => Ok(()),
            false => self.rows.attach(&mut self.backend, &row),
        }
    }

    /// Has the pass take this rank's row along, where rows travel so.
    pub(super) fn bring_row(
        &mut self,
        plan: &StepPlan,
        part: &PlanPart,
    ) -> Result<(), WorkerError> {
        if !self.transformer.takes_notes() {
            return Ok(());
        }
        if !self.data_parallel() {
            self.rows.own = self.row(plan, part);
        }
        let skips = self.faults.strikes(plan.step, Fault::SkippedExchange);
        match self.backend.notes() {
            Some(notes) if !skips => Ok(notes.bring(&self.rows.own.to_words())?),
            _ => Ok(()),
        }
    }

    /// Whether the rows of a step of that size travel with its pass.
    pub(super) fn rows_travel_with(&self, extent: Extent) -> bool {
        self.transformer.takes_notes() && !matches!(extent, Extent::Counted(_))
    }

    /// Takes the rows that came with a pass, beside what was `found` by it.
    ///
    /// # Errors
    /// [`WorkerError::RowsDiffer`] or [`WorkerError::GroupRowsDiffer`] where the devices
    /// found that they differ; those of [`StepRows::check`](super::rows::StepRows::check).
    pub(super) fn take_rows<T>(
        &mut self,
        plan: &StepPlan,
        extent: Extent,
        found: Result<T, WorkerError>,
    ) -> Result<T, WorkerError> {
        let differ = matches!(&found, Err(WorkerError::Model(ModelError::NotesDiffer)));
        let came = found.is_ok() && self.rows_travel_with(extent) && extent.tokens() > 0;
        if differ || came {
            let notes = self.transformer.notes(&mut self.backend);
            self.rows.take(notes.words);
        }
        if differ && let Some(error) = self.rows.difference() {
            return Err(error);
        }
        if came && let Extent::Padded { .. } = extent {
            self.rows.check(plan, self.most_drafts(plan))?;
        }
        found
    }
}
