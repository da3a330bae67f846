//! Memory of the naive backend: vectors of f32.

use lockstep_backend::{
    BackendError, Holds, HostMatrix, InputLimits, KvShape, MatrixRole, Memory, RopeTable,
    StatesShape, WeightFormat,
};

use super::arithmetic::element;
use super::{Cache, Inputs, Naive, Tensor};

impl Inputs {
    /// Returns the cells of tokens, and the page tables, of a group of layers.
    pub fn of_group(&self, group: usize) -> (Vec<u32>, Vec<u32>) {
        let groups = self.cells.len().checked_div(self.tokens.len());
        let part = |list: &[u32]| {
            let each = list.len() / groups.unwrap_or(1);
            list[group * each..][..each].to_vec()
        };
        (part(&self.cells), part(&self.pages))
    }
}

impl Memory for Naive {
    type Matrix = Tensor;
    type Vector = Vec<f32>;
    type Tensor = Tensor;
    type Rope = RopeTable;
    type KvCache = Cache;
    type States = super::recurrent::States;
    type Inputs = Inputs;
    fn describe(&self, _: WeightFormat) -> String {
        "naive".to_owned()
    }
    fn serves_format(_: WeightFormat, _: MatrixRole) -> Result<(), &'static str> {
        Ok(())
    }
    /// Keeps every matrix as it is, whatever its format.
    fn load_matrix(
        &mut self,
        matrix: &HostMatrix<'_>,
        _: WeightFormat,
    ) -> Result<Tensor, BackendError> {
        let (rows, width) = (matrix.rows(), matrix.cols());
        let mut data = vec![0.0; rows * width];
        for (row, values) in data.chunks_exact_mut(width.max(1)).enumerate() {
            match matrix {
                // Not the decoder that is tested.
                HostMatrix::Floats(floats) => {
                    let bytes = floats.row(row).unwrap();
                    (0..width).for_each(|at| values[at] = element(bytes, floats.dtype, at));
                }
                other => other.form().read(row, 0, values),
            }
        }
        Ok(Tensor {
            width,
            rows,
            data,
            holds: Holds::Operand,
        })
    }
    fn load_vector(&mut self, values: &[f32]) -> Result<Vec<f32>, BackendError> {
        Ok(values.to_vec())
    }
    fn load_rope(&mut self, table: RopeTable) -> Result<RopeTable, BackendError> {
        Ok(table)
    }
    fn tensor(&mut self, rows: usize, width: usize, holds: Holds) -> Result<Tensor, BackendError> {
        Ok(Tensor {
            width,
            rows,
            // NaN shows reads of memory that was never written.
            data: vec![f32::NAN; rows * width],
            holds,
        })
    }
    fn set_rows(&mut self, tensor: &mut Tensor, rows: usize) {
        assert!(rows * tensor.width <= tensor.data.len());
        tensor.rows = rows;
    }
    fn kv_cache(&mut self, shape: &KvShape) -> Result<Cache, BackendError> {
        let cells = shape.pages * shape.page_size * shape.kv_heads * shape.head_dim;
        Ok(Cache {
            shape: *shape,
            keys: vec![vec![f32::NAN; cells]; shape.layers],
            values: vec![vec![f32::NAN; cells]; shape.layers],
        })
    }
    fn states(&mut self, shape: &StatesShape) -> Result<super::recurrent::States, BackendError> {
        Ok(super::recurrent::States::new(shape))
    }
    fn inputs(&mut self, _: &InputLimits) -> Result<Inputs, BackendError> {
        Ok(Inputs::default())
    }
    fn matrix_bytes(&self, matrix: &Tensor) -> usize {
        4 * matrix.data.len()
    }
}
