//! Exchanges of the naive backend, each in the plainest way.

use lockstep_backend::{
    Axis, BackendError, BlockEnd, Exchange, Holds, Memory as _, Ops as _, Owners, Scatter,
};
use lockstep_collective::Collective;
use lockstep_model::CollectiveKind;

use super::{Naive, OPERAND, SUM, Tensor};

impl Exchange for Naive {
    fn group(&self, axis: Axis) -> (usize, usize) {
        self.groups.rank_and_size(axis)
    }
    fn all_reduce(&mut self, axis: Axis, x: &mut Tensor) -> Result<(), BackendError> {
        x.holds(SUM);
        if axis == Axis::Alone || self.is_alone(axis) {
            return Ok(());
        }
        self.note(CollectiveKind::AllReduce, axis, x.width);
        Ok(self.groups.of(axis).all_reduce_sum(x.used())?)
    }
    /// Runs an all-reduce, and throws the other ranks' rows away.
    fn scatter_end_block(
        &mut self,
        axis: Axis,
        scatter: Scatter<'_, Tensor>,
        residual: &mut Tensor,
        end: BlockEnd<'_, Vec<f32>>,
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        let Scatter { rows, product } = scatter;
        let own = rows[self.group(axis).0].clone();
        product.holds(SUM);
        self.note(CollectiveKind::ReduceScatter, axis, product.width);
        self.groups.of(axis).all_reduce_sum(product.used())?;
        let mut sum = self.tensor(own.len(), product.width, Holds::Sum)?;
        for (to, from) in own.enumerate() {
            sum.row_mut(to).copy_from_slice(product.row(from));
        }
        self.end_block(residual, Some(&sum), end, out);
        Ok(())
    }
    /// Broadcasts each row from the rank that has it.
    fn all_gather_rows(
        &mut self,
        axis: Axis,
        x: &Tensor,
        first: usize,
        counts: &[usize],
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        x.holds(OPERAND);
        out.holds(OPERAND);
        assert_eq!(out.rows, counts.iter().sum::<usize>());
        let (rank, _) = self.group(axis);
        self.note(CollectiveKind::AllGather, axis, x.width);
        let mut to = 0;
        for (from, &count) in counts.iter().enumerate() {
            for row in first..first + count {
                let mut bits: Vec<u32> = vec![0; x.width];
                if from == rank {
                    bits = x.row(row).iter().map(|value| value.to_bits()).collect();
                }
                self.groups.of(axis).broadcast(from, &mut bits)?;
                let values = out.row_mut(to).iter_mut();
                values
                    .zip(bits)
                    .for_each(|(to, bits)| *to = f32::from_bits(bits));
                to += 1;
            }
        }
        Ok(())
    }
    /// Brings all columns and rows to every rank. Each rank takes its own rows.
    fn gather_to_host<'a>(
        &mut self,
        axis: Axis,
        x: &'a Tensor,
        owners: Owners<'_>,
        out: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError> {
        x.holds(&[Holds::Logits]);
        let (rank, _) = self.group(axis);
        let total: usize = owners.widths.iter().sum();
        if axis != Axis::Alone {
            self.note(CollectiveKind::Gather, axis, total);
        }
        let counts: Vec<usize> = owners.widths.iter().map(|width| width * x.rows).collect();
        let mut all = vec![0.0; total * x.rows];
        let own = &x.data[..x.rows * x.width];
        self.groups.of(axis).all_gather(own, &counts, &mut all)?;
        out.clear();
        for row in owners.rows[rank].clone() {
            let mut part = all.as_slice();
            for &width in owners.widths {
                let (values, rest) = part.split_at(width * x.rows);
                out.extend_from_slice(&values[row * width..(row + 1) * width]);
                part = rest;
            }
        }
        Ok(out)
    }
    fn control(&mut self, axis: Axis) -> &mut dyn Collective {
        self.groups.of(axis)
    }
}
