//! The words that ranks tell each other, and agree on, before a step's pass.

use lockstep_adaptive::Row;
use lockstep_backend::{Axis, Backend, PassKey};
use lockstep_model::{ModelError, Transformer};
use lockstep_types::step::StepPlan;

use super::recorder::StepRecord;
use super::{Agreement, Extent, Planned};
use crate::worker::faults::Fault;
use crate::worker::pass_start::PassStart;
use crate::worker::{PreparedPass, WorkerError};

impl Agreement {
    /// Returns the row that this rank brings to the step. With data-parallel attention DP ranks
    /// have different requests. So all ranks compare the digest that they share, and the ranks
    /// of a DP rank compare the rest.
    fn row<B: Backend>(&mut self, planned: Planned<'_>, backend: &B) -> Row {
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
        let leads = backend.leads(Axis::Attention);
        let mut row = Row {
            requests,
            tokens,
            wanted,
            longest,
            group_digest: self.digests.tensor.value(),
            ..self.depth.row(planned.plan, planned.part, leads, shared)
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

    /// Announces this rank's step to all ranks, with the first words that the ranks exchange. If
    /// ranks differ, they learn it before they draft differently. Without an adaptive depth, or
    /// with several DP ranks, nothing is announced. If rows travel with the pass, only their
    /// shared part is announced, and the whole row comes later.
    ///
    /// # Errors
    /// [`WorkerError::Backend`] when the group is broken.
    pub fn announce<B: Backend>(
        &mut self,
        planned: Planned<'_>,
        backend: &mut B,
        target: &Transformer<B>,
    ) -> Result<(), WorkerError> {
        if self.data_parallel() || !self.depth.adapts() {
            return Ok(());
        }
        let Planned { plan, part, .. } = planned;
        if target.takes_notes() {
            let mut row = self.depth.row(plan, part, false, self.digests.tensor);
            row.depth ^= self.faults.other_depth(plan.step);
            return self.rows.attach_shared(backend, &row);
        }
        let row = self.row(planned, backend);
        match self.faults.strikes(plan.step, Fault::SkippedExchange) {
            true => Ok(()),
            false => self.rows.attach(backend, &row),
        }
    }

    /// Returns the size of the step's pass; all ranks know it before the pass begins. Without
    /// data-parallel attention all ranks have the same batch, of size `own`. With it, if all
    /// rows of the plan decode, the plan gives a bound, and a recorded pass that holds it is
    /// repeated. Otherwise the ranks tell each other their sizes.
    ///
    /// # Errors
    /// [`WorkerError`] if the group is broken, or if ranks differ.
    pub fn extent<B: Backend>(
        &mut self,
        planned: Planned<'_>,
        own: PassKey,
        backend: &mut B,
        target: &Transformer<B>,
    ) -> Result<Extent, WorkerError> {
        if !self.data_parallel() {
            return Ok(Extent::Own(own));
        }
        let row = self.row(planned, backend);
        self.rows.own = row;
        let Planned { plan, drafts, .. } = planned;
        let skips = self.faults.strikes(plan.step, Fault::SkippedExchange);
        let padded = Extent::padded(plan, drafts, |most| target.repeats(backend, most));
        if let Some(extent) = padded {
            self.digests.world.word(extent.tokens() as u64);
            return Ok(extent);
        }
        if skips {
            self.rows.alone(self.dp_rank, &row);
        } else {
            self.rows.open(backend, &row)?;
            self.rows.check(plan, drafts)?;
        }
        let world = self.rows.world();
        for rows in [&world.tokens, &world.wanted] {
            let sum: usize = rows.iter().sum();
            self.digests.world.word(sum as u64);
        }
        Ok(Extent::Counted(self.rows.key()))
    }

    /// Agrees with all ranks on the prepared pass, and makes it carry this rank's row.
    ///
    /// # Errors
    /// [`WorkerError::Backend`] if ranks are about to begin different passes, or when a peer is
    /// gone.
    pub fn start_pass<B: Backend>(
        &mut self,
        planned: Planned<'_>,
        extent: Extent,
        pass: &PreparedPass,
        backend: &mut B,
        target: &Transformer<B>,
    ) -> Result<(), WorkerError> {
        self.digests.world.word(pass.digest);
        self.compare_starts(planned, extent, pass, backend, target)?;
        self.bring_row(planned, backend, target)
    }

    /// Compares the start of a pass on all ranks, if the data of the pass would not show that
    /// ranks differ. Attached rows travel with this comparison.
    fn compare_starts<B: Backend>(
        &self,
        planned: Planned<'_>,
        extent: Extent,
        pass: &PreparedPass,
        backend: &mut B,
        target: &Transformer<B>,
    ) -> Result<(), WorkerError> {
        let idle = match extent {
            Extent::Counted(_) => self.rows.world().tokens.iter().all(|tokens| *tokens == 0),
            Extent::Own(key) | Extent::Padded { most: key, .. } => key.tokens == 0,
        };
        if idle || backend.group(Axis::World).1 == 1 || backend.words_ride_on_data() {
            return Ok(());
        }
        let shared = match self.data_parallel() {
            true => self.digests.world.value(),
            false => self.digests.tensor.value(),
        };
        let StepPlan {
            step, draft_steps, ..
        } = *planned.plan;
        let started = PassStart {
            step,
            depth: draft_steps ^ self.faults.other_depth(step),
            shared: shared ^ u64::from(self.faults.strikes(step, Fault::PassStart)),
            key: extent.key(),
            pass: pass.digest,
            keeps: target.keeps_passes(backend),
        };
        let control = backend.control(Axis::World);
        Ok(control.agree(&started.to_words())?)
    }

    /// Makes the pass carry this rank's row, where rows travel with passes.
    fn bring_row<B: Backend>(
        &mut self,
        planned: Planned<'_>,
        backend: &mut B,
        target: &Transformer<B>,
    ) -> Result<(), WorkerError> {
        if !target.takes_notes() {
            return Ok(());
        }
        if !self.data_parallel() {
            self.rows.own = self.row(planned, backend);
        }
        let skips = self
            .faults
            .strikes(planned.plan.step, Fault::SkippedExchange);
        match backend.notes() {
            Some(notes) if !skips => Ok(notes.bring(&self.rows.own.to_words())?),
            _ => Ok(()),
        }
    }

    /// Takes the rows that came with a pass. `found` is the result of the pass.
    ///
    /// # Errors
    /// [`WorkerError::RowsDiffer`] or [`WorkerError::GroupRowsDiffer`] if the devices found
    /// that rows differ; [`WorkerError::Plan`] if a DP rank brought more than its plan allows.
    pub fn take_rows<B: Backend, T>(
        &mut self,
        planned: Planned<'_>,
        extent: Extent,
        found: Result<T, WorkerError>,
        backend: &mut B,
        target: &Transformer<B>,
    ) -> Result<T, WorkerError> {
        let differ = matches!(&found, Err(WorkerError::Model(ModelError::NotesDiffer)));
        let came = found.is_ok() && extent.carries_rows(target) && extent.tokens() > 0;
        if differ || came {
            self.rows.take(target.notes(backend).words);
        }
        if differ && let Some(error) = self.rows.difference() {
            return Err(error);
        }
        if came && let Extent::Padded { .. } = extent {
            self.rows.check(planned.plan, planned.drafts)?;
        }
        found
    }
}
