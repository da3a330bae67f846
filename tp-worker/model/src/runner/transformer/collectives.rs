//! Which collectives a transformer's passes issue.

use lockstep_backend::{Backend, PassKey, PassPlan, PassRecords as _};

use super::Transformer;
use crate::Schedule;

impl<B: Backend> Transformer<B> {
    /// The collectives of a pass. Equal on all ranks.
    pub fn schedule(&self) -> Schedule {
        Schedule::new(
            &self.model,
            self.shard.topology,
            self.context.axis,
            self.keeps_last_hidden(),
            self.limits.logit_block_rows,
        )
    }

    /// No passes yet, of which the device will repeat some: with what these exchange.
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

    /// What passes that the device repeats will exchange, by the model's schedule.
    pub fn planned_exchanges(&self) -> &[PassPlan] {
        self.passes.plans()
    }

    /// What those that it has recorded do exchange, as it noted meanwhile.
    pub fn noted_exchanges(&self) -> Vec<PassPlan> {
        self.passes.noted()
    }
}
