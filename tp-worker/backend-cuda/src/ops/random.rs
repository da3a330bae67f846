//! Matrices of random numbers, made on the device.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use lockstep_backend::{HostForm as _, RandomMatrix};

use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::runtime::{Compiler, Context, Defines, Kernel, Module, Stream};
use crate::tensors::{Element, Floats, blocks};

/// Threads of a block.
const THREADS: u32 = 256;

/// `Random` of `random.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Parameters {
    out: u64,
    key: u64,
    first: u64,
    stride: u64,
    step: f32,
    rows: u32,
    cols: u32,
    pad: u32,
}

/// The kernel that makes random matrices.
pub(crate) struct Random {
    operand: Element,
    kernel: Kernel<Parameters>,
}

impl Random {
    /// Compiles and loads the kernel.
    ///
    /// # Errors
    /// The errors of [`Compiler::compile`] and [`Module::load`].
    pub(crate) fn new(
        context: &Arc<Context>,
        compiler: &Compiler,
        operand: Element,
    ) -> Result<Self, CudaError> {
        let (source, defines) = source(operand);
        let module = Module::load(context, &compiler.compile(source, &defines)?)?;
        Ok(Self {
            operand,
            kernel: module.kernel("random_rows", THREADS, 0)?,
        })
    }

    /// Queues the generation of `matrix` in `out`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if `out` is too short or of another type.
    pub(crate) fn fill(
        &self,
        stream: &Stream,
        matrix: &RandomMatrix,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        out.expect(self.operand, matrix.rows() * matrix.cols, "random weights");
        let mut at = out.address();
        for block in &matrix.blocks {
            let parameters = Parameters {
                out: at,
                key: block.numbers.key,
                first: block.first as u64,
                stride: block.stride as u64,
                step: block.numbers.step,
                rows: block.rows as u32,
                cols: matrix.cols as u32,
                pad: 0,
            };
            let grid = [block.rows as u32, blocks(matrix.cols, THREADS as usize), 1];
            // SAFETY: there is room for the rows of all blocks.
            unsafe { self.kernel.launch(stream, grid, &parameters)? };
            at += (block.rows * matrix.cols * self.operand.bytes()) as u64;
        }
        Ok(())
    }
}

/// Source to compile, with its macros.
pub(crate) fn source(operand: Element) -> (&'static Source, Defines) {
    let defines = vec![("OPERAND", operand.name().to_owned())];
    (&kernels::RANDOM, defines)
}
