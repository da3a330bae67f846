//! Adapters of the naive backend: one row after the other.

use lockstep_backend::{
    Adapt, AdaptedLinear, BackendError, HostMatrix, Memory as _, NO_ADAPTER, WeightFormat,
};

use super::arithmetic::dot;
use super::{Inputs, Naive, OPERAND, SUM, Tensor};

impl Adapt for Naive {
    fn serves_adapters() -> Result<(), &'static str> {
        Ok(())
    }
    fn replace_matrix(
        &mut self,
        matrix: &mut Tensor,
        with: &HostMatrix<'_>,
    ) -> Result<(), BackendError> {
        assert_eq!((matrix.rows, matrix.width), (with.rows(), with.cols()));
        *matrix = self.load_matrix(with, WeightFormat::Float)?;
        Ok(())
    }
    fn adapter_places(&mut self, inputs: &Inputs, out: &mut Tensor) -> Result<(), BackendError> {
        assert_eq!((out.rows, out.width), (inputs.tokens.len(), 1));
        out.holds(OPERAND);
        out.used().fill(NO_ADAPTER);
        for (row, place) in inputs.rows.iter().zip(&inputs.adapters) {
            for token in row.start..row.start + row.q_len {
                out.row_mut(token as usize)[0] = place.map_or(NO_ADAPTER, f32::from);
            }
        }
        Ok(())
    }
    fn add_adapters(
        &mut self,
        x: &Tensor,
        adapters: &AdaptedLinear<Tensor>,
        places: &Tensor,
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        x.holds(OPERAND);
        places.holds(OPERAND);
        out.holds(SUM);
        assert_eq!((x.rows, places.rows), (out.rows, out.rows));
        for row in 0..out.rows {
            let place = places.row(row)[0];
            if place == NO_ADAPTER {
                continue;
            }
            let place = place as usize;
            for (number, part) in adapters.parts.iter().enumerate() {
                let Some(scale) = part.scales[place] else {
                    continue;
                };
                let first = number * adapters.rank;
                let lower = |at| scale * dot(x.row(row), adapters.down[place].row(first + at));
                let lowered: Vec<f32> = (0..adapters.rank).map(lower).collect();
                for (at, column) in part.outputs.clone().enumerate() {
                    out.row_mut(row)[column] += dot(&lowered, part.up[place].row(at));
                }
            }
        }
        Ok(())
    }
}
