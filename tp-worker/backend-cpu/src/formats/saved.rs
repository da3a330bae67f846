//! Packed matrices as bytes, to be saved and read back.

use lockstep_backend::BackendError;

use super::{CpuMatrix, Format};
use crate::gemm::PANEL;
use crate::memory::Arena;
use crate::partition::Shared;
use crate::pool::Pool;

/// Version of packed bytes: counted up whenever their order or meaning changes.
const VERSION: u32 = 1;

impl CpuMatrix {
    /// Names the packed form exactly.
    pub(crate) fn form(format: &dyn Format) -> String {
        format!("cpu-panel{PANEL}-{}-v{VERSION}", format.name())
    }

    /// The packed form; words in this machine's byte order.
    pub(crate) fn data(&self) -> &[u8] {
        bytemuck::cast_slice(&self.data)
    }

    /// A matrix of the `sizes` `[rows, cols]` whose packed form is written by `fill(offset, part)`, `unit`
    /// bytes at a time, on all threads.
    pub(crate) fn restore(
        pool: &mut Pool,
        arena: &mut Arena,
        format: &'static dyn Format,
        sizes: [usize; 2],
        unit: usize,
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
    ) -> Result<Self, BackendError> {
        let mut matrix = Self::zeroed(arena, format, sizes)?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut matrix.data);
        let (total, shared) = (bytes.len(), Shared::new(bytes));
        pool.for_chunks(total.div_ceil(unit), |_, part| {
            let from = part * unit;
            // SAFETY: parts are disjoint, and each is claimed once.
            fill(from, unsafe { shared.slice(from..total.min(from + unit)) });
        });
        Ok(matrix)
    }
}
