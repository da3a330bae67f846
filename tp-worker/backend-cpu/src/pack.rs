//! Weights in the order the kernels read them.

use lockstep_backend::{BackendError, DType, HostMatrix};

use crate::gemm::{Element, Input, PANEL};
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::number::{bf16_value, pack_row};
use crate::partition::{Shared, share};
use crate::pool::Pool;

/// Input values decoded at once; even, so that bf16 pairs never straddle chunks.
const CHUNK: usize = 256;

/// A weight matrix `[out, in]` as panels of 32 output columns:
/// `[⌈out / 32⌉][steps][32]`, where a step is one f32 or two bf16 of a column;
/// columns past `out` are zero.
pub struct CpuMatrix {
    pub(crate) data: Buffer<u32>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) element: Element,
}

impl CpuMatrix {
    /// Packs `matrix`, converting it to `element`, on all threads.
    pub(crate) fn pack(
        pool: &mut Pool,
        isa: Isa,
        element: Element,
        matrix: &HostMatrix<'_>,
    ) -> Result<Self, BackendError> {
        let (rows, cols) = (matrix.rows(), matrix.cols);
        if let Some(row) = (0..rows).find(|&row| matrix.row(row).is_none()) {
            return Err(BackendError::Unsupported(format!(
                "row {row} of a {rows} x {cols} weight matrix lies outside its file; \
                 download the checkpoint again"
            )));
        }
        let panels = rows.div_ceil(PANEL);
        let panel_len = element.steps(cols) * element.step_words();
        let mut data = Buffer::zeroed(panels * panel_len, "a weight matrix")?;
        let (shares, shared) = (pool.threads(), Shared::new(&mut data));
        pool.run(|thread| {
            for panel in share(panels, shares, thread) {
                // SAFETY: each panel belongs to one thread.
                let out = unsafe { shared.slice(panel * panel_len..(panel + 1) * panel_len) };
                pack_panel(isa, element, matrix, panel, out);
            }
        });
        Ok(Self {
            data,
            rows,
            cols,
            element,
        })
    }

    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    pub(crate) fn steps(&self) -> usize {
        self.element.steps(self.cols)
    }

    /// Bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.data.bytes()
    }

    /// Copies row `row` (an output column of the product) to `out`.
    pub(crate) fn read_row(&self, row: usize, out: &mut [f32]) {
        let start = (row / PANEL) * self.steps() * self.element.step_words() + row % PANEL;
        let steps = self.data[start..].iter().step_by(PANEL);
        match self.element {
            Element::F32 => {
                for (value, step) in out.iter_mut().zip(steps) {
                    *value = f32::from_bits(*step);
                }
            }
            Element::Bf16 => {
                for (pair, step) in out.chunks_mut(2).zip(steps) {
                    pair[0] = bf16_value(*step as u16);
                    if let Some(second) = pair.get_mut(1) {
                        *second = bf16_value((*step >> 16) as u16);
                    }
                }
            }
        }
    }
}

/// Chunk by chunk, so that the part of the panel being scattered to stays in cache.
fn pack_panel(isa: Isa, element: Element, matrix: &HostMatrix<'_>, panel: usize, out: &mut [u32]) {
    let input = match element {
        Element::F32 => Input::F32,
        Element::Bf16 => Input::Pairs,
    };
    let width = matrix.dtype.bytes();
    let mut values = [0.0; CHUNK];
    let mut sources: [&[u8]; PANEL] = [&[]; PANEL];
    for (lane, source) in sources.iter_mut().enumerate() {
        *source = matrix.row(panel * PANEL + lane).unwrap_or(&[]);
    }
    for from in (0..matrix.cols).step_by(CHUNK) {
        let to = matrix.cols.min(from + CHUNK);
        for (lane, source) in sources
            .iter()
            .enumerate()
            .filter(|(_, source)| !source.is_empty())
        {
            let values = &mut values[..to - from];
            decode(matrix.dtype, &source[from * width..to * width], values);
            pack_row(
                isa,
                input,
                values,
                out,
                element.steps(from) * PANEL + lane,
                PANEL,
            );
        }
    }
}

/// Little-endian values of any type as f32, which holds them all exactly.
fn decode(dtype: DType, bytes: &[u8], values: &mut [f32]) {
    match dtype {
        DType::F32 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        DType::Bf16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = bf16_value(u16::from_le_bytes(*bytes));
            }
        }
        DType::F16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = half::f16::from_le_bytes(*bytes).to_f32();
            }
        }
    }
}
