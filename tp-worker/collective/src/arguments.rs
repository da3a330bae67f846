//! Checks of a caller's buffers, the same for every transport.

use crate::CollectiveError;

/// The rank that checks, and the size of its group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments {
    pub rank: usize,
    pub size: usize,
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

    /// Checks a gather's counts; returns their sum.
    pub fn counts(self, send: usize, counts: &[usize]) -> Result<usize, CollectiveError> {
        let Self { rank, size } = self;
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

    fn error(self, reason: String) -> CollectiveError {
        CollectiveError::Argument {
            rank: self.rank,
            reason,
        }
    }
}

/// A digest of a gather's counts (FNV-1a), compared between ranks.
pub(crate) fn counts_digest(counts: &[usize]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &count in counts {
        hash = (hash ^ count as u64).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}
