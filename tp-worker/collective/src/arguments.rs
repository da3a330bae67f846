//! Checks of a caller's buffers, for every transport.

use std::ops::Range;

use crate::attachment::Attachment;
use crate::{ATTACHED_WORDS, CollectiveError, Owners};

/// The rank that checks, in a group of `size`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments {
    /// The rank's number in the group.
    pub rank: usize,
    pub size: usize,
    /// The rank's number in errors: its number in the first group.
    pub name: usize,
}

impl Arguments {
    /// Checks that `root` is a rank.
    pub fn root(self, root: usize) -> Result<(), CollectiveError> {
        if root < self.size {
            return Ok(());
        }
        Err(self.error(format!(
            "broadcast from rank {root} in a group of {}",
            self.size
        )))
    }

    /// Checks that `length` elements fit a buffer of `capacity`.
    pub fn fits(self, length: usize, capacity: usize) -> Result<(), CollectiveError> {
        if length <= capacity {
            return Ok(());
        }
        Err(self.error(format!("{length} elements in a buffer of {capacity}")))
    }

    /// Checks that `all` elements are `part` elements for every rank.
    pub fn equal_parts(self, part: usize, all: usize) -> Result<(), CollectiveError> {
        let size = self.size;
        if part.checked_mul(size) == Some(all) {
            return Ok(());
        }
        Err(self.error(format!(
            "{part} elements for each of {size} ranks, and {all} for all together"
        )))
    }

    /// Checks the buffers of an all-gather against its counts, by rank.
    pub fn all_gather(
        self,
        own: usize,
        counts: &[usize],
        all: usize,
    ) -> Result<(), CollectiveError> {
        let Self { rank, size, .. } = self;
        self.one_per_rank("counts", counts.len())?;
        if own != counts[rank] {
            let count = counts[rank];
            return Err(self.error(format!("{own} elements are brought, counts say {count}")));
        }
        let total = counts
            .iter()
            .try_fold(0_usize, |sum, &count| sum.checked_add(count));
        if total != Some(all) {
            return Err(self.error(format!(
                "{all} elements for what {size} ranks bring, counts say {}",
                total.map_or_else(|| "too many".into(), |total| total.to_string())
            )));
        }
        Ok(())
    }

    /// Checks that ranges, by rank, lie within `length` elements.
    pub fn ranges(self, length: usize, ranges: &[Range<usize>]) -> Result<(), CollectiveError> {
        self.one_per_rank("ranges", ranges.len())?;
        match ranges.iter().find(|r| r.start > r.end || r.end > length) {
            Some(range) => Err(self.error(format!("range {range:?} of {length} elements"))),
            None => Ok(()),
        }
    }

    /// Checks that a range is as long as its buffer.
    pub fn range(self, range: &Range<usize>, own: usize) -> Result<(), CollectiveError> {
        if range.len() == own {
            return Ok(());
        }
        Err(self.error(format!("a buffer of {own} elements for range {range:?}")))
    }

    /// Checks the elements that a rank sends to `owners`.
    pub fn sends(self, send: usize, owners: Owners<'_>) -> Result<(), CollectiveError> {
        self.one_per_rank("widths", owners.widths.len())?;
        self.ranges(owners.height(), owners.rows)?;
        let (rows, width) = (owners.height(), owners.widths[self.rank]);
        if rows.checked_mul(width) == Some(send) {
            return Ok(());
        }
        Err(self.error(format!(
            "gather sends {send} elements, its owners get {rows} rows of {width}"
        )))
    }

    /// Checks the elements that a rank receives as one of `owners`.
    pub fn receives(self, recv: usize, owners: Owners<'_>) -> Result<(), CollectiveError> {
        let rows = owners.rows[self.rank].len();
        let width = owners
            .widths
            .iter()
            .try_fold(0_usize, |sum, &width| sum.checked_add(width));
        if width.and_then(|width| width.checked_mul(rows)) == Some(recv) {
            return Ok(());
        }
        Err(self.error(format!(
            "gather receives {recv} elements, this rank owns {rows} rows of {:?}",
            owners.widths
        )))
    }

    fn one_per_rank(self, what: &str, found: usize) -> Result<(), CollectiveError> {
        match self.size {
            size if size == found => Ok(()),
            size => Err(self.error(format!("{found} {what} for {size} ranks"))),
        }
    }

    /// Checks words that are to be attached. The first `shared` of them are equal on all ranks.
    pub fn attachment(self, shared: usize, words: &[u32]) -> Result<Attachment, CollectiveError> {
        let count = words.len();
        Attachment::of(shared, words).ok_or_else(|| {
            self.error(format!(
                "{count} words attached, {shared} of them shared; \
                 there may be 1 to {ATTACHED_WORDS}, and no more shared than attached"
            ))
        })
    }

    fn error(self, reason: String) -> CollectiveError {
        CollectiveError::Argument {
            rank: self.name,
            reason,
        }
    }
}

/// Returns a digest of counts, for ranks to compare.
pub(crate) fn counts_digest(counts: impl IntoIterator<Item = usize>) -> u64 {
    digest(counts.into_iter().map(|count| count as u64))
}

/// Returns a digest of numbers, for ranks to compare (FNV-1a).
pub(crate) fn digest(numbers: impl IntoIterator<Item = u64>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for number in numbers {
        hash = (hash ^ number).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}
