//! Operations that move elements as they are: gathers and broadcasts.

use std::ops::Range;

use bytemuck::Pod;

use super::{Group, nothing};
use crate::arguments::counts_digest;
use crate::endpoint::Endpoint;
use crate::{CollectiveError, Kind, Operation, Owners};

impl<E: Endpoint + 'static> Group<E> {
    /// Gathers rows for their owners. Parts that don't fit a transfer go in several: each
    /// carries the next elements of every rank's columns, and every owner gets its share of
    /// them.
    pub(super) fn try_gather(
        &mut self,
        send: &[f32],
        owners: Owners<'_>,
        recv: &mut [f32],
    ) -> Result<(), CollectiveError> {
        let operation = self.next_gather(send, owners)?;
        self.arguments().receives(recv.len(), owners)?;
        let (rank, capacity) = (self.endpoint.rank(), self.endpoint.capacity());
        let widest = owners.widths.iter().copied().max().unwrap_or(0);
        let longest = widest * owners.height();
        for chunk in 0..longest.div_ceil(capacity).max(1) {
            let begin = chunk * capacity;
            let inside = |at: usize| at.saturating_sub(begin).min(capacity);
            let part = |from: usize, to: usize| -> Range<usize> {
                let part = owners.part(from, to);
                inside(part.start)..inside(part.end)
            };
            self.fill(&send[send.len().min(begin)..], &part);
            self.transfer(operation, &part)?;
            let mut rest = &mut *recv;
            for from in 0..self.endpoint.size() {
                let (whole, here) = (owners.part(from, rank), part(from, rank));
                let (all, after) = rest.split_at_mut(whole.len());
                let data = match from == rank {
                    true => &send[begin.min(send.len())..][here.clone()],
                    false => &self.endpoint.incoming(from)[here.clone()],
                };
                let at = (begin + here.start).saturating_sub(whole.start);
                if !here.is_empty() {
                    all[at..at + here.len()].copy_from_slice(data);
                }
                rest = after;
            }
        }
        Ok(())
    }

    pub(super) fn transfer_gather(
        &mut self,
        send: &[f32],
        owners: Owners<'_>,
    ) -> Result<(), CollectiveError> {
        let operation = self.next_gather(send, owners)?;
        let widest = owners.widths.iter().copied().max().unwrap_or(0);
        let longest = widest * owners.height();
        self.arguments().fits(longest, self.endpoint.capacity())?;
        let part = |from, to| owners.part(from, to);
        self.fill(send, &part);
        self.transfer(operation, &part)
    }

    fn next_gather(
        &mut self,
        send: &[f32],
        owners: Owners<'_>,
    ) -> Result<Operation, CollectiveError> {
        let arguments = self.arguments();
        arguments.sends(send.len(), owners)?;
        let total: usize = owners
            .widths
            .iter()
            .map(|width| width * owners.height())
            .sum();
        self.next(Kind::Gather, total, counts_digest(owners.numbers()))
    }

    /// Writes the elements of `data` that others will read to the outgoing buffer.
    fn fill(&mut self, data: &[f32], part: &dyn Fn(usize, usize) -> Range<usize>) {
        let (rank, size) = (self.endpoint.rank(), self.endpoint.size());
        let outgoing = self.endpoint.outgoing();
        for to in (0..size).filter(|&to| to != rank) {
            let part = part(rank, to);
            outgoing[part.clone()].copy_from_slice(&data[part]);
        }
    }

    pub(super) fn try_all_gather(
        &mut self,
        own: &[f32],
        counts: &[usize],
        all: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.arguments().all_gather(own.len(), counts, all.len())?;
        let digest = counts_digest(counts.iter().copied());
        let operation = self.next(Kind::AllGather, all.len(), digest)?;
        self.gather_all(operation, own, &|rank| counts[rank], all)
    }

    pub(super) fn try_exchange(
        &mut self,
        own: &[u32],
        all: &mut [u32],
    ) -> Result<(), CollectiveError> {
        self.arguments().equal_parts(own.len(), all.len())?;
        let operation = self.next(Kind::Exchange, own.len(), 0)?;
        self.gather_all(operation, own, &|_| own.len(), all)
    }

    /// Puts every rank's `own` in `all`. Elements have four bytes; rank `r` has `count(r)`.
    pub(super) fn gather_all<T: Pod>(
        &mut self,
        operation: Operation,
        own: &[T],
        count: &dyn Fn(usize) -> usize,
        all: &mut [T],
    ) -> Result<(), CollectiveError> {
        // The elements are only moved, never computed with: any bits survive.
        let own: &[f32] = bytemuck::cast_slice(own);
        let all: &mut [f32] = bytemuck::cast_slice_mut(all);
        let (rank, size) = (self.endpoint.rank(), self.endpoint.size());
        let capacity = self.endpoint.capacity();
        let longest = (0..size).map(count).max().unwrap_or(0);
        for chunk in 0..longest.div_ceil(capacity).max(1) {
            let begin = chunk * capacity;
            let part = |rank: usize| {
                let inside = |at: usize| count(rank).min(at);
                inside(begin)..inside(begin + capacity)
            };
            let mine = part(rank);
            self.endpoint.outgoing()[..mine.len()].copy_from_slice(&own[mine]);
            self.transfer(operation, &|from, _| 0..part(from).len())?;
            let mut rest = &mut *all;
            for from in 0..size {
                let (theirs, after) = rest.split_at_mut(count(from));
                let part = part(from);
                let data = &self.endpoint.incoming(from)[..part.len()];
                theirs[part].copy_from_slice(data);
                rest = after;
            }
        }
        Ok(())
    }

    pub(super) fn try_broadcast(
        &mut self,
        root: usize,
        data: &mut [u32],
    ) -> Result<(), CollectiveError> {
        self.arguments().root(root)?;
        let operation = self.next(Kind::Broadcast, data.len(), root as u64)?;
        if data.is_empty() {
            return self.transfer(operation, &nothing);
        }
        for chunk in data.chunks_mut(self.endpoint.capacity()) {
            // The words are only moved, never computed with: any bits survive.
            let chunk: &mut [f32] = bytemuck::cast_slice_mut(chunk);
            let length = chunk.len();
            if self.endpoint.rank() == root {
                self.endpoint.outgoing()[..length].copy_from_slice(chunk);
            }
            let from_root = |from: usize, _| if from == root { 0..length } else { 0..0 };
            self.transfer(operation, &from_root)?;
            if self.endpoint.rank() != root {
                chunk.copy_from_slice(&self.endpoint.incoming(root)[..length]);
            }
        }
        Ok(())
    }
}
