//! A rank's collectives, fused with the operations before and after them.

use std::ops::Range;

use lockstep_backend::{Axis, BackendError, Groups, Owners, host};
use lockstep_collective::Collective;

use crate::isa::Isa;
use crate::norm::{self, AddNorm};
use crate::partition::for_rows;
use crate::pool::Pool;
use crate::tensor::CpuTensor;

/// The groups that one rank is in, and buffers for their results.
pub(crate) struct Collectives {
    groups: Groups,
    /// All ranks' columns of this rank's rows, rank after rank, where the columns must be
    /// copied.
    gathered: Vec<f32>,
    /// Elements that each rank brings to a gather.
    counts: Vec<usize>,
    /// Elements that each rank takes of a sum.
    ranges: Vec<Range<usize>>,
}

impl Collectives {
    pub(crate) fn new(groups: Groups) -> Self {
        let (_, size) = groups.rank_and_size(Axis::World);
        Self {
            groups,
            gathered: Vec::new(),
            counts: vec![0; size],
            ranges: vec![0..0; size],
        }
    }

    /// Bytes of this working memory.
    pub(crate) fn bytes(&self) -> usize {
        self.gathered.capacity() * size_of::<f32>()
    }

    pub(crate) fn rank_and_size(&self, axis: Axis) -> (usize, usize) {
        self.groups.rank_and_size(axis)
    }

    pub(crate) fn all_reduce(&mut self, axis: Axis, data: &mut [f32]) -> Result<(), BackendError> {
        Ok(self.of(axis).all_reduce_sum(data)?)
    }

    /// The group of `axis`.
    pub(crate) fn of(&mut self, axis: Axis) -> &mut dyn Collective {
        self.groups.of(axis)
    }

    /// Sums over ranks the output of `product`, and ends the block with the sum: the same bits as
    /// an all-reduce followed by [`norm::end_block`]. `scratch` has the
    /// residual's length.
    ///
    /// Where the ranks can read each other's parts, `product` writes its part there
    /// directly, and one pass over the parts does the rest.
    pub(crate) fn sum_end_block(
        &mut self,
        axis: Axis,
        pool: &mut Pool,
        isa: Isa,
        product: impl FnOnce(&mut Pool, &mut [f32]),
        scratch: &mut [f32],
        mut norm: AddNorm<'_>,
    ) -> Result<(), BackendError> {
        let collective = self.of(axis);
        let (size, width) = (collective.size(), norm.width);
        let capacity = collective.sum_capacity();
        let rows_at_once = capacity / width.max(1);
        if size > 1 && scratch.len() <= capacity {
            let length = scratch.len();
            product(pool, collective.sum_buffer(length)?);
            let parts = collective.sum_parts(length)?;
            norm::end_block(pool, isa, parts.by_rank(), &mut norm);
            return Ok(());
        }
        product(pool, scratch);
        if size == 2 && rows_at_once > 0 {
            let chunk = rows_at_once * width;
            return sum_in_chunks(collective, pool, isa, scratch, chunk, &mut norm);
        }
        if size > 1 {
            collective.all_reduce_sum(scratch)?;
        }
        norm::end_block(pool, isa, &[scratch], &mut norm);
        Ok(())
    }

    /// Does the work of [`Self::sum_end_block`] for `rows[rank]` of the sum alone.
    /// `scratch` has room for all rows of the product.
    #[expect(clippy::too_many_arguments, reason = "all of one operation")]
    pub(crate) fn scatter_end_block(
        &mut self,
        axis: Axis,
        pool: &mut Pool,
        isa: Isa,
        product: impl FnOnce(&mut Pool, &mut [f32]),
        scratch: &mut [f32],
        rows: &[Range<usize>],
        mut norm: AddNorm<'_>,
    ) -> Result<(), BackendError> {
        let width = norm.width;
        let Self { groups, ranges, .. } = self;
        let collective = groups.of(axis);
        let length = scratch.len();
        if length > collective.parts_capacity() {
            product(pool, scratch);
            return self.scatter_product(axis, pool, isa, scratch, rows, norm);
        }
        product(pool, collective.sum_buffer(length)?);
        host::elements_of(ranges, rows, width, &(0..length));
        let parts = collective.reduce_scatter_parts(length, ranges)?;
        norm::end_block(pool, isa, parts.by_rank(), &mut norm);
        Ok(())
    }

    /// Does the work of [`Self::scatter_end_block`] with a product that is there.
    pub(crate) fn scatter_product(
        &mut self,
        axis: Axis,
        pool: &mut Pool,
        isa: Isa,
        scratch: &mut [f32],
        rows: &[Range<usize>],
        mut norm: AddNorm<'_>,
    ) -> Result<(), BackendError> {
        let (rank, width) = (self.groups.rank_and_size(axis).0, norm.width);
        let Self { groups, ranges, .. } = self;
        let collective = groups.of(axis);
        let chunk = collective.parts_capacity() / width * width;
        if chunk == 0 {
            // Not even one row fits in a transfer.
            collective.all_reduce_sum(scratch)?;
            let own = rows[rank].start * width..rows[rank].end * width;
            norm::end_block(pool, isa, &[&scratch[own]], &mut norm);
            return Ok(());
        }
        let AddNorm {
            mut residual,
            mut out,
            ..
        } = norm;
        for (number, part) in scratch.chunks(chunk).enumerate() {
            let buffer = collective.sum_buffer(part.len())?;
            copy(pool, part, buffer, width);
            let begin = number * chunk;
            host::elements_of(ranges, rows, width, &(begin..begin + part.len()));
            let (now, later) = residual.split_at_mut(ranges[rank].len());
            let (normed, next) = out.split_at_mut(ranges[rank].len());
            let parts = collective.reduce_scatter_parts(part.len(), ranges)?;
            let mut own = AddNorm {
                residual: now,
                width,
                ends: norm.ends,
                out: normed,
            };
            norm::end_block(pool, isa, parts.by_rank(), &mut own);
            (residual, out) = (later, next);
        }
        Ok(())
    }

    /// See [`lockstep_backend::Exchange::all_gather_rows`].
    pub(crate) fn all_gather(
        &mut self,
        axis: Axis,
        x: &CpuTensor,
        first: usize,
        counts: &[usize],
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        let (rank, width) = (self.groups.rank_and_size(axis).0, x.width());
        out.expect(counts.iter().sum(), width, "the rows of all ranks");
        self.counts.clear();
        self.counts.extend(counts.iter().map(|rows| rows * width));
        let own = &x.values()[first * width..][..self.counts[rank]];
        let collective = self.groups.of(axis);
        Ok(collective.all_gather(own, &self.counts, out.values_mut())?)
    }

    /// See [`lockstep_backend::Exchange::gather_to_host`].
    pub(crate) fn gather<'a>(
        &mut self,
        axis: Axis,
        pool: &mut Pool,
        x: &'a CpuTensor,
        owners: Owners<'_>,
        space: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError> {
        let (rank, size) = self.rank_and_size(axis);
        let own = owners.rows[rank].clone();
        if size == 1 {
            let width = x.width();
            return Ok(&x.values()[own.start * width..own.end * width]);
        }
        let Self {
            groups, gathered, ..
        } = self;
        let parts = host::gather_columns(groups.of(axis), x.values(), owners, gathered)?;
        let width = owners.widths.iter().sum();
        let space = host::grown(space, own.len() * width);
        for_rows(pool, space, width, |rows, out| {
            for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
                host::copy_row(&parts, owners.widths, row, out);
            }
        });
        Ok(space)
    }
}

/// Copies rows on all threads.
fn copy(pool: &mut Pool, from: &[f32], to: &mut [f32], width: usize) {
    for_rows(pool, to, width, |rows, part| {
        let start = rows.start * width;
        part.copy_from_slice(&from[start..start + part.len()]);
    });
}

/// Sums two ranks' parts that don't fit in the group's memory, whole rows at a time.
fn sum_in_chunks(
    collective: &mut dyn Collective,
    pool: &mut Pool,
    isa: Isa,
    own: &[f32],
    chunk: usize,
    norm: &mut AddNorm<'_>,
) -> Result<(), BackendError> {
    let rows = norm.residual.chunks_mut(chunk);
    let rows = rows.zip(norm.out.chunks_mut(chunk)).zip(own.chunks(chunk));
    for ((residual, out), own) in rows {
        let buffer = collective.sum_buffer(own.len())?;
        copy(pool, own, buffer, norm.width);
        let parts = collective.sum_parts(own.len())?;
        let mut chunk = AddNorm {
            residual,
            out,
            width: norm.width,
            ends: norm.ends,
        };
        norm::end_block(pool, isa, parts.by_rank(), &mut chunk);
    }
    Ok(())
}
