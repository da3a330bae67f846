//! A planted mistake, for tests of sizes that have to see it.

use super::SpeculationConfig;

impl SpeculationConfig {
    /// Sizes everything by the depth of the first steps instead of the deepest tier: the
    /// mistake that sgl-project/sglang#26354 corrects.
    pub fn size_by_first_tier(&mut self) {
        let depth = self.initial_depth() as usize;
        let tokens = self.draft_tokens_at(depth);
        self.num_steps = depth;
        self.num_draft_tokens = tokens;
        self.max_speculative_num_draft_tokens = tokens;
    }
}
