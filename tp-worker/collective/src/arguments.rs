//! Checks of a caller's buffers, the same for every transport.

use crate::attachment::Attachment;
use crate::{ATTACHED_WORDS, CollectiveError};

/// The rank that checks, in a group of `size`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments {
    /// Its number in the group.
    pub rank: usize,
    pub size: usize,
    /// Its number in errors: that of the first group.
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

    /// Checks that `length` elements go where `capacity` of them do.
    pub fn fits(self, length: usize, capacity: usize) -> Result<(), CollectiveError> {
        if length <= capacity {
            return Ok(());
        }
        Err(self.error(format!("{length} elements in a buffer of {capacity}")))
    }

    /// Checks that `all` elements are `part` from or for every rank.
    pub fn equal_parts(self, part: usize, all: usize) -> Result<(), CollectiveError> {
        let size = self.size;
        if part.checked_mul(size) == Some(all) {
            return Ok(());
        }
        Err(self.error(format!(
            "{part} elements for each of {size} ranks, and {all} for all together"
        )))
    }

    /// Checks a gather's counts; returns their sum.
    pub fn counts(self, send: usize, counts: &[usize]) -> Result<usize, CollectiveError> {
        let Self { rank, size, .. } = self;
        if counts.len() != size {
            return Err(self.error(format!(
                "gather with {} counts for {size} ranks",
                counts.len()
            )));
        }
        if send != counts[rank] {
            return Err(self.error(format!(
                "gather sends {send} elements, counts say {}",
                counts[rank]
            )));
        }
        let total = counts
            .iter()
            .try_fold(0_usize, |sum, &count| sum.checked_add(count));
        total.ok_or_else(|| self.error("gather of too many elements".into()))
    }

    /// Checks a gather's buffers against its counts; returns their sum.
    pub fn gather(
        self,
        send: usize,
        counts: &[usize],
        recv: Option<&[f32]>,
    ) -> Result<usize, CollectiveError> {
        let rank = self.rank;
        let total = self.counts(send, counts)?;
        match recv {
            Some(recv) if rank != 0 => Err(self.error(format!(
                "gather receives {} elements on a rank other than 0",
                recv.len()
            ))),
            Some(recv) if recv.len() != total => Err(self.error(format!(
                "gather receives {} elements, counts say {total}",
                recv.len()
            ))),
            None if rank == 0 => {
                Err(self.error("gather without a receive buffer on rank 0".into()))
            }
            _ => Ok(total),
        }
    }

    /// Checks what is to be attached, with its first `shared` words in common.
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

/// A digest of numbers that ranks compare (FNV-1a).
pub(crate) fn digest(numbers: impl IntoIterator<Item = u64>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for number in numbers {
        hash = (hash ^ number).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}
