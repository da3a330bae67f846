//! Sums over ranks.

use std::ops::Range;

use super::{Group, nothing};
use crate::arguments::counts_digest;
use crate::endpoint::Endpoint;
use crate::sum::{share, sum_in_rank_order};
use crate::{CollectiveError, Kind, Operation};

/// Most elements, over all peers, that every rank of more than two reads itself. Above it each
/// rank sums a share and all read the shares: that moves less data, but costs a second
/// transfer.
const DIRECT_ELEMENTS: usize = 32 * 1024;

impl<E: Endpoint + 'static> Group<E> {
    pub(super) fn try_all_reduce(&mut self, data: &mut [f32]) -> Result<(), CollectiveError> {
        let operation = self.next(Kind::AllReduceSum, data.len(), 0)?;
        if data.is_empty() {
            return self.transfer(operation, &nothing);
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

    /// Returns the most elements for which every rank reads all parts.
    pub(super) fn direct_elements(&self) -> usize {
        match self.endpoint.size() - 1 {
            // By shares, two ranks would move as much, and wait once more.
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
        self.transfer(operation, &|_, _| 0..length)?;
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
        self.transfer(operation, &|_, to| share(length, to, size))?;
        let own = share(length, self.endpoint.rank(), size);
        let part = |rank| &self.endpoint.incoming(rank)[own.clone()];
        sum_in_rank_order(&mut data[own.clone()], size, part);
        self.endpoint.outgoing()[own.clone()].copy_from_slice(&data[own]);
        self.transfer(operation, &|from, _| share(length, from, size))?;
        for rank in (0..size).filter(|&rank| rank != self.endpoint.rank()) {
            let theirs = share(length, rank, size);
            data[theirs.clone()].copy_from_slice(&self.endpoint.incoming(rank)[theirs]);
        }
        Ok(())
    }

    /// Checks that the group is not broken and can lend `length` elements.
    pub(super) fn check_lent(&self, length: usize) -> Result<(), CollectiveError> {
        self.membership.check()?;
        self.arguments().fits(length, self.endpoint.capacity())
    }

    pub(super) fn transfer_sum(&mut self, length: usize) -> Result<(), CollectiveError> {
        self.membership.check()?;
        self.arguments().fits(length, self.direct_elements())?;
        let operation = self.next(Kind::AllReduceSum, length, 0)?;
        self.transfer(operation, &|_, _| 0..length)
    }

    pub(super) fn try_reduce_scatter(
        &mut self,
        data: &[f32],
        ranges: &[Range<usize>],
        own: &mut [f32],
    ) -> Result<(), CollectiveError> {
        let operation = self.next_scatter(data.len(), ranges)?;
        let (rank, size) = (self.endpoint.rank(), self.endpoint.size());
        let range = &ranges[rank];
        self.arguments().range(range, own.len())?;
        let capacity = self.endpoint.capacity();
        for number in 0..data.len().div_ceil(capacity).max(1) {
            let begin = number * capacity;
            let chunk = &data[begin..data.len().min(begin + capacity)];
            // Returns the part of a rank's range that lies in this chunk.
            let part = |rank: usize| -> Range<usize> {
                let inside = |at: usize| at.saturating_sub(begin).min(chunk.len());
                inside(ranges[rank].start)..inside(ranges[rank].end)
            };
            self.endpoint.outgoing()[..chunk.len()].copy_from_slice(chunk);
            self.transfer(operation, &|_, to| part(to))?;
            let mine = part(rank);
            if mine.is_empty() {
                continue;
            }
            let at = begin + mine.start - range.start;
            let sum = &mut own[at..at + mine.len()];
            sum_in_rank_order(sum, size, |rank| {
                &self.endpoint.incoming(rank)[mine.clone()]
            });
        }
        Ok(())
    }

    pub(super) fn transfer_ranges(
        &mut self,
        length: usize,
        ranges: &[Range<usize>],
    ) -> Result<(), CollectiveError> {
        self.check_lent(length)?;
        let operation = self.next_scatter(length, ranges)?;
        self.transfer(operation, &|_, to| ranges[to].clone())
    }

    fn next_scatter(
        &mut self,
        length: usize,
        ranges: &[Range<usize>],
    ) -> Result<Operation, CollectiveError> {
        self.arguments().ranges(length, ranges)?;
        let numbers = ranges.iter().flat_map(|range| [range.start, range.end]);
        self.next(Kind::ReduceScatterSum, length, counts_digest(numbers))
    }
}
