//! Tokens from rows of logits, as the host asks for them.

use lockstep_backend::{
    BackendError, Choice, ChoiceBatch, ChoiceLimits, ChoiceRow, ChooseTokens, DraftedRow, How,
};

use super::CudaBackend;
use crate::choosing::{Choices, Choosing, ChoosingRoom, LogitRows};
use crate::compiler::Compiler;
use crate::error::CudaError;
use crate::memory::Buffer;
use crate::stream::Stream;
use crate::tensor::CudaTensor;

impl ChooseTokens<CudaTensor> for CudaBackend {
    fn choose(
        &mut self,
        logits: &mut CudaTensor,
        choices: &[Choice],
        tokens: &mut Vec<u32>,
    ) -> Result<(), BackendError> {
        self.failures()?;
        Ok(self.chooser.choose(&self.stream, logits, choices, tokens)?)
    }
}

/// Rows of logits that are chosen from at once: about as many as a large GPU has
/// multiprocessors.
const ROWS: usize = 128;
/// Its requests, each of which has one row.
const LIMITS: ChoiceLimits = ChoiceLimits {
    requests: ROWS,
    rows: ROWS,
    parents: 0,
};

/// Chooses tokens, with room for some rows.
pub(crate) struct Chooser {
    kernels: Choosing,
    choices: Choices,
    states: ChoosingRoom,
    tokens: Buffer<u32>,
    rows: Vec<ChoiceRow>,
    drafted: Vec<DraftedRow>,
}

impl Chooser {
    /// Takes the room.
    ///
    /// # Errors
    /// Those of [`Choosing::new`]; [`CudaError::OutOfMemory`].
    pub(super) fn new(stream: &Stream, compiler: &Compiler) -> Result<Self, CudaError> {
        let context = stream.context();
        let row = |request| ChoiceRow { request, depth: 0 };
        let alone = |logits| DraftedRow {
            logits,
            token: 0,
            nodes: 0,
            parents: None,
        };
        let all = 0..ROWS as u32;
        Ok(Self {
            kernels: Choosing::new(context, compiler)?,
            choices: Choices::new(context, LIMITS)?,
            states: ChoosingRoom::new(stream, ROWS)?,
            tokens: Buffer::new(context, ROWS, "chosen tokens")?,
            rows: all.clone().map(row).collect(),
            drafted: all.map(alone).collect(),
        })
    }

    /// Bytes of each array on the device.
    pub(crate) fn bytes() -> [u64; 3] {
        let tokens = 4 * ROWS as u64;
        [Choices::bytes(&LIMITS), ChoosingRoom::bytes(ROWS), tokens]
    }

    /// See [`ChooseTokens::choose`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(super) fn choose(
        &mut self,
        stream: &Stream,
        logits: &mut CudaTensor,
        choices: &[Choice],
        tokens: &mut Vec<u32>,
    ) -> Result<(), CudaError> {
        logits.expect(choices.len(), logits.width(), "logits to choose from");
        tokens.clear();
        if choices.iter().all(|choice| choice.how == How::Host) {
            return Ok(());
        }
        tokens.resize(choices.len(), 0);
        let parts = choices.chunks(ROWS).zip(tokens.chunks_mut(ROWS));
        for (part, (choices, tokens)) in parts.enumerate() {
            self.choose_some(stream, logits, part * ROWS, choices, tokens)?;
        }
        Ok(())
    }

    /// Chooses from as many rows as there is room for, from row `first` on.
    fn choose_some(
        &mut self,
        stream: &Stream,
        logits: &mut CudaTensor,
        first: usize,
        choices: &[Choice],
        tokens: &mut [u32],
    ) -> Result<(), CudaError> {
        let rows = choices.len();
        let batch = ChoiceBatch {
            choices,
            rows: &self.rows[..rows],
            drafted: &self.drafted[..rows],
            parents: &[],
        };
        self.choices.stage(stream, &batch)?;
        let logits = LogitRows {
            vocab: logits.width(),
            floats: &mut logits.floats,
            first,
        };
        self.kernels.choose(
            stream,
            logits,
            0..rows,
            &self.choices,
            &mut self.states,
            &mut self.tokens,
        )?;
        stream.download(&self.tokens, tokens)
    }
}
