//! Copies of whole states, for the prefix cache and for texts that begin alike.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::CudaStates;
use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::runtime::{Buffer, Compiler, Context, Kernel, Module, Stream};
use crate::tensors::{Rows, RowsParameter, blocks};

/// Threads of a block.
const THREADS: u32 = 128;
/// Words of a large unit.
const UNIT: usize = 4;

/// Parameters of `states.cu`. Addresses are the device's.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct CopyStates {
    values: u64,
    moves: u64,
    rows: RowsParameter,
    states: u32,
    units: u32,
}

/// Kernels that copy states, in units of 16 bytes where states are whole ones, or of 4.
pub(crate) struct StateCopies {
    large: Kernel<CopyStates>,
    small: Kernel<CopyStates>,
}

impl StateCopies {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The errors of [`Compiler::compile`] and [`Module::load`].
    pub fn new(context: &Arc<Context>, compiler: &Compiler) -> Result<Self, CudaError> {
        let module = Module::load(context, &compiler.compile(source(), &[])?)?;
        Ok(Self {
            large: module.kernel("copy_states_16", THREADS, 0)?,
            small: module.kernel("copy_states_4", THREADS, 0)?,
        })
    }

    /// Copies states in all layers, one move of `moves` after the other: pairs from, to.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if there are fewer moves.
    pub fn run(
        &self,
        stream: &Stream,
        states: &mut CudaStates,
        moves: &Buffer<u32>,
        count: Rows<'_>,
    ) -> Result<(), CudaError> {
        assert!(2 * count.most() <= moves.len(), "moves lie in their list");
        for (part, width) in states.parts().into_iter().zip(states.widths()) {
            let (kernel, units) = match width {
                0 => continue,
                width if width.is_multiple_of(UNIT) => (&self.large, width / UNIT),
                width => (&self.small, width),
            };
            let parameters = CopyStates {
                values: part,
                moves: moves.address(),
                rows: count.parameter(),
                states: states.limits.states as u32,
                units: units as u32,
            };
            let grid = [blocks(units, THREADS as usize), states.layers as u32, 1];
            // SAFETY: the kernel skips states that do not exist, and they are borrowed alone. All
            // parts begin at whole units: matrices are whole ones.
            unsafe { kernel.launch(stream, grid, &parameters)? };
        }
        Ok(())
    }
}

/// Source to compile, without macros.
pub(crate) fn source() -> &'static Source {
    &kernels::STATE_COPIES
}
