//! How large a tree is that a device drafts.

/// Nodes that are generated of one tree at the most, kept or not: those of larger trees
/// only the host grows.
pub const MOST_CANDIDATES: usize = 1024;

/// How a device grows a tree: as `lockstep_speculation::TreeGrower` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeSize {
    /// Levels, at least 1.
    pub steps: u32,
    /// Nodes expanded of each level, and children of each, at least 1 and at most the
    /// draft's tokens.
    pub branches: u32,
}

impl TreeSize {
    /// Nodes that are generated, of which as many are kept as
    /// [`crate::DraftedRow::nodes`] says.
    pub fn candidates(self) -> usize {
        let (steps, branches) = (self.steps as usize, self.branches as usize);
        let later = steps.saturating_sub(1).saturating_mul(branches * branches);
        branches.saturating_add(later)
    }

    /// Nodes that are expanded: each has a cell behind those that the first pass wrote.
    pub fn expanded(self) -> usize {
        (self.steps as usize).saturating_sub(1) * self.branches as usize
    }
}
