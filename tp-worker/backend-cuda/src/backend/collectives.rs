//! Collectives between ranks, and the operations right behind them.

use std::ops::Range;

use lockstep_backend::{Axis, BackendError, BlockEnd, Exchange as _, Ops as _, Owners, Scatter};

use super::CudaBackend;
use crate::ops::Sums;
use crate::runtime::Buffer;
use crate::tensors::{CudaTensor, Rows};

impl CudaBackend {
    /// See [`lockstep_backend::Exchange::all_reduce`].
    pub(super) fn sum(&mut self, axis: Axis, x: &mut CudaTensor) -> Result<(), BackendError> {
        self.failures()?;
        let len = x.rows() * x.width();
        self.exchange
            .all_reduce(&self.stream, axis, &mut x.floats, len)
    }

    /// See [`lockstep_backend::Exchange::scatter_end_block`].
    pub(super) fn scatter_sum(
        &mut self,
        axis: Axis,
        scatter: Scatter<'_, CudaTensor>,
        residual: &mut CudaTensor,
        end: BlockEnd<'_, Buffer<f32>>,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        let Scatter { rows, product } = scatter;
        let (rank, size) = self.group(axis);
        assert!(rows.len() == size, "one range of rows per rank");
        let (own, width) = (rows[rank].len(), residual.width());
        residual.expect(own, width, "the residual");
        out.expect(own, width, "the norm's output");
        product.expect(product.rows(), width, "the product's space");
        self.failures()?;
        let ends = self.ends(end, width)?;
        let product_rows = product.rows();
        let len = product_rows * width;
        let delta = &mut product.floats;
        let stream = &self.stream;
        let from = match size {
            1 => {
                expect_whole(rows, product_rows);
                0
            }
            _ => {
                let exchange = &mut self.exchange;
                exchange.reduce_scatter(stream, axis, delta, len, rows, width)?
            }
        };
        let delta = Sums::from_place(delta, from);
        let (residual, out) = (&mut residual.floats, &mut out.floats);
        let rows = Rows::fixed(own);
        let done = ends.run(&self.operations, stream, residual, Some(delta), rows, out);
        self.keep(done);
        Ok(())
    }

    /// See [`lockstep_backend::Exchange::all_gather_rows`].
    pub(super) fn gather_all(
        &mut self,
        axis: Axis,
        x: &CudaTensor,
        first: usize,
        counts: &[usize],
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        let (rank, size) = self.group(axis);
        assert!(counts.len() == size, "one count per rank");
        assert!(first + counts[rank] <= x.rows(), "rows that there are");
        let width = x.width();
        out.expect(counts.iter().sum(), width, "the rows of all ranks");
        if size == 1 {
            assert!(counts == [x.rows()], "all rows of the only rank");
            self.place_columns(x, out, 0);
            return Ok(self.failures()?);
        }
        self.failures()?;
        let (first, lens) = (first * width, counts.iter().map(|rows| rows * width));
        let (stream, out) = (&self.stream, &mut out.floats);
        self.exchange
            .all_gather(stream, axis, &x.floats, first, &lens, out)
    }

    /// See [`lockstep_backend::Exchange::gather_to_host`].
    pub(super) fn download<'a>(
        &mut self,
        axis: Axis,
        x: &CudaTensor,
        owners: Owners<'_>,
        space: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError> {
        let (rank, size) = self.group(axis);
        assert!(owners.widths.len() == size, "one width per rank");
        assert!(
            owners.widths[rank] == x.width(),
            "rank {rank}'s width is its own"
        );
        self.failures()?;
        let (stream, len) = (&self.stream, x.rows() * x.width());
        if size > 1 {
            let (exchange, x) = (&mut self.exchange, (&x.floats, len, x.capacity()));
            return exchange.gather_to_host(stream, axis, x, owners, space);
        }
        expect_whole(owners.rows, x.rows());
        // `space` never shrinks, so that growing again does not fill it with zeros.
        if space.len() < len {
            space.resize(len, 0.0);
        }
        x.floats.download_to(stream, &mut space[..len])?;
        Ok(&space[..len])
    }
}

/// Panics unless the only rank gets all of `count` rows.
fn expect_whole(rows: &[Range<usize>], count: usize) {
    let [only] = rows else {
        panic!("rows of {} ranks, there is one", rows.len());
    };
    assert!(*only == (0..count), "all rows go to the only rank");
}
