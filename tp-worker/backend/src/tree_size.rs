//! The size of a tree that a device drafts.

/// Most nodes that are generated of one tree, kept or not. Only the host grows larger trees.
pub const MOST_CANDIDATES: usize = 1024;

/// Growth of a tree on a device, equal to that of `lockstep_speculation::TreeGrower`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeSize {
    /// Number of levels, at least 1.
    pub steps: u32,
    /// Number of nodes that each level expands, and of children of each such node. At least 1,
    /// and at most the draft's number of tokens.
    pub branches: u32,
}

impl TreeSize {
    /// Returns the number of nodes that are generated. [`crate::DraftedRow::nodes`] of them are
    /// kept.
    pub fn candidates(self) -> usize {
        let (steps, branches) = (self.steps as usize, self.branches as usize);
        let later = steps.saturating_sub(1).saturating_mul(branches * branches);
        branches.saturating_add(later)
    }

    /// Returns the number of nodes that are expanded. Each takes a cell after the cells that
    /// the first pass wrote.
    pub fn expanded(self) -> usize {
        (self.steps as usize).saturating_sub(1) * self.branches as usize
    }
}
