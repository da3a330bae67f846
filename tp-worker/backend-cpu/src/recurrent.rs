//! Recurrent layers between their projections: [`lockstep_backend::Ops::gated_delta`],
//! [`lockstep_backend::Ops::mamba2`] and [`lockstep_backend::Ops::short_convolution`].
//!
//! A call of a rule with matrices has three parts, each of which all threads share. The first brings
//! what each token has through the [`convolution`], and makes its inputs to the recurrence:
//! [`delta`] and [`mamba2`] do. [`recur`] runs the recurrence, one job for a row, a head and some
//! columns of its values: columns evolve alone, so the part of a matrix that a job works on stays in
//! the first-level cache through all tokens of the row. The last norms and gates the output. A
//! [`short`] convolution has no matrices, and [`columns`] alone.
//!
//! Every sum has one written order, with fused multiply-adds where they are written and nowhere
//! else. So all instruction sets give the same bits, and a token has the same bits in a prompt of any
//! chunks, in a step of its own, in a chain or tree of drafts, and in the replay of its record.

mod columns;
mod convolution;
mod delta;
mod groups;
mod mamba2;
mod recur;
mod short;
mod states;
mod step;

use lockstep_backend::{
    BackendError, DeltaShape, GatedDelta, Mamba2, Recurrence, ShortConvolution,
};

use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::pool::Pool;
use crate::tensor::CpuVector;
use recur::Rule;

pub(crate) use groups::{norm as group_norm, square_sums as group_square_sums};
pub use states::CpuStates;

/// Working memory of the operations.
pub(crate) struct Recurrent {
    /// A column of zeros. Nothing writes it, so layers of other shapes leave nothing in it.
    zeros: Buffer<f32>,
    /// A tile for each thread.
    tiles: Buffer<f32>,
}

/// Layer, threads and batch of a call.
pub(crate) struct Call<'a> {
    pub pool: &'a mut Pool,
    pub isa: Isa,
    pub states: &'a mut CpuStates,
    pub layer: usize,
    pub inputs: &'a CpuInputs,
}

/// Activations of a call, in the shapes of [`lockstep_backend::DeltaOperands`] or
/// [`lockstep_backend::Mamba2Operands`].
pub(crate) struct Operands<'a> {
    /// Projections of each token, before the convolution.
    pub projected: &'a [f32],
    /// Strengths and decays of each token, or its steps.
    pub gates: &'a mut [f32],
    /// Space for what is behind the convolution.
    pub space: &'a mut [f32],
    /// Output of the heads.
    pub out: &'a mut [f32],
}

impl Recurrent {
    pub(crate) fn new() -> Self {
        Self {
            zeros: Buffer::empty(),
            tiles: Buffer::empty(),
        }
    }

    /// Bytes of working memory.
    pub(crate) fn bytes(&self) -> usize {
        self.zeros.bytes() + self.tiles.bytes()
    }

    /// Returns a column of zeros and the threads' tiles for a call, which is checked.
    fn open(
        &mut self,
        call: &mut Call<'_>,
        rule: Recurrence,
    ) -> Result<(&[f32], &mut [f32]), BackendError> {
        call.states.expect(&rule, call.inputs);
        let [column, tiles] = scratch_words(call.pool.threads(), &rule);
        self.zeros.grow(column, "recurrent layers")?;
        self.tiles.grow(tiles, "recurrent layers")?;
        Ok((&self.zeros, &mut self.tiles))
    }

    /// Runs the gated delta rule.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    ///
    /// # Panics
    /// Panics if the staged batch names what the states do not have.
    pub(crate) fn delta(
        &mut self,
        mut call: Call<'_>,
        op: &GatedDelta<'_, CpuVector>,
        operands: Operands<'_>,
    ) -> Result<(), BackendError> {
        let (zeros, tiles) = self.open(&mut call, Recurrence::Delta(op.shape))?;
        let places = call.states.of_layer(call.layer);
        let (pool, isa, inputs) = (call.pool, call.isa, call.inputs);
        let Operands {
            projected,
            gates,
            space,
            out,
        } = operands;
        let read = [projected, zeros];
        delta::prepare(pool, isa, &places, op, read, [gates, space], inputs);
        let values = [projected, gates, space];
        recur::run(pool, isa, &places, Rule::Delta, values, tiles, out, inputs);
        delta::finish(pool, isa, op, projected, out);
        Ok(())
    }

    /// Runs the state space of Mamba-2.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    ///
    /// # Panics
    /// Panics if the staged batch names what the states do not have.
    pub(crate) fn mamba2(
        &mut self,
        mut call: Call<'_>,
        op: &Mamba2<'_, CpuVector>,
        operands: Operands<'_>,
    ) -> Result<(), BackendError> {
        let (zeros, tiles) = self.open(&mut call, Recurrence::Mamba2(op.shape))?;
        let places = call.states.of_layer(call.layer);
        let (pool, isa, inputs) = (call.pool, call.isa, call.inputs);
        let Operands {
            projected,
            gates,
            space,
            out,
        } = operands;
        let read = [projected, zeros];
        mamba2::prepare(pool, isa, &places, op, read, [gates, space, out], inputs);
        let values = [projected, gates, space];
        recur::run(pool, isa, &places, Rule::Mamba2, values, tiles, out, inputs);
        mamba2::gate(pool, isa, &op.shape, projected, out);
        Ok(())
    }

    /// Runs a gated short convolution.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    ///
    /// # Panics
    /// Panics if the staged batch names what the states do not have.
    pub(crate) fn short(
        &mut self,
        mut call: Call<'_>,
        op: &ShortConvolution<'_, CpuVector>,
        projected: &[f32],
        space: &mut [f32],
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        let (zeros, _) = self.open(&mut call, Recurrence::Convolution(op.shape))?;
        let places = call.states.of_layer(call.layer);
        let (pool, isa) = (call.pool, call.isa);
        short::run(
            pool,
            isa,
            &places,
            op,
            [projected, zeros],
            [space, out],
            call.inputs,
        );
        Ok(())
    }
}

/// Elements of working memory with so many threads: of a column of zeros, and of a tile for each
/// thread.
pub(crate) fn scratch_words(threads: usize, rule: &Recurrence) -> [usize; 2] {
    let tile = |heads: &DeltaShape| heads.key_dim * states::tile_width(heads);
    let tiles = threads * rule.heads().map_or(0, tile);
    [rule.convolution().channels, tiles]
}
