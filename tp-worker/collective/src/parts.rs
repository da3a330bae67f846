//! The elements that ranks sent in a transfer, read in place.

/// Most ranks of a group.
pub(crate) const MAX_RANKS: usize = 64;

/// One slice per rank. Borrowed from the group, so it is gone before the group's next
/// operation.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    parts: [&'a [f32]; MAX_RANKS],
    ranks: usize,
}

impl<'a> Parts<'a> {
    /// Makes parts of the slices `part(0)` … `part(ranks - 1)`.
    ///
    /// # Panics
    /// Panics beyond 64 ranks, which no group has.
    #[must_use]
    pub fn new(ranks: usize, mut part: impl FnMut(usize) -> &'a [f32]) -> Self {
        let mut parts: [&[f32]; MAX_RANKS] = [&[]; MAX_RANKS];
        for (rank, slot) in parts[..ranks].iter_mut().enumerate() {
            *slot = part(rank);
        }
        Self { parts, ranks }
    }

    /// Returns the slices, by rank.
    #[must_use]
    pub fn by_rank(&self) -> &[&'a [f32]] {
        &self.parts[..self.ranks]
    }
}
