//! The operations, built on transfers, for every transport.

mod gather;
mod reduce;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::arguments::{Arguments, digest};
use crate::attachment::Attachments;
use crate::endpoint::Endpoint;
use crate::membership::Membership;
use crate::{AbortHandle, Collective, CollectiveError, Kind, Operation, Owners, Parts, Single};

/// A rank's place in a group over some transport.
pub struct Group<E: Endpoint> {
    endpoint: E,
    membership: Arc<Membership>,
    /// Number of the group: see [`Operation::group`].
    id: u64,
    sequence: u64,
    attachments: Attachments,
}

impl<E: Endpoint + 'static> Group<E> {
    /// Makes the rank's first group.
    pub(crate) fn new(endpoint: E, membership: Arc<Membership>) -> Self {
        Self::with_id(endpoint, membership, 0)
    }

    fn with_id(endpoint: E, membership: Arc<Membership>, id: u64) -> Self {
        let attachments = Attachments::new(endpoint.size());
        Self {
            endpoint,
            membership,
            id,
            sequence: 0,
            attachments,
        }
    }

    fn arguments(&self) -> Arguments {
        Arguments {
            rank: self.endpoint.rank(),
            size: self.endpoint.size(),
            name: self.membership.name,
        }
    }

    /// Returns the next operation, or the error that broke the group.
    fn next(
        &mut self,
        kind: Kind,
        length: usize,
        detail: u64,
    ) -> Result<Operation, CollectiveError> {
        self.membership.check()?;
        let operation = Operation {
            group: self.id,
            sequence: self.sequence,
            kind,
            length: length as u64,
            detail,
        };
        self.sequence += 1;
        Ok(operation)
    }

    /// Runs a transfer of `operation`: see [`Endpoint::transfer`]. The first transfer carries
    /// the attached words.
    fn transfer(
        &mut self,
        operation: Operation,
        part: &dyn Fn(usize, usize) -> Range<usize>,
    ) -> Result<(), CollectiveError> {
        let own = &self.attachments.next;
        self.endpoint.transfer(operation, own, part)?;
        if !own.is_none() {
            self.arrive();
        }
        Ok(())
    }

    /// Keeps the words that travelled with the last transfer.
    fn arrive(&mut self) {
        let (endpoint, own) = (&self.endpoint, self.attachments.next);
        let of = |rank| match rank == endpoint.rank() {
            true => own,
            false => endpoint.attachment(rank),
        };
        self.attachments.travelled(endpoint.size(), of);
    }

    fn try_attach(&mut self, shared: usize, words: &[u32]) -> Result<(), CollectiveError> {
        self.membership.check()?;
        self.attachments.next = self.arguments().attachment(shared, words)?;
        if self.endpoint.size() == 1 {
            // No other rank waits for the words, and there may be no operation.
            self.arrive();
        }
        Ok(())
    }

    /// Breaks the rank's groups if `result` is an error.
    fn settle<T>(&self, result: Result<T, CollectiveError>) -> Result<T, CollectiveError> {
        self.membership.settle(result)
    }

    fn try_barrier(&mut self) -> Result<(), CollectiveError> {
        let operation = self.next(Kind::Barrier, 0, 0)?;
        self.transfer(operation, &nothing)
    }

    fn try_agree(&mut self, words: &[u32]) -> Result<(), CollectiveError> {
        let Arguments { rank, size, name } = self.arguments();
        let mut all = vec![0; words.len() * size];
        self.try_exchange(words, &mut all)?;
        let mut others = all.chunks(words.len().max(1)).enumerate();
        match others.find(|(peer, theirs)| *peer != rank && *theirs != words) {
            None => Ok(()),
            Some((peer, theirs)) => Err(CollectiveError::Disagree {
                rank: name,
                ours: words.to_vec(),
                peer: self.endpoint.name(peer),
                theirs: theirs.to_vec(),
            }),
        }
    }

    fn try_split(&mut self, color: u32) -> Result<Box<dyn Collective>, CollectiveError> {
        let size = self.endpoint.size();
        let mut colors = vec![0; size];
        let parent = self.next(Kind::Split, 1, 0)?;
        self.gather_all(parent, &[color], &|_| 1, &mut colors)?;
        let ranks: Vec<usize> = (0..size).filter(|&rank| colors[rank] == color).collect();
        if ranks.len() == 1 {
            let crowded = self.endpoint.is_crowded();
            return Ok(Box::new(Single::of(self.membership.clone(), crowded)));
        }
        let Operation {
            group, sequence, ..
        } = parent;
        let ours = ranks.iter().map(|&rank| rank as u64);
        let id = digest([group, sequence].into_iter().chain(ours));
        let endpoint = self.endpoint.split(&ranks, id)?;
        let membership = self.membership.clone();
        Ok(Box::new(Self::with_id(endpoint, membership, id)))
    }
}

/// Returns the elements that a transfer without elements sends: none.
fn nothing(_from: usize, _to: usize) -> Range<usize> {
    0..0
}

impl<E: Endpoint + 'static> Collective for Group<E> {
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
        let result = self.try_all_reduce(data);
        self.settle(result)
    }

    fn sum_capacity(&self) -> usize {
        self.direct_elements()
    }

    fn sum_buffer(&mut self, length: usize) -> Result<&mut [f32], CollectiveError> {
        let checked = self.check_lent(length);
        self.settle(checked)?;
        Ok(&mut self.endpoint.outgoing()[..length])
    }

    fn sum_parts(&mut self, length: usize) -> Result<Parts<'_>, CollectiveError> {
        let result = self.transfer_sum(length);
        self.settle(result)?;
        let part = |rank| &self.endpoint.incoming(rank)[..length];
        Ok(Parts::new(self.endpoint.size(), part))
    }

    fn reduce_scatter_sum(
        &mut self,
        data: &[f32],
        ranges: &[Range<usize>],
        own: &mut [f32],
    ) -> Result<(), CollectiveError> {
        let result = self.try_reduce_scatter(data, ranges, own);
        self.settle(result)
    }

    fn reduce_scatter_parts(
        &mut self,
        length: usize,
        ranges: &[Range<usize>],
    ) -> Result<Parts<'_>, CollectiveError> {
        let result = self.transfer_ranges(length, ranges);
        self.settle(result)?;
        let own = &ranges[self.endpoint.rank()];
        let part = |rank| &self.endpoint.incoming(rank)[own.clone()];
        Ok(Parts::new(self.endpoint.size(), part))
    }

    fn all_gather(
        &mut self,
        own: &[f32],
        counts: &[usize],
        all: &mut [f32],
    ) -> Result<(), CollectiveError> {
        let result = self.try_all_gather(own, counts, all);
        self.settle(result)
    }

    fn exchange(&mut self, words: &[u32], all: &mut [u32]) -> Result<(), CollectiveError> {
        let result = self.try_exchange(words, all);
        self.settle(result)
    }

    fn agree(&mut self, words: &[u32]) -> Result<(), CollectiveError> {
        let result = self.try_agree(words);
        self.settle(result)
    }

    fn gather(
        &mut self,
        send: &[f32],
        owners: Owners<'_>,
        recv: &mut [f32],
    ) -> Result<(), CollectiveError> {
        let result = self.try_gather(send, owners, recv);
        self.settle(result)
    }

    fn gather_parts<'a>(
        &'a mut self,
        send: &'a [f32],
        owners: Owners<'_>,
    ) -> Result<Parts<'a>, CollectiveError> {
        let result = self.transfer_gather(send, owners);
        self.settle(result)?;
        let own = self.endpoint.rank();
        let part = |rank| match rank == own {
            true => &send[owners.part(rank, own)],
            false => &self.endpoint.incoming(rank)[owners.part(rank, own)],
        };
        Ok(Parts::new(self.endpoint.size(), part))
    }

    fn parts_capacity(&self) -> usize {
        self.endpoint.capacity()
    }

    fn broadcast(&mut self, root: usize, data: &mut [u32]) -> Result<(), CollectiveError> {
        let result = self.try_broadcast(root, data);
        self.settle(result)
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        let result = self.try_barrier();
        self.settle(result)
    }

    fn attach(&mut self, shared: usize, words: &[u32]) -> Result<(), CollectiveError> {
        let result = self.try_attach(shared, words);
        self.settle(result)
    }

    fn attached(&self, all: &mut [u32]) -> bool {
        self.attachments.copy_to(all)
    }

    fn split(&mut self, color: u32) -> Result<Box<dyn Collective>, CollectiveError> {
        let result = self.try_split(color);
        self.settle(result)
    }

    fn abort_handle(&self) -> AbortHandle {
        self.membership.abort_handle()
    }
}

impl<E: Endpoint + 'static> fmt::Debug for Group<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Arguments { rank, size, .. } = self.arguments();
        write!(f, "rank {rank} of {size}")
    }
}
