//! A rank's collectives, fused with what comes before and after them.

use lockstep_backend::{Axis, BackendError, Groups};
use lockstep_collective::{Collective, Parts};

use crate::isa::Isa;
use crate::norm::{self, AddNorm};
use crate::partition::for_rows;
use crate::pool::Pool;
use crate::tensor::CpuTensor;

/// The groups that one rank is in, and space for what they bring.
pub(crate) struct Collectives {
    groups: Groups,
    /// On the rank that leads: all ranks' columns, rank after rank, where they
    /// must be copied.
    gathered: Vec<f32>,
    /// Elements that each rank brings to a gather.
    counts: Vec<usize>,
}

impl Collectives {
    pub(crate) fn new(groups: Groups) -> Self {
        let (_, size) = groups.rank_and_size(Axis::World);
        Self {
            groups,
            gathered: Vec::new(),
            counts: vec![0; size],
        }
    }

    /// Bytes of its working memory.
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

    /// Sums over ranks what `product` writes, adds that to the residual and
    /// norms: the same bits as an all-reduce followed by [`norm::add_rms_norm`].
    /// `scratch` has the residual's length.
    ///
    /// Where the ranks can read each other's parts, `product` writes right
    /// there, and one pass over the parts does the rest.
    pub(crate) fn sum_add_rms_norm(
        &mut self,
        axis: Axis,
        pool: &mut Pool,
        isa: Isa,
        product: impl FnOnce(&mut Pool, &mut [f32]),
        scratch: &mut [f32],
        mut norm: AddNorm<'_>,
    ) -> Result<(), BackendError> {
        let collective = self.of(axis);
        let (size, width) = (collective.size(), norm.weight.len());
        let capacity = collective.sum_capacity();
        let rows_at_once = capacity / width.max(1);
        if size > 1 && scratch.len() <= capacity {
            let length = scratch.len();
            product(pool, collective.sum_buffer(length)?);
            let parts = collective.sum_parts(length)?;
            norm::add_parts_rms_norm(pool, isa, parts.by_rank(), &mut norm);
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
        norm::add_parts_rms_norm(pool, isa, &[scratch], &mut norm);
        Ok(())
    }

    /// Brings `x` of all ranks to the one that leads, columns in rank order: see
    /// [`lockstep_backend::Backend::gather_to_host`].
    pub(crate) fn gather<'a>(
        &mut self,
        axis: Axis,
        pool: &mut Pool,
        x: &'a CpuTensor,
        widths: &[usize],
        space: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError> {
        let (rank, size) = self.rank_and_size(axis);
        let rows = x.rows();
        if size == 1 {
            return Ok(x.values());
        }
        let Self {
            groups,
            gathered,
            counts,
        } = self;
        let collective = groups.of(axis);
        counts.clear();
        counts.extend(widths.iter().map(|width| rows * width));
        let lends = counts.iter().all(|&n| n <= collective.gather_capacity());
        if lends {
            let Some(parts) = collective.gather_parts(x.values(), counts)? else {
                return Ok(&[]);
            };
            return Ok(side_by_side(pool, &parts, rows, widths, space));
        }
        if rank > 0 {
            collective.gather(x.values(), counts, None)?;
            return Ok(&[]);
        }
        gathered.resize(counts.iter().sum(), 0.0);
        collective.gather(x.values(), counts, Some(gathered))?;
        let mut rest = gathered.as_slice();
        let parts = Parts::new(size, |rank| {
            let (part, after) = rest.split_at(counts[rank]);
            rest = after;
            part
        });
        Ok(side_by_side(pool, &parts, rows, widths, space))
    }
}

/// Two ranks' sum of more than the group lends, whole rows at a time.
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
        for_rows(pool, buffer, norm.weight.len(), |rows, part| {
            let start = rows.start * norm.weight.len();
            part.copy_from_slice(&own[start..start + part.len()]);
        });
        let parts = collective.sum_parts(own.len())?;
        let mut chunk = AddNorm {
            residual,
            out,
            weight: norm.weight,
            eps: norm.eps,
        };
        norm::add_parts_rms_norm(pool, isa, parts.by_rank(), &mut chunk);
    }
    Ok(())
}

/// Rows made of the ranks' columns.
fn side_by_side<'a>(
    pool: &mut Pool,
    parts: &Parts<'_>,
    rows: usize,
    widths: &[usize],
    space: &'a mut Vec<f32>,
) -> &'a [f32] {
    let total: usize = widths.iter().sum();
    // It never shrinks, so that growing again does not fill it with zeros.
    if space.len() < rows * total {
        space.resize(rows * total, 0.0);
    }
    let space = &mut space[..rows * total];
    for_rows(pool, space, total, |rows, out| {
        for (row, out) in rows.zip(out.chunks_exact_mut(total)) {
            let mut out = out;
            for (part, &width) in parts.by_rank().iter().zip(widths) {
                let (own, rest) = out.split_at_mut(width);
                own.copy_from_slice(&part[row * width..(row + 1) * width]);
                out = rest;
            }
        }
    });
    space
}
