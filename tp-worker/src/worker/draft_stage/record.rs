//! Recording the drafter's passes on the device, before requests wait for it.

use lockstep_backend::Backend;
use lockstep_model::Transformer;
use lockstep_speculation::Device;

use super::DraftStage;
use crate::worker::{WorkerError, slots::Slots};

impl<B: Backend> DraftStage<B> {
    /// Makes the device record the drafter's passes. `each` is called with the number of passes
    /// that are left.
    ///
    /// # Errors
    /// [`WorkerError::Draft`].
    pub fn record(
        &mut self,
        backend: &mut B,
        target: &mut Transformer<B>,
        slots: &Slots,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), WorkerError> {
        let may_draft_on_device = self.may_draft_on_device(target);
        let Some(drafter) = &mut self.drafter else {
            return Ok(());
        };
        let mut device = Device {
            backend,
            tables: self.of_target.tables(target.tables()),
            features: None,
            feature_rows: &[],
            pages: slots.pages().table(),
            requests: slots,
        };
        drafter.record(&mut device, each)?;
        match drafter.on_device().filter(|_| may_draft_on_device) {
            Some(on_device) => Ok(target.record_drafts(backend, &mut |backend, staged| {
                let staged = self.of_target.whole(staged);
                on_device.record(backend, staged, each)
            })?),
            None => Ok(()),
        }
    }
}
