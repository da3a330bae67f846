//! Recurrences over matrices of heads, between a layer's projections: Gated DeltaNet and Mamba-2.
//! Kernels are compiled for a rule and a shape of heads when a model first asks for it.

mod parameters;
mod weights;

use std::sync::Arc;

use lockstep_backend::{DeltaShape, Recurrence};

use super::states::{CudaStates, Places, check_recurrence};
use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::passes::Inputs;
use crate::runtime::{Compiler, Context, Defines, Kernel, Module, Stream};
use crate::tensors::{Element, Floats, blocks};
use parameters::Delta;
pub(crate) use weights::HeadWeights;

/// Threads of a block, of which each warp has a head.
const THREADS: u32 = 128;
const WARPS: usize = THREADS as usize / 32;
/// Threads that share a column of a matrix.
const PARTS: usize = 4;

/// Columns of a matrix that a block has.
fn tile_width(shape: &DeltaShape) -> usize {
    if shape.value_dim.is_multiple_of(32) {
        32
    } else {
        16
    }
}

/// Rule by which matrices of heads go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadRule {
    /// The gated delta rule.
    Delta,
    /// Mamba-2's.
    Mamba2,
}

impl HeadRule {
    /// Kernels around the recurrence: before it and behind it.
    fn around(self) -> [&'static str; 2] {
        match self {
            Self::Delta => ["delta_prepare", "delta_finish"],
            Self::Mamba2 => ["mamba_prepare", "mamba_finish"],
        }
    }

    /// Numbers that each head gets for a token: a strength and a decay, or a decay.
    fn gates(self) -> usize {
        match self {
            Self::Delta => 2,
            Self::Mamba2 => 1,
        }
    }

    /// Type of the output, where products read operands of a type: Mamba-2's is normed first.
    fn output(self, operand: Element) -> Element {
        match self {
            Self::Delta => operand,
            Self::Mamba2 => Element::F32,
        }
    }

    fn of_heads(self, shape: DeltaShape) -> Recurrence {
        match self {
            Self::Delta => Recurrence::Delta(shape),
            Self::Mamba2 => Recurrence::Mamba2(shape),
        }
    }
}

/// Activations of a call, as [`lockstep_backend::DeltaOperands`] or
/// [`lockstep_backend::Mamba2Operands`] has them.
pub(crate) struct HeadTensors<'a> {
    /// Queries, keys, values and gates of each token, before the convolution.
    pub projected: &'a Floats,
    /// Strengths and decays of each token, or decays.
    pub gates: &'a mut Floats,
    /// Space for queries, keys and values behind the convolution.
    pub space: &'a mut Floats,
    /// Output of the heads.
    pub out: &'a mut Floats,
}

/// Kernels of recurrent layers of one rule, with heads of one shape.
///
/// # Panics
/// Operations panic where arrays are too short or of another type. States and records of a batch
/// that don't exist are skipped.
pub(crate) struct HeadOps {
    rule: HeadRule,
    shape: DeltaShape,
    operand: Element,
    prepare: Kernel<Delta>,
    recur: Kernel<Delta>,
    finish: Kernel<Delta>,
}

impl HeadOps {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] for heads that are too wide or no whole units; the errors of
    /// [`Compiler::compile`] and [`Module::load`].
    pub fn new(
        context: &Arc<Context>,
        compiler: &Compiler,
        (rule, shape): (HeadRule, &DeltaShape),
        operand: Element,
    ) -> Result<Self, CudaError> {
        check_recurrence(&rule.of_heads(*shape))?;
        let load = |(source, defines): (&Source, Defines)| -> Result<_, CudaError> {
            Module::load(context, &compiler.compile(source, &defines)?)
        };
        let [rest, recur] = sources((rule, shape), operand).map(load);
        let (rest, recur) = (rest?, recur?);
        let [prepare, finish] = rule.around();
        Ok(Self {
            rule,
            shape: *shape,
            operand,
            prepare: rest.kernel(prepare, THREADS, 0)?,
            recur: recur.kernel("delta_recur", Self::columns_at_once(shape), 0)?,
            finish: rest.kernel(finish, THREADS, 0)?,
        })
    }

    /// Threads of a block of the recurrence.
    fn columns_at_once(shape: &DeltaShape) -> u32 {
        (PARTS * tile_width(shape)) as u32
    }

    /// Returns true if the kernels were compiled for heads of `shape` by `rule`.
    pub fn serve(&self, rule: HeadRule, shape: &DeltaShape) -> bool {
        self.rule == rule && self.shape == *shape
    }

    /// Runs all of a layer: see [`lockstep_backend::Ops::gated_delta`] and
    /// [`lockstep_backend::Ops::mamba2`].
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
        weights: HeadWeights<'_>,
        tensors: &HeadTensors<'_>,
        inputs: &Inputs,
    ) -> Result<(), CudaError> {
        let shape = &self.shape;
        let (tokens, rows) = (inputs.tokens().most() as u32, inputs.rows().most() as u32);
        let parameters = self.parameters((states, layer), weights, tensors, inputs);
        let heads = blocks(2 * shape.key_heads + shape.value_heads, WARPS);
        let threads = Self::columns_at_once(shape) as usize;
        let tiles = (shape.value_heads * (shape.value_dim / tile_width(shape))) as u32;
        let recur = tiles + blocks(shape.channels(), threads);
        let (prepare, finish) = match self.rule {
            HeadRule::Delta => (
                heads + blocks(shape.value_heads, THREADS as usize),
                blocks(shape.value_heads, WARPS),
            ),
            HeadRule::Mamba2 => (heads, blocks(shape.value_width(), THREADS as usize)),
        };
        // SAFETY: all arrays have room for the tokens that there are blocks for, states and
        // records for all that kernels do not skip, and what is written is borrowed alone.
        unsafe {
            self.prepare
                .launch(stream, [tokens, prepare, 1], &parameters)?;
            self.recur.launch(stream, [rows, recur, 1], &parameters)?;
            self.finish.launch(stream, [tokens, finish, 1], &parameters)
        }
    }

    /// Checks the operands of a call, and names them to the kernels.
    fn parameters(
        &self,
        (states, layer): (&CudaStates, usize),
        weights: HeadWeights<'_>,
        tensors: &HeadTensors<'_>,
        inputs: &Inputs,
    ) -> Delta {
        let (shape, most) = (&self.shape, inputs.tokens().most());
        let (channels, values) = (shape.channels(), shape.value_width());
        let limits = states.limits();
        assert!(
            *states.rule() == self.rule.of_heads(*shape),
            "states have the layer's rule and heads"
        );
        inputs.expect_states(limits);
        let (f32, heads) = (Element::F32, shape.value_heads);
        let projected = most * (channels + values);
        tensors
            .projected
            .expect(f32, projected, "the projections of a layer");
        let gates = most * self.rule.gates() * heads;
        tensors.gates.expect(f32, gates, "gates of heads");
        tensors
            .space
            .expect(f32, most * channels, "space for convolutions");
        let output = self.rule.output(self.operand);
        let out = most * values;
        tensors.out.expect(output, out, "the output of heads");
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
            ..weights.parameters(shape)
        }
    }
}

/// Sources to compile, with their macros: the recurrence comes last.
pub(crate) fn sources(
    (rule, shape): (HeadRule, &DeltaShape),
    operand: Element,
) -> [(&'static Source, Defines); 2] {
    let scans = u32::from(rule == HeadRule::Mamba2);
    let defines = vec![
        ("OPERAND", rule.output(operand).name().to_owned()),
        ("KEY_DIM", shape.key_dim.to_string()),
        ("VALUE_DIM", shape.value_dim.to_string()),
        ("TAPS", shape.taps.to_string()),
        ("COLUMNS", tile_width(shape).to_string()),
        ("SCANS", scans.to_string()),
    ];
    let around = match rule {
        HeadRule::Delta => &kernels::DELTA,
        HeadRule::Mamba2 => &kernels::MAMBA,
    };
    [(around, defines.clone()), (&kernels::RECUR, defines)]
}
