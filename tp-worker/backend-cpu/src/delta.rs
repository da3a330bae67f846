//! Gated DeltaNet between its projections: [`lockstep_backend::Ops::gated_delta`].
//!
//! A call has three parts, each of which all threads share. [`prepare`] brings each token's query,
//! key and value through the convolution, and makes its strength and its decay. [`recur`] runs the
//! recurrence, one job for a row, a value head and some columns of its values: columns evolve alone,
//! so the part of a matrix that a job works on stays in the first-level cache through all tokens of
//! the row. [`finish`] norms and gates the output.
//!
//! Every sum has one written order, with fused multiply-adds where they are written and nowhere
//! else. So all instruction sets give the same bits, and a token has the same bits in a prompt of any
//! chunks, in a step of its own, in a chain or tree of drafts, and in the replay of its record.

mod finish;
mod prepare;
mod recur;
mod states;
mod step;

use lockstep_backend::{BackendError, DeltaShape, GatedDelta};

use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::pool::Pool;
use crate::tensor::CpuVector;

pub use states::CpuStates;

/// Working memory of the operation.
pub(crate) struct Delta {
    scratch: Buffer<f32>,
}

/// Activations of a call, in the shapes of [`lockstep_backend::DeltaOperands`].
pub(crate) struct Operands<'a> {
    /// Queries, keys, values and gates of each token, before the convolution.
    pub projected: &'a [f32],
    /// Strengths and decays of each token.
    pub gates: &'a mut [f32],
    /// Space for queries, keys and values behind the convolution.
    pub space: &'a mut [f32],
    /// Output of the heads.
    pub out: &'a mut [f32],
}

impl Delta {
    pub(crate) fn new() -> Self {
        Self {
            scratch: Buffer::empty(),
        }
    }

    /// Bytes of working memory.
    pub(crate) fn bytes(&self) -> usize {
        self.scratch.bytes()
    }

    /// Runs the operation.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    ///
    /// # Panics
    /// Panics if the staged batch names what `states` does not have.
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub(crate) fn run(
        &mut self,
        pool: &mut Pool,
        isa: Isa,
        states: &mut CpuStates,
        layer: usize,
        op: &GatedDelta<'_, CpuVector>,
        operands: Operands<'_>,
        inputs: &CpuInputs,
    ) -> Result<(), BackendError> {
        states.expect(&op.shape, inputs);
        let words = scratch_words(pool.threads(), &op.shape);
        self.scratch.grow(words, "recurrent layers")?;
        let (zeros, tiles) = self.scratch.split_at_mut(op.shape.channels());
        let places = states.of_layer(layer);
        let Operands {
            projected,
            gates,
            space,
            out,
        } = operands;
        prepare::run(
            pool,
            isa,
            &places,
            op,
            [projected, zeros],
            [gates, space],
            inputs,
        );
        recur::run(
            pool,
            isa,
            &places,
            [projected, gates, space],
            tiles,
            out,
            inputs,
        );
        finish::run(pool, isa, op, projected, out);
        Ok(())
    }
}

/// Elements of working memory with so many threads: a column of zeros, and a tile for each thread.
pub(crate) fn scratch_words(threads: usize, shape: &DeltaShape) -> usize {
    shape.channels() + threads * shape.key_dim * states::tile_width(shape)
}
