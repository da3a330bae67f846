//! Gated DeltaNet between its projections. Kernels are compiled for a shape of heads when a model
//! first asks for it.

mod parameters;
mod states;

use std::sync::Arc;

use lockstep_backend::{DeltaShape, GatedDelta};
use lockstep_types::GatedDeltaSpec;

use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::passes::Inputs;
use crate::runtime::{Buffer, Compiler, Context, Defines, Kernel, Module, Stream};
use crate::tensors::{Element, Floats, Rows, blocks};
use parameters::{CopyStates, Delta};
use states::Places;
pub use states::{CudaStates, OTHER_RULES};

/// Threads of a block, of which each warp has a head.
const THREADS: u32 = 128;
const WARPS: usize = THREADS as usize / 32;
/// Threads that share a column of a matrix.
const PARTS: usize = 4;
/// Widest heads: a thread has a fourth of a column of a matrix in registers.
const WIDEST: usize = 256;

/// Returns `Ok` if there are kernels for recurrent layers of this shape.
///
/// # Errors
/// [`CudaError::Unsupported`] for heads that are too wide or no whole units.
pub fn check_delta(shape: &DeltaShape) -> Result<(), CudaError> {
    let unit = GatedDeltaSpec::UNIT;
    let served = |dim: usize| dim.is_multiple_of(unit) && (unit..=WIDEST).contains(&dim);
    match served(shape.key_dim) && served(shape.value_dim) {
        true => Ok(()),
        false => Err(CudaError::Unsupported(format!(
            "heads of recurrent layers are {} and {} wide, and GPUs serve multiples of {unit} up to {WIDEST}: give --device cpu",
            shape.key_dim, shape.value_dim
        ))),
    }
}

/// Columns of a matrix that a block has.
fn tile_width(shape: &DeltaShape) -> usize {
    if shape.value_dim.is_multiple_of(32) {
        32
    } else {
        16
    }
}

/// Activations of a call, as [`lockstep_backend::DeltaOperands`] has them.
pub(crate) struct DeltaTensors<'a> {
    /// Queries, keys, values and gates of each token, before the convolution.
    pub projected: &'a Floats,
    /// Strengths and decays of each token.
    pub gates: &'a mut Floats,
    /// Space for queries, keys and values behind the convolution.
    pub space: &'a mut Floats,
    /// Output of the heads.
    pub out: &'a mut Floats,
}

/// Kernels of recurrent layers with heads of one shape.
///
/// # Panics
/// Operations panic where arrays are too short or of another type. States and records of a batch
/// that don't exist are skipped.
pub(crate) struct DeltaOps {
    shape: DeltaShape,
    operand: Element,
    prepare: Kernel<Delta>,
    recur: Kernel<Delta>,
    finish: Kernel<Delta>,
    copy_states: Kernel<CopyStates>,
}

impl DeltaOps {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The errors of [`check_delta`], [`Compiler::compile`] and [`Module::load`].
    pub fn new(
        context: &Arc<Context>,
        compiler: &Compiler,
        shape: &DeltaShape,
        operand: Element,
    ) -> Result<Self, CudaError> {
        check_delta(shape)?;
        let load = |(source, defines): (&Source, Defines)| -> Result<_, CudaError> {
            Module::load(context, &compiler.compile(source, &defines)?)
        };
        let [rest, recur] = sources(shape, operand).map(load);
        let (rest, recur) = (rest?, recur?);
        Ok(Self {
            shape: *shape,
            operand,
            prepare: rest.kernel("delta_prepare", THREADS, 0)?,
            recur: recur.kernel("delta_recur", Self::columns_at_once(shape), 0)?,
            finish: rest.kernel("delta_finish", THREADS, 0)?,
            copy_states: rest.kernel("copy_states", THREADS, 0)?,
        })
    }

    /// Threads of a block of the recurrence.
    fn columns_at_once(shape: &DeltaShape) -> u32 {
        (PARTS * tile_width(shape)) as u32
    }

    /// Heads that the kernels were compiled for.
    pub fn shape(&self) -> &DeltaShape {
        &self.shape
    }

    /// Runs all of a layer: see [`lockstep_backend::Ops::gated_delta`].
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
        op: &GatedDelta<'_, Buffer<f32>>,
        tensors: &DeltaTensors<'_>,
        inputs: &Inputs,
    ) -> Result<(), CudaError> {
        let shape = &self.shape;
        let (tokens, rows) = (inputs.tokens().most(), inputs.rows().most());
        let parameters = self.parameters((states, layer), op, tensors, inputs);
        let heads = 2 * shape.key_heads + shape.value_heads;
        let gates = blocks(shape.value_heads, THREADS as usize);
        let prepare = [tokens as u32, blocks(heads, WARPS) + gates, 1];
        let threads = Self::columns_at_once(shape) as usize;
        let tiles = (shape.value_heads * (shape.value_dim / tile_width(shape))) as u32;
        let recur = [rows as u32, tiles + blocks(shape.channels(), threads), 1];
        let finish = [tokens as u32, blocks(shape.value_heads, WARPS), 1];
        // SAFETY: all arrays have room for the tokens that there are blocks for, states and
        // records for all that kernels do not skip, and what is written is borrowed alone.
        unsafe {
            self.prepare.launch(stream, prepare, &parameters)?;
            self.recur.launch(stream, recur, &parameters)?;
            self.finish.launch(stream, finish, &parameters)
        }
    }

    /// Checks the operands of a call, and names them to the kernels.
    fn parameters(
        &self,
        (states, layer): (&CudaStates, usize),
        op: &GatedDelta<'_, Buffer<f32>>,
        tensors: &DeltaTensors<'_>,
        inputs: &Inputs,
    ) -> Delta {
        let (shape, most) = (&self.shape, inputs.tokens().most());
        let (channels, values) = (shape.channels(), shape.value_width());
        let limits = states.limits();
        assert!(states.heads() == shape, "states have the layer's heads");
        inputs.expect_states(limits);
        let (f32, heads) = (Element::F32, shape.value_heads);
        let projected = most * (channels + values);
        tensors
            .projected
            .expect(f32, projected, "the projections of a layer");
        tensors
            .gates
            .expect(f32, most * 2 * heads, "strengths and decays");
        tensors
            .space
            .expect(f32, most * channels, "space for convolutions");
        let out = most * values;
        tensors.out.expect(self.operand, out, "the output of heads");
        let weights = [op.convolution, op.a_log, op.dt_bias, op.norm];
        assert!(
            weights.map(Buffer::len) == [shape.taps * channels, heads, heads, shape.value_dim],
            "weights of a recurrent layer have its sizes"
        );
        let [convolution, a_log, dt_bias, norm] = weights.map(Buffer::address);
        let Places {
            matrices,
            columns,
            keys,
            updates,
            raw,
            decays,
        } = states.of_layer(layer);
        Delta {
            projected: tensors.projected.address(),
            gates: tensors.gates.address(),
            space: tensors.space.address(),
            out: tensors.out.address(),
            convolution,
            a_log,
            dt_bias,
            norm,
            matrices,
            columns,
            keys,
            updates,
            raw,
            decays,
            batch: inputs.address(),
            tokens: most as u32,
            rows: inputs.rows().most() as u32,
            key_heads: shape.key_heads as u32,
            value_heads: heads as u32,
            states: limits.states as u32,
            records: limits.records as u32,
            nodes: limits.nodes as u32,
            eps: op.eps,
        }
    }

    /// Copies states in all layers, one move of `moves` after the other: pairs from, to.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if there are fewer moves.
    pub fn copy_states(
        &self,
        stream: &Stream,
        states: &mut CudaStates,
        moves: &Buffer<u32>,
        count: Rows<'_>,
    ) -> Result<(), CudaError> {
        assert!(2 * count.most() <= moves.len(), "moves lie in their list");
        let (layers, number) = (states.layers(), states.limits().states);
        let widths = CudaStates::widths(states.heads());
        for (part, width) in states.parts().into_iter().zip(widths) {
            // Widths are multiples of a head's, which are whole units of 16 bytes.
            let units = width / 4;
            let parameters = CopyStates {
                values: part,
                moves: moves.address(),
                rows: count.parameter(),
                states: number as u32,
                units: units as u32,
            };
            let grid = [blocks(units, THREADS as usize), layers as u32, 1];
            // SAFETY: the kernel skips states that do not exist, and they are borrowed alone.
            unsafe { self.copy_states.launch(stream, grid, &parameters)? };
        }
        Ok(())
    }
}

/// Sources to compile, with their macros: the recurrence comes last.
pub(crate) fn sources(shape: &DeltaShape, operand: Element) -> [(&'static Source, Defines); 2] {
    let defines = vec![
        ("OPERAND", operand.name().to_owned()),
        ("KEY_DIM", shape.key_dim.to_string()),
        ("VALUE_DIM", shape.value_dim.to_string()),
        ("TAPS", shape.taps.to_string()),
        ("COLUMNS", tile_width(shape).to_string()),
    ];
    [
        (&kernels::DELTA, defines.clone()),
        (&kernels::RECUR, defines),
    ]
}
