//! A packed weight matrix.

use lockstep_backend::{
    BackendError, CheckpointDtype, HostBlock, HostFloats, HostMatrix, WeightFormat,
};
use lockstep_types::Dtype;

use super::Format;
use crate::gemm::PANEL;
use crate::isa::Isa;
use crate::memory::{Arena, Buffer};
use crate::partition::{Shared, share};
use crate::pool::Pool;

/// A weight matrix `[out, in]` as panels of 32 output columns:
/// `[⌈out / 32⌉][steps][words of a step]`. [`Format`] says what a step is. Columns past
/// `out` are zero.
pub struct CpuMatrix {
    pub(crate) data: Buffer<u32>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) format: &'static dyn Format,
}

impl CpuMatrix {
    /// Packs `matrix`, converting it to `format`, on all threads.
    pub(crate) fn pack(
        pool: &mut Pool,
        arena: &mut Arena,
        isa: Isa,
        format: &'static dyn Format,
        matrix: &HostMatrix<'_>,
    ) -> Result<Self, BackendError> {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        if let Some(row) = matrix.missing_row() {
            return Err(BackendError::Unsupported(format!(
                "row {row} of a {rows} x {cols} weight matrix lies outside its file; \
                 download the checkpoint again"
            )));
        }
        let mut packed = Self::zeroed(arena, format, [rows, cols])?;
        packed.pack_panels(pool, isa, matrix);
        Ok(packed)
    }

    /// Packs `matrix`, of the same shape, in place of what is there.
    pub(crate) fn replace(
        &mut self,
        pool: &mut Pool,
        isa: Isa,
        matrix: &HostMatrix<'_>,
    ) -> Result<(), BackendError> {
        let found = [matrix.rows(), matrix.cols()];
        if found != [self.rows, self.cols] || matrix.missing_row().is_some() {
            return Err(BackendError::Unsupported(format!(
                "{found:?} values were to replace a matrix of {} x {}: this is a bug",
                self.rows, self.cols
            )));
        }
        self.data.fill(0);
        self.pack_panels(pool, isa, matrix);
        Ok(())
    }

    /// Packs all panels into zeros.
    fn pack_panels(&mut self, pool: &mut Pool, isa: Isa, matrix: &HostMatrix<'_>) {
        let (panels, panel_len, format) = (self.panels(), self.panel_len(), self.format);
        let (shares, shared) = (pool.threads(), Shared::new(&mut self.data));
        pool.run(|thread| {
            for panel in share(panels, shares, thread) {
                // SAFETY: each panel belongs to one thread.
                let out = unsafe { shared.slice(panel * panel_len..(panel + 1) * panel_len) };
                format.pack_panel(isa, matrix, panel, out);
            }
        });
    }

    /// Returns the matrix as 32-bit floats of the same values, which are multiplied with inputs
    /// that are not rounded.
    pub(crate) fn dequantized(
        &self,
        pool: &mut Pool,
        arena: &mut Arena,
        isa: Isa,
    ) -> Result<Self, BackendError> {
        let mut row = vec![0.0f32; self.cols];
        let mut bytes = Vec::with_capacity(self.rows * self.cols * size_of::<f32>());
        for at in 0..self.rows {
            self.read_row(at, &mut row);
            bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
        }
        let floats = HostFloats {
            cols: self.cols,
            dtype: CheckpointDtype::F32,
            blocks: vec![HostBlock {
                bytes: &bytes,
                offset: 0,
                stride: self.cols * size_of::<f32>(),
                rows: self.rows,
            }],
        };
        let format = super::of(Dtype::Float32, WeightFormat::Dequantized);
        Self::pack(pool, arena, isa, format, &HostMatrix::Floats(floats))
    }

    /// A matrix of zeros.
    pub(super) fn zeroed(
        arena: &mut Arena,
        format: &'static dyn Format,
        [rows, cols]: [usize; 2],
    ) -> Result<Self, BackendError> {
        Ok(Self {
            data: Buffer::zeroed_in(arena, words(format, rows, cols), "a weight matrix")?,
            rows,
            cols,
            format,
        })
    }

    /// Words of one panel.
    fn panel_len(&self) -> usize {
        self.steps() * self.format.step_words()
    }

    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    pub(crate) fn steps(&self) -> usize {
        self.format.steps(self.cols)
    }

    /// Bytes of the packed matrix.
    pub(crate) fn bytes(&self) -> usize {
        self.data.bytes()
    }

    /// Copies row `row` (an output column of the product) to `out`.
    pub(crate) fn read_row(&self, row: usize, out: &mut [f32]) {
        let panel_len = self.panel_len();
        let panel = &self.data[(row / PANEL) * panel_len..][..panel_len];
        let lane = row % PANEL;
        self.format.read_row(panel, lane, out);
    }
}

/// 4-byte words of a matrix `[rows, cols]`.
pub(crate) fn words(format: &dyn Format, rows: usize, cols: usize) -> usize {
    rows.div_ceil(PANEL) * format.steps(cols) * format.step_words()
}
