//! What moves elements as they are: gathers and broadcasts.

use bytemuck::Pod;

use super::{Group, nothing};
use crate::arguments::digest;
use crate::endpoint::Endpoint;
use crate::{CollectiveError, Kind, Operation};

impl<E: Endpoint + 'static> Group<E> {
    pub(super) fn try_gather(
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
            self.transfer(operation, &to_root)?;
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

    pub(super) fn transfer_gather(
        &mut self,
        send: &[f32],
        counts: &[usize],
    ) -> Result<(), CollectiveError> {
        let arguments = self.arguments();
        let total = arguments.counts(send.len(), counts)?;
        let longest = counts.iter().copied().max().unwrap_or(0);
        arguments.fits(longest, self.endpoint.capacity())?;
        let operation = self.next(Kind::Gather, total, counts_digest(counts))?;
        if arguments.rank != 0 {
            self.endpoint.outgoing()[..send.len()].copy_from_slice(send);
        }
        let to_root = |from: usize, to: usize| if to == 0 { 0..counts[from] } else { 0..0 };
        self.transfer(operation, &to_root)
    }

    pub(super) fn try_all_gather<T: Pod>(
        &mut self,
        kind: Kind,
        own: &[T],
        all: &mut [T],
    ) -> Result<(), CollectiveError> {
        self.arguments().equal_parts(own.len(), all.len())?;
        let operation = self.next(kind, own.len(), 0)?;
        self.gather_all(operation, own, all)
    }

    /// Every rank's `own` in `all`, elements of four bytes.
    pub(super) fn gather_all<T: Pod>(
        &mut self,
        operation: Operation,
        own: &[T],
        all: &mut [T],
    ) -> Result<(), CollectiveError> {
        // Only moved, never computed with: any bits survive.
        let own: &[f32] = bytemuck::cast_slice(own);
        let all: &mut [f32] = bytemuck::cast_slice_mut(all);
        if own.is_empty() {
            return self.transfer(operation, &nothing);
        }
        let capacity = self.endpoint.capacity();
        for (number, chunk) in own.chunks(capacity).enumerate() {
            let (begin, length) = (number * capacity, chunk.len());
            self.endpoint.outgoing()[..length].copy_from_slice(chunk);
            self.transfer(operation, &|_, _| 0..length)?;
            for (rank, all) in all.chunks_exact_mut(own.len()).enumerate() {
                let data = &self.endpoint.incoming(rank)[..length];
                all[begin..begin + length].copy_from_slice(data);
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
            // Only moved, never computed with: any bits survive.
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

fn counts_digest(counts: &[usize]) -> u64 {
    digest(counts.iter().map(|&count| count as u64))
}
