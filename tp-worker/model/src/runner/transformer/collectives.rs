//! Collectives that a transformer's passes issue.

use lockstep_backend::{Backend, PassKey, PassPlan, PassRecords as _};

use super::Transformer;
use crate::Schedule;

impl<B: Backend> Transformer<B> {
    /// Returns the collectives of a pass, equal on all ranks.
    pub fn schedule(&self) -> Schedule {
        let (topology, axis, exit) = (self.shard.topology, self.context.axis, self.exit());
        let rows = self.limits.logit_block_rows;
        let schedule = Schedule::new(&self.model, topology, axis, exit, rows);
        match self.buffers.layer.adapters {
            None => schedule,
            Some(_) => schedule.with_adapters(topology, axis, exit),
        }
    }

    /// Returns an empty set of passes, and plans the exchanges of the passes that the device
    /// will repeat.
    pub(super) fn fresh_passes(&self, backend: &B) -> B::Passes {
        let (schedule, topology) = (self.schedule(), self.shard.topology);
        let plan = |key: PassKey| PassPlan {
            key,
            exchanges: self
                .noted_words()
                .chain(self.drafted_words(key))
                .chain(schedule.exchanges(topology, key.tokens, backend.operand()))
                .chain(self.chosen_exchanges(key))
                .collect(),
        };
        let sizes = backend.repeated(&self.inputs);
        B::Passes::planned(sizes.into_iter().map(plan).collect())
    }

    /// Exchanges of the passes that the device will repeat, planned from the model's
    /// schedule.
    pub fn planned_exchanges(&self) -> &[PassPlan] {
        self.passes.plans()
    }

    /// Exchanges of the recorded passes, as the device noted them while it recorded.
    pub fn noted_exchanges(&self) -> Vec<PassPlan> {
        self.passes.noted()
    }
}
