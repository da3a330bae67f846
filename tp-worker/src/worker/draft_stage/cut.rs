//! Rows that draft less deep than their group agreed.

use lockstep_backend::Backend;
use lockstep_types::Verification;

use super::DraftStage;

impl<B: Backend> DraftStage<B> {
    /// Lets rows draft less deep than agreed if the rest is not worth its time. The other ranks
    /// see it from the drafts. The first step at a depth is not cut: it may be the only one,
    /// and it is to show that depth. A request that decodes alone on all DP ranks is not cut
    /// either, because the ranks' depth follows that request's drafts.
    pub(super) fn cut(&mut self) {
        let adapts = self.config.adaptive.is_some() && !self.fills_up;
        if self.drafter.is_none() || !adapts || self.decodes < 2 {
            return;
        }
        for row in &mut self.rows {
            let depth = self.own.depth(row.slot, row.steps);
            if depth < row.steps {
                let nodes = self.config.draft_tokens_at(depth).saturating_sub(1);
                (row.steps, row.most) = (depth, row.most.min(nodes));
            }
            row.may_stop = self.config.verification == Verification::Target;
        }
    }
}
