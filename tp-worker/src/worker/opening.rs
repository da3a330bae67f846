//! The words that ranks tell each other, and agree on, before a step's pass.

use lockstep_adaptive::Row;
use lockstep_backend::{Axis, Backend};
use lockstep_model::ModelError;
use lockstep_types::step::{PlanPart, StepPlan};

use super::pass_start::PassStart;
use super::{
    PreparedPass, Worker, WorkerError, extent::Extent, faults::Fault, recorder::StepRecord,
};

impl<B: Backend + 'static> Worker<B> {
    /// Returns true if DP ranks have requests of their own.
    pub(super) fn data_parallel(&self) -> bool {
        self.config.parallel.dp_size > 1
    }

    /// Returns the most drafts of a row that decodes.
    fn most_drafts(&self, plan: &StepPlan) -> u32 {
        let depth = plan.draft_steps as usize;
        let verified = self.config.speculation.draft_tokens_at(depth);
        verified.saturating_sub(1) as u32
    }

    /// Returns the row that this rank brings to the step. With data-parallel attention DP ranks
    /// have different requests. So all ranks compare the digest that they share, and the ranks
    /// of a DP rank compare the rest.
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

    /// Makes the row wrong where tests have planted a fault.
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

    /// Returns the size of the step's pass; all ranks know it before the pass begins. Without
    /// data-parallel attention all ranks have the same batch. With it, if all rows of the plan
    /// decode, the plan gives a bound, and a recorded pass that holds it is repeated. Otherwise
    /// the ranks tell each other their sizes.
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

    /// Agrees with all ranks on the step's pass, if the data of the pass would not show that
    /// ranks differ. Attached rows travel with this agreement.
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
        let begun = PassStart {
            step: plan.step,
            depth: plan.draft_steps ^ self.faults.other_depth(plan.step),
            shared: shared ^ u64::from(self.faults.strikes(plan.step, Fault::PassStart)),
            key: extent.key(),
            pass: pass.digest,
            keeps: self.transformer.keeps_passes(&self.backend),
        };
        let control = self.backend.control(Axis::World);
        Ok(control.agree(&begun.to_words())?)
    }

    /// Tells all ranks what this rank begins, with the first words that the ranks exchange. It
    /// does so where the depth adapts and all ranks have the same batch. Ranks that differ then
    /// learn it before they draft differently. Where rows travel with the pass, only the shared
    /// part is told here, and the whole row comes later.
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

    /// Makes the pass carry this rank's row, where rows travel with passes.
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

    /// Returns true if the rows of a step of that size travel with its pass.
    pub(super) fn rows_travel_with(&self, extent: Extent) -> bool {
        self.transformer.takes_notes() && !matches!(extent, Extent::Counted(_))
    }

    /// Takes the rows that came with a pass. `found` is the result of the pass.
    ///
    /// # Errors
    /// [`WorkerError::RowsDiffer`] or [`WorkerError::GroupRowsDiffer`] if the devices found
    /// that rows differ; the errors of [`StepRows::check`](super::rows::StepRows::check).
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
