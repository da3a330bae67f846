//! Rows that draft less deep than their group agreed on.

use lockstep_backend::Backend;
use lockstep_types::Verification;

use super::DraftStage;

impl<B: Backend> DraftStage<B> {
    /// Lets rows draft less deep than agreed where the rest is not worth it, which
    /// the other ranks see from their drafts. Not in the first step at a depth,
    /// which may be the only one and is to show that depth; and not alone, on whichever
    /// DP rank: what becomes of one request's drafts is what the ranks' depth follows.
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
