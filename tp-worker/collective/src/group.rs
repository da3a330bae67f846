//! The operations, in terms of exchanges; the same for every transport.

use std::ops::Range;

use crate::arguments::{Arguments, counts_digest};
use crate::endpoint::Endpoint;
use crate::sum::{share, sum_in_rank_order};
use crate::{AbortHandle, Collective, CollectiveError, Kind, Operation, Parts};

/// Elements over all peers up to which every rank of more than two reads
/// everything itself; above, each rank sums a share and all read the shares, which moves less
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
        for chunk in data.chunks_mut(self.endpoint.capacity()) {
            if chunk.len() <= self.direct_elements() {
                self.sum_direct(operation, chunk)?;
            } else {
                self.sum_shares(operation, chunk)?;
            }
        }
        Ok(())
    }

    /// Up to how many elements every rank reads all parts.
    fn direct_elements(&self) -> usize {
        match self.endpoint.size() - 1 {
            // In shares, two ranks would move as much and meet once more.
            0 | 1 => self.endpoint.capacity(),
            peers => self.endpoint.capacity().min(DIRECT_ELEMENTS / peers),
        }
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

    fn buffer(&mut self, length: usize) -> Result<&mut [f32], CollectiveError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        self.arguments().fits(length, self.direct_elements())?;
        Ok(&mut self.endpoint.outgoing()[..length])
    }

    fn bring(&mut self, length: usize) -> Result<(), CollectiveError> {
        self.buffer(length)?;
        let operation = self.next(Kind::AllReduceSum, length, 0)?;
        self.endpoint.exchange(operation, &|_, _| 0..length)
    }

    fn bring_to_root(&mut self, send: &[f32], counts: &[usize]) -> Result<(), CollectiveError> {
        let arguments = self.arguments();
        let total = arguments.counts(send.len(), counts)?;
        let longest = counts.iter().copied().max().unwrap_or(0);
        arguments.fits(longest, self.endpoint.capacity())?;
        let operation = self.next(Kind::Gather, total, counts_digest(counts))?;
        if arguments.rank != 0 {
            self.endpoint.outgoing()[..send.len()].copy_from_slice(send);
        }
        let to_root = |from: usize, to: usize| if to == 0 { 0..counts[from] } else { 0..0 };
        self.endpoint.exchange(operation, &to_root)
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

    fn sum_capacity(&self) -> usize {
        self.direct_elements()
    }

    fn sum_buffer(&mut self, length: usize) -> Result<&mut [f32], CollectiveError> {
        let checked = self.buffer(length).map(|_| ());
        self.settle(checked)?;
        self.buffer(length)
    }

    fn sum_parts(&mut self, length: usize) -> Result<Parts<'_>, CollectiveError> {
        let result = self.bring(length);
        self.settle(result)?;
        let part = |rank| &self.endpoint.incoming(rank)[..length];
        Ok(Parts::new(self.endpoint.size(), part))
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

    fn gather_parts<'a>(
        &'a mut self,
        send: &'a [f32],
        counts: &[usize],
    ) -> Result<Option<Parts<'a>>, CollectiveError> {
        let result = self.bring_to_root(send, counts);
        self.settle(result)?;
        let part = |rank| match rank {
            0 => send,
            _ => &self.endpoint.incoming(rank)[..counts[rank]],
        };
        Ok((self.endpoint.rank() == 0).then(|| Parts::new(self.endpoint.size(), part)))
    }

    fn gather_capacity(&self) -> usize {
        self.endpoint.capacity()
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
            fn sum_capacity(&self) -> usize {
                self.0.sum_capacity()
            }
            fn sum_buffer(&mut self, length: usize) -> Result<&mut [f32], $crate::CollectiveError> {
                self.0.sum_buffer(length)
            }
            fn sum_parts(
                &mut self,
                length: usize,
            ) -> Result<$crate::Parts<'_>, $crate::CollectiveError> {
                self.0.sum_parts(length)
            }
            fn gather(
                &mut self,
                send: &[f32],
                counts: &[usize],
                recv: Option<&mut [f32]>,
            ) -> Result<(), $crate::CollectiveError> {
                self.0.gather(send, counts, recv)
            }
            fn gather_parts<'a>(
                &'a mut self,
                send: &'a [f32],
                counts: &[usize],
            ) -> Result<Option<$crate::Parts<'a>>, $crate::CollectiveError> {
                self.0.gather_parts(send, counts)
            }
            fn gather_capacity(&self) -> usize {
                self.0.gather_capacity()
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
