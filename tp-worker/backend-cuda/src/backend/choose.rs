//! Tokens chosen from rows of logits, and the drafts that these tokens accept.

use lockstep_backend::{Axis, BackendError, ChooseTokens, Chosen, Exchange as _, Owners};

use super::CudaBackend;
use crate::drafting::{Choosing, ChoosingRoom, LogitRows};
use crate::error::CudaError;
use crate::exchange::NoteRoom;
use crate::ops::{JoinedRows, PagedCache};
use crate::passes::Inputs;
use crate::runtime::{Compiler, Stream};
use crate::tensors::CudaTensor;

/// Rows of logits that are processed at once: about as many as a large GPU has multiprocessors.
const ROWS: usize = 128;

/// Kernels that choose tokens, with room for [`ROWS`] rows at a time.
pub(crate) struct Chooser {
    kernels: Choosing,
    states: ChoosingRoom,
}

impl Chooser {
    /// Compiles the kernels and allocates their room.
    ///
    /// # Errors
    /// The errors of [`Choosing::new`]; [`CudaError::OutOfMemory`].
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

impl CudaBackend {
    /// Returns true if whole rows of logits come to a device.
    pub(super) fn may_choose(&self) -> bool {
        self.group(Axis::World).1 == 1 || self.exchange.on_stream()
    }

    /// Finds the accepted drafts and the cells to move, on every rank that has the batch.
    ///
    /// # Errors
    /// [`CudaError::Driver`], [`CudaError::Nccl`].
    fn accept_and_tell(&mut self, inputs: &mut Inputs) -> Result<(), CudaError> {
        let (stream, kernels) = (&self.stream, &self.chooser.kernels);
        let (rank, ranks) = self.exchange.rank_and_size(Axis::Attention);
        if rank == 0 {
            kernels.accept(stream, inputs)?;
        }
        if ranks > 1 {
            let (words, told) = inputs.outcome_words();
            self.exchange.tell(stream, Axis::Attention, words, told)?;
        }
        let differs = self.notes.as_ref().map(NoteRoom::differs);
        match ranks > 1 || differs.is_some() {
            // SAFETY: the room lives as long as passes that name it are repeated.
            true => unsafe { kernels.follow(stream, inputs, differs) },
            false => Ok(()),
        }
    }
}

impl ChooseTokens<CudaTensor, Inputs, PagedCache> for CudaBackend {
    fn choose(&mut self, logits: &mut CudaTensor, first: usize, inputs: &mut Inputs) {
        let done = self.chooser.choose(&self.stream, logits, first, inputs);
        self.keep(done);
    }

    fn gather(
        &mut self,
        axis: Axis,
        x: &CudaTensor,
        owners: Owners<'_>,
        own: Option<(&mut CudaTensor, &mut CudaTensor)>,
    ) -> Result<(), BackendError> {
        self.failures()?;
        let (rank, _) = self.group(axis);
        let rows = owners.rows[rank].clone();
        let (out, parts) = own.unzip();
        let parts = parts.map(|parts| &mut parts.floats);
        let Some((out, parts)) = out.zip(parts).filter(|_| !rows.is_empty()) else {
            let (exchange, x) = (&self.exchange, &x.floats);
            return Ok(exchange.collect(&self.stream, axis, x, owners, None)?);
        };
        let width = owners.widths.iter().sum();
        out.expect(rows.len(), width, "whole rows of logits");
        let (exchange, stream) = (&self.exchange, &self.stream);
        exchange.collect(stream, axis, &x.floats, owners, Some(&mut *parts))?;
        let joined = JoinedRows {
            rows: rows.len(),
            widths: owners.widths,
            own: rank,
            parts,
            x: &x.floats,
            first: rows.start,
        };
        let done = self
            .operations
            .join_columns(stream, &joined, &mut out.floats);
        self.keep(done);
        Ok(())
    }

    fn accept(&mut self, inputs: &mut Inputs, cache: &mut PagedCache) {
        let mut done = self.accept_and_tell(inputs);
        // Accepted nodes of a chain are in the cells of their positions already.
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
