//! Which collectives a transformer's passes issue.

use lockstep_backend::Backend;

use super::Transformer;
use crate::Schedule;

impl<B: Backend> Transformer<B> {
    /// The collectives of a pass. Equal on all ranks.
    pub fn schedule(&self) -> Schedule {
        Schedule::new(
            &self.model,
            self.shard.topology,
            self.shape.axis,
            self.keeps_last_hidden(),
            self.limits.logit_block_rows,
        )
    }
}
