//! Tokens from rows of logits, and the drafts that stand by them.

use lockstep_backend::{BackendError, ChooseTokens, Chosen};

use super::CudaBackend;
use crate::attention::PagedCache;
use crate::choosing::{Choosing, ChoosingRoom, LogitRows};
use crate::compiler::Compiler;
use crate::error::CudaError;
use crate::inputs::Inputs;
use crate::stream::Stream;
use crate::tensor::CudaTensor;

/// Rows of logits that are chosen from at once: about as many as a large GPU has
/// multiprocessors.
const ROWS: usize = 128;

/// Chooses tokens, with room for some rows.
pub(crate) struct Chooser {
    kernels: Choosing,
    states: ChoosingRoom,
}

impl Chooser {
    /// Takes the room.
    ///
    /// # Errors
    /// Those of [`Choosing::new`]; [`CudaError::OutOfMemory`].
    pub(super) fn new(stream: &Stream, compiler: &Compiler) -> Result<Self, CudaError> {
        Ok(Self {
            kernels: Choosing::new(stream.context(), compiler)?,
            states: ChoosingRoom::new(stream, ROWS)?,
        })
    }

    /// Bytes on the device.
    pub(crate) fn bytes() -> u64 {
        ChoosingRoom::bytes(ROWS)
    }

    /// See [`ChooseTokens::choose`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    fn choose(
        &mut self,
        stream: &Stream,
        logits: &mut CudaTensor,
        first: usize,
        inputs: &mut Inputs,
    ) -> Result<(), CudaError> {
        let (rows, vocab) = (logits.rows(), logits.width());
        for part in (0..rows).step_by(ROWS) {
            let own = first + part..first + rows.min(part + ROWS);
            let logits = LogitRows {
                floats: &mut logits.floats,
                vocab,
                first: part,
            };
            let states = &mut self.states;
            self.kernels.choose(stream, logits, own, inputs, states)?;
        }
        Ok(())
    }
}

impl ChooseTokens<CudaTensor, Inputs, PagedCache> for CudaBackend {
    fn choose(&mut self, logits: &mut CudaTensor, first: usize, inputs: &mut Inputs) {
        let done = self.chooser.choose(&self.stream, logits, first, inputs);
        self.keep(done);
    }

    fn accept(&mut self, inputs: &mut Inputs, cache: &mut PagedCache) {
        let mut done = self.chooser.kernels.accept(&self.stream, inputs);
        // The nodes of a chain are where they belong.
        if inputs.limits().choices.parents > 0 {
            done = done.and_then(|()| self.move_accepted(inputs, cache));
        }
        self.keep(done);
    }

    fn outcomes<'a>(&mut self, inputs: &'a mut Inputs) -> Result<Chosen<'a>, BackendError> {
        self.failures()?;
        Ok(inputs.outcomes(&self.stream)?)
    }
}
