//! Handing the results of a pass to the drafter.

use lockstep_backend::Backend;
use lockstep_model::Transformer;
use lockstep_speculation::{Device, ExtendRow};

use super::DraftStage;
use crate::worker::{
    WorkerError,
    batch::BatchBuffers,
    outcome::Outcomes,
    slots::{RowTask, Slots},
};

impl<B: Backend> DraftStage<B> {
    /// Hands the results of the pass to the drafter, after slots have committed them.
    ///
    /// # Errors
    /// [`WorkerError::Draft`].
    pub fn extend(
        &mut self,
        backend: &mut B,
        target: &Transformer<B>,
        slots: &Slots,
        tasks: &[RowTask],
        batch: &BatchBuffers,
        outcomes: &Outcomes,
    ) -> Result<(), WorkerError> {
        let Some(drafter) = &mut self.drafter else {
            return Ok(());
        };
        self.extends.clear();
        self.feature_rows.clear();
        let rows = batch.rows().iter().zip(outcomes.of(tasks));
        for (task, (row, outcome)) in tasks.iter().zip(rows) {
            let from = self.feature_rows.len();
            self.feature_rows.extend(row.start..row.start + task.q_len);
            let accepted = outcome.path.iter().map(|node| row.start + node);
            self.feature_rows.extend(accepted);
            // Forced text is certain, so it tells nothing of the request's drafts.
            if task.decodes && task.forced == 0 {
                let proposed = task.draft_depth as usize;
                self.own.count(task.slot, proposed, outcome.path.len());
            }
            self.extends.push(ExtendRow {
                slot: task.slot,
                pages_start: slots.pages().start(task.slot) as u32,
                start: task.start as usize,
                features: from..self.feature_rows.len(),
                ends: task.sample,
            });
        }
        let mut device = Device {
            backend,
            tables: self.of_target.tables(target.tables()),
            features: target.features(),
            feature_rows: &self.feature_rows,
            pages: slots.pages().table(),
            requests: slots,
        };
        match self.paused {
            _ if self.extends.is_empty() => Ok(()),
            true => Ok(drafter.pause(&mut device, &self.extends)?),
            false => Ok(drafter.extend(&mut device, &self.extends)?),
        }
    }
}
