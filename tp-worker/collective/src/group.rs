//! The operations, in terms of exchanges; the same for every transport.

use std::ops::Range;

use crate::arguments::{Arguments, counts_digest};
use crate::endpoint::Endpoint;
use crate::sum::{share, sum_in_rank_order};
use crate::{AbortHandle, Collective, CollectiveError, Kind, Operation};

/// Elements over all peers up to which every rank reads everything itself;
/// above, each rank sums a share and all read the shares, which moves less
/// data but costs a second exchange.
const DIRECT_ELEMENTS: usize = 32 * 1024;

/// A rank's membership in a group over some transport.
pub(crate) struct Group<E: Endpoint> {
    endpoint: E,
    sequence: u64,
    broken: Option<CollectiveError>,
}

impl<E: Endpoint> Group<E> {
    pub fn new(endpoint: E) -> Self {
        Self {
            endpoint,
            sequence: 0,
            broken: None,
        }
    }

    fn arguments(&self) -> Arguments {
        Arguments {
            rank: self.endpoint.rank(),
            size: self.endpoint.size(),
        }
    }

    /// The next operation, or the error that broke the group.
    fn next(
        &mut self,
        kind: Kind,
        length: usize,
        detail: u64,
    ) -> Result<Operation, CollectiveError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let operation = Operation {
            sequence: self.sequence,
            kind,
            length: length as u64,
            detail,
        };
        self.sequence += 1;
        Ok(operation)
    }

    /// Ends the group for this rank if `result` is an error.
    fn settle(&mut self, result: Result<(), CollectiveError>) -> Result<(), CollectiveError> {
        if let Err(error) = &result
            && self.broken.is_none()
        {
            self.broken = Some(error.clone());
            self.endpoint.leave();
        }
        result
    }

    fn sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError> {
        let operation = self.next(Kind::AllReduceSum, data.len(), 0)?;
        if data.is_empty() {
            return self.endpoint.exchange(operation, &nothing);
        }
        let peers = self.endpoint.size() - 1;
        for chunk in data.chunks_mut(self.endpoint.capacity()) {
            if chunk.len().saturating_mul(peers) <= DIRECT_ELEMENTS {
                self.sum_direct(operation, chunk)?;
            } else {
                self.sum_shares(operation, chunk)?;
            }
        }
        Ok(())
    }

    fn sum_direct(
        &mut self,
        operation: Operation,
        data: &mut [f32],
    ) -> Result<(), CollectiveError> {
        let length = data.len();
        self.endpoint.outgoing()[..length].copy_from_slice(data);
        self.endpoint.exchange(operation, &|_, _| 0..length)?;
        let part = |rank| &self.endpoint.incoming(rank)[..length];
        sum_in_rank_order(data, self.endpoint.size(), part);
        Ok(())
    }

    fn sum_shares(
        &mut self,
        operation: Operation,
        data: &mut [f32],
    ) -> Result<(), CollectiveError> {
        let (length, size) = (data.len(), self.endpoint.size());
        self.endpoint.outgoing()[..length].copy_from_slice(data);
        self.endpoint
            .exchange(operation, &|_, to| share(length, to, size))?;
        let own = share(length, self.endpoint.rank(), size);
        let part = |rank| &self.endpoint.incoming(rank)[own.clone()];
        sum_in_rank_order(&mut data[own.clone()], size, part);
        self.endpoint.outgoing()[own.clone()].copy_from_slice(&data[own]);
        self.endpoint
            .exchange(operation, &|from, _| share(length, from, size))?;
        for rank in (0..size).filter(|&rank| rank != self.endpoint.rank()) {
            let theirs = share(length, rank, size);
            data[theirs.clone()].copy_from_slice(&self.endpoint.incoming(rank)[theirs]);
        }
        Ok(())
    }

    fn collect(
        &mut self,
        send: &[f32],
        counts: &[usize],
        mut recv: Option<&mut [f32]>,
    ) -> Result<(), CollectiveError> {
        let total = self
            .arguments()
            .gather(send.len(), counts, recv.as_deref())?;
        let operation = self.next(Kind::Gather, total, counts_digest(counts))?;
        let capacity = self.endpoint.capacity();
        let longest = counts.iter().copied().max().unwrap_or(0);
        for chunk in 0..longest.div_ceil(capacity).max(1) {
            let begin = chunk * capacity;
            let part = |count: usize| count.min(begin)..count.min(begin + capacity);
            let own = &send[part(send.len())];
            self.endpoint.outgoing()[..own.len()].copy_from_slice(own);
            let to_root = |from: usize, to: usize| match to {
                0 => 0..part(counts[from]).len(),
                _ => 0..0,
            };
            self.endpoint.exchange(operation, &to_root)?;
            let Some(recv) = recv.as_deref_mut() else {
                continue;
            };
            let mut start = 0;
            for (rank, &count) in counts.iter().enumerate() {
                let part = part(count);
                let data = &self.endpoint.incoming(rank)[..part.len()];
                recv[start + part.start..start + part.end].copy_from_slice(data);
                start += count;
            }
        }
        Ok(())
    }

    fn spread(&mut self, root: usize, data: &mut [u32]) -> Result<(), CollectiveError> {
        self.arguments().root(root)?;
        let operation = self.next(Kind::Broadcast, data.len(), root as u64)?;
        if data.is_empty() {
            return self.endpoint.exchange(operation, &nothing);
        }
        for chunk in data.chunks_mut(self.endpoint.capacity()) {
            // Only moved, never computed with: any bits survive.
            let chunk: &mut [f32] = bytemuck::cast_slice_mut(chunk);
            let length = chunk.len();
            if self.endpoint.rank() == root {
                self.endpoint.outgoing()[..length].copy_from_slice(chunk);
            }
            let from_root = |from: usize, _| if from == root { 0..length } else { 0..0 };
            self.endpoint.exchange(operation, &from_root)?;
            if self.endpoint.rank() != root {
                chunk.copy_from_slice(&self.endpoint.incoming(root)[..length]);
            }
        }
        Ok(())
    }

    fn meet(&mut self) -> Result<(), CollectiveError> {
        let operation = self.next(Kind::Barrier, 0, 0)?;
        self.endpoint.exchange(operation, &nothing)
    }
}

fn nothing(_from: usize, _to: usize) -> Range<usize> {
    0..0
}

impl<E: Endpoint> Collective for Group<E> {
    fn rank(&self) -> usize {
        self.endpoint.rank()
    }

    fn size(&self) -> usize {
        self.endpoint.size()
    }

    fn is_crowded(&self) -> bool {
        self.endpoint.is_crowded()
    }

    fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError> {
        let result = self.sum(data);
        self.settle(result)
    }

    fn gather(
        &mut self,
        send: &[f32],
        counts: &[usize],
        recv: Option<&mut [f32]>,
    ) -> Result<(), CollectiveError> {
        let result = self.collect(send, counts, recv);
        self.settle(result)
    }

    fn broadcast(&mut self, root: usize, data: &mut [u32]) -> Result<(), CollectiveError> {
        let result = self.spread(root, data);
        self.settle(result)
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        let result = self.meet();
        self.settle(result)
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.endpoint.aborter())
    }
}

impl<E: Endpoint> Drop for Group<E> {
    fn drop(&mut self) {
        self.endpoint.leave();
    }
}

impl<E: Endpoint> std::fmt::Debug for Group<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Arguments { rank, size } = self.arguments();
        write!(f, "rank {rank} of {size}")
    }
}

/// Implements [`Collective`] for a newtype around a [`Group`].
macro_rules! member {
    ($name:ty) => {
        impl $crate::Collective for $name {
            fn rank(&self) -> usize {
                self.0.rank()
            }
            fn size(&self) -> usize {
                self.0.size()
            }
            fn is_crowded(&self) -> bool {
                self.0.is_crowded()
            }
            fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), $crate::CollectiveError> {
                self.0.all_reduce_sum(data)
            }
            fn gather(
                &mut self,
                send: &[f32],
                counts: &[usize],
                recv: Option<&mut [f32]>,
            ) -> Result<(), $crate::CollectiveError> {
                self.0.gather(send, counts, recv)
            }
            fn broadcast(
                &mut self,
                root: usize,
                data: &mut [u32],
            ) -> Result<(), $crate::CollectiveError> {
                self.0.broadcast(root, data)
            }
            fn barrier(&mut self) -> Result<(), $crate::CollectiveError> {
                self.0.barrier()
            }
            fn abort_handle(&self) -> $crate::AbortHandle {
                self.0.abort_handle()
            }
        }
    };
}
pub(crate) use member;
