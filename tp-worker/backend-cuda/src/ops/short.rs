//! Gated short convolutions between their projections. Kernels are compiled for a number of taps when
//! a model first asks for it.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use lockstep_backend::{Recurrence, ShortConvolution};

use super::states::CudaStates;
use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::passes::Inputs;
use crate::runtime::{Buffer, Compiler, Context, Defines, Kernel, Module, Stream};
use crate::tensors::{Element, Floats, blocks};

/// Threads of a block.
const THREADS: u32 = 256;

/// Parameters of `short.cu`. Addresses are the device's.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Short {
    projected: u64,
    out: u64,
    convolution: u64,
    bias: u64,
    columns: u64,
    raw: u64,
    batch: u64,
    tokens: u32,
    rows: u32,
    channels: u32,
    states: u32,
    records: u32,
    nodes: u32,
}

/// Kernels of short convolutions of some taps.
///
/// # Panics
/// Operations panic where arrays are too short or of another type. States and records of a batch
/// that don't exist are skipped.
pub(crate) struct ShortOps {
    taps: usize,
    operand: Element,
    convolve: Kernel<Short>,
    commit: Kernel<Short>,
}

impl ShortOps {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The errors of [`Compiler::compile`] and [`Module::load`].
    pub fn new(
        context: &Arc<Context>,
        compiler: &Compiler,
        taps: usize,
        operand: Element,
    ) -> Result<Self, CudaError> {
        let (source, defines) = source(taps, operand);
        let module = Module::load(context, &compiler.compile(source, &defines)?)?;
        Ok(Self {
            taps,
            operand,
            convolve: module.kernel("short_convolve", THREADS, 0)?,
            commit: module.kernel("short_commit", THREADS, 0)?,
        })
    }

    /// Taps that the kernels were compiled for.
    pub fn taps(&self) -> usize {
        self.taps
    }

    /// Runs all of a layer: see [`lockstep_backend::Ops::short_convolution`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if the staged batch names what `states` does not have.
    pub fn run(
        &self,
        stream: &Stream,
        (states, layer): (&mut CudaStates, usize),
        op: &ShortConvolution<'_, Buffer<f32>>,
        projected: &Floats,
        out: &mut Floats,
        inputs: &Inputs,
    ) -> Result<(), CudaError> {
        let (shape, limits) = (op.shape, states.limits());
        let (channels, tokens) = (shape.channels, inputs.tokens().most());
        assert!(shape.taps == self.taps, "kernels are for some taps");
        assert!(
            *states.rule() == Recurrence::Convolution(shape),
            "states have the layer's channels"
        );
        inputs.expect_states(limits);
        let room = tokens * channels;
        projected.expect(Element::F32, 3 * room, "the projections of a layer");
        out.expect(self.operand, room, "the output of channels");
        assert!(
            op.convolution.len() == shape.taps * channels
                && op.bias.is_none_or(|bias| bias.len() == channels),
            "weights of a recurrent layer have its sizes"
        );
        let places = states.of_layer(layer);
        let rows = inputs.rows().most() as u32;
        let parameters = Short {
            projected: projected.address(),
            out: out.address(),
            convolution: op.convolution.address(),
            bias: op.bias.map_or(0, Buffer::address),
            columns: places.columns,
            raw: places.raw,
            batch: inputs.address(),
            tokens: tokens as u32,
            rows,
            channels: channels as u32,
            states: limits.states as u32,
            records: limits.records as u32,
            nodes: limits.nodes as u32,
        };
        let columns = blocks(channels, THREADS as usize);
        // SAFETY: all arrays have room for the tokens that there are blocks for, states and
        // records for all that kernels do not skip, and what is written is borrowed alone.
        unsafe {
            self.convolve
                .launch(stream, [tokens as u32, columns, 1], &parameters)?;
            self.commit.launch(stream, [rows, columns, 1], &parameters)
        }
    }
}

/// Source to compile, with its macros.
pub(crate) fn source(taps: usize, operand: Element) -> (&'static Source, Defines) {
    let defines = vec![
        ("OPERAND", operand.name().to_owned()),
        ("TAPS", taps.to_string()),
    ];
    (&kernels::SHORT, defines)
}
