//! Tokens chosen from rows of logits, and the drafts that these tokens accept.

use lockstep_backend::{Axis, BackendError, Chosen, DeviceSampler, Exchange as _, Masks, Owners};

use super::CudaBackend;
use crate::drafting::{LogitRows, MaskRoom, SamplingBuffers, SamplingKernels};
use crate::error::CudaError;
use crate::exchange::NoteBuffers;
use crate::ops::{JoinedRows, PagedCache};
use crate::passes::Inputs;
use crate::runtime::{Compiler, Stream};
use crate::tensors::CudaTensor;

/// Rows of logits that are processed at once: about as many as a large GPU has multiprocessors.
const ROWS: usize = 128;

/// Kernels that choose tokens, with room for [`ROWS`] rows at a time.
pub(crate) struct TokenSampler {
    kernels: SamplingKernels,
    states: SamplingBuffers,
    /// Room for masks; `None` where hosts choose the tokens of constrained requests.
    masks: Option<MaskRoom>,
}

impl TokenSampler {
    /// Compiles the kernels and allocates their room.
    ///
    /// # Errors
    /// The errors of [`SamplingKernels::new`]; [`CudaError::OutOfMemory`].
    pub(super) fn new(stream: &Stream, compiler: &Compiler) -> Result<Self, CudaError> {
        Ok(Self {
            kernels: SamplingKernels::new(stream.context(), compiler)?,
            states: SamplingBuffers::new(stream, ROWS)?,
            masks: None,
        })
    }

    /// Bytes on the device.
    pub(crate) fn bytes() -> u64 {
        SamplingBuffers::bytes(ROWS)
    }

    /// See [`DeviceSampler::choose`].
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
        let (stream, kernels) = (&self.stream, &self.sampler.kernels);
        let (rank, ranks) = self.exchange.rank_and_size(Axis::Attention);
        if rank == 0 {
            kernels.accept(stream, inputs)?;
        }
        if ranks > 1 {
            let (words, told) = inputs.outcome_words();
            self.exchange.tell(stream, Axis::Attention, words, told)?;
        }
        let differs = self.notes.as_ref().map(NoteBuffers::differs);
        match ranks > 1 || differs.is_some() {
            // SAFETY: the room lives as long as passes that name it are repeated.
            true => unsafe { kernels.follow(stream, inputs, differs) },
            false => Ok(()),
        }
    }
}

impl DeviceSampler<CudaTensor, Inputs, PagedCache> for CudaBackend {
    fn prepare_masks(&mut self, rows: usize, vocab: usize) -> Result<(), BackendError> {
        let room = MaskRoom::new(self.stream.context(), rows, vocab)?;
        self.sampler.masks = Some(room);
        Ok(())
    }

    fn mask(&mut self, logits: &mut CudaTensor, first: usize, masks: Masks<'_>) {
        let (stream, sampler) = (&self.stream, &mut self.sampler);
        let masks = masks.within(first..first + logits.rows());
        if masks.rows.is_empty() {
            return;
        }
        let room = sampler.masks.as_mut();
        let room = room.expect("masks come where there is room for them");
        let vocab = logits.width();
        let logits = LogitRows {
            floats: &mut logits.floats,
            vocab,
            first: 0,
        };
        let done = sampler.kernels.mask(stream, &logits, first, masks, room);
        self.keep(done);
    }

    fn choose(&mut self, logits: &mut CudaTensor, first: usize, inputs: &mut Inputs) {
        let done = self.sampler.choose(&self.stream, logits, first, inputs);
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

    fn accept(&mut self, inputs: &mut Inputs, caches: &mut [PagedCache]) {
        let mut done = self.accept_and_tell(inputs);
        // Accepted nodes of a chain are in the cells of their positions already.
        if inputs.limits().choices.parents > 0 {
            for cache in caches {
                done = done.and_then(|()| self.move_accepted(inputs, cache));
            }
        }
        self.keep(done);
    }

    fn outcomes<'a>(&mut self, inputs: &'a mut Inputs) -> Result<Chosen<'a>, BackendError> {
        self.failures()?;
        Ok(inputs.outcomes(&self.stream)?)
    }
}
