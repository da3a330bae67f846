//! Outcomes of a batch's choices, on the device and on their way to the host.

use std::sync::Arc;

use lockstep_backend::{ChoiceLimits, Chosen as Outcomes, DraftShape};

use crate::error::CudaError;
use crate::runtime::{Buffer, Context, Event, Pinned, Stream};

/// Room for chosen tokens, and for the drafts that they accept.
pub struct Chosen {
    limits: ChoiceLimits,
    tokens: Buffer<u32>,
    words: Buffer<u32>,
    moves: Buffer<u32>,
    counts: Buffer<u32>,
    /// The words on the host.
    host: Pinned<u32>,
    /// Event behind the copy of the words to the host.
    copied: Event,
}

impl Chosen {
    /// Allocates room for batches within `limits`.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub(super) fn new(context: &Arc<Context>, limits: &ChoiceLimits) -> Result<Self, CudaError> {
        let [tokens, words, moves, counts] = elements(limits);
        Ok(Self {
            limits: *limits,
            tokens: Buffer::new(context, tokens, "chosen tokens")?,
            words: Buffer::new(context, words, "accepted drafts")?,
            moves: Buffer::new(context, moves, "cells that move")?,
            counts: Buffer::new(context, counts, "cells that move")?,
            host: Pinned::new(context, words, "accepted drafts")?,
            copied: Event::new(context)?,
        })
    }

    /// Bytes of each array on the device.
    pub(super) fn bytes(limits: &ChoiceLimits) -> [u64; 4] {
        elements(limits).map(|elements| (elements as u64).saturating_mul(4))
    }

    /// Largest batch that there is room for.
    pub fn limits(&self) -> &ChoiceLimits {
        &self.limits
    }
    /// The token of each row of the wanted logits that the device chooses from. A row that is
    /// not finite has [`FAILED`](lockstep_backend::FAILED).
    pub fn tokens(&self) -> &Buffer<u32> {
        &self.tokens
    }
    /// The words of [`lockstep_backend::Chosen`] for each request, one request behind the
    /// other. A request whose tokens the host chooses has no tokens there. If the batch came
    /// with chains, the drafts of each request follow, and with trees also the drafts' parents.
    pub fn words(&self) -> &Buffer<u32> {
        &self.words
    }
    pub(super) fn words_mut(&mut self) -> &mut Buffer<u32> {
        &mut self.words
    }
    pub(crate) fn moves(&self) -> &Buffer<u32> {
        &self.moves
    }
    pub(crate) fn counts(&self) -> &Buffer<u32> {
        &self.counts
    }

    /// Waits, and returns the moves of each of the first `requests` requests, in order, as
    /// `(from, to)` cells.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if there are fewer requests.
    pub fn read_moves(
        &self,
        stream: &Stream,
        requests: usize,
    ) -> Result<Vec<Vec<(u32, u32)>>, CudaError> {
        let mut counts = vec![0; requests];
        let mut moves = vec![0; 2 * self.limits.most * requests];
        stream.download(&self.counts, &mut counts)?;
        stream.download(&self.moves, &mut moves)?;
        let moves = moves.as_chunks().0.chunks(self.limits.most);
        let own = |(moves, count): (&[[u32; 2]], u32)| {
            let pairs = moves[..count as usize].iter();
            pairs.map(|[from, to]| (*from, *to)).collect()
        };
        Ok(moves.zip(counts).map(own).collect())
    }

    /// Brings the words of the first `requests` requests to the host, by one copy and one wait.
    /// Drafts that devices made come with them.
    ///
    /// # Errors
    /// [`CudaError::Driver`], also of work that was queued before; [`CudaError::Peers`].
    ///
    /// # Panics
    /// Panics if there are fewer requests.
    pub(super) fn read(
        &mut self,
        stream: &Stream,
        requests: usize,
        drafts: Option<DraftShape>,
    ) -> Result<Outcomes<'_>, CudaError> {
        let own = 2 * self.limits.most * requests;
        let nodes = self.limits.nodes() * requests;
        let (drafted, parents) = match drafts {
            None => (0, 0),
            Some(DraftShape::Chains) => (nodes, 0),
            Some(DraftShape::Trees) => (nodes, nodes),
        };
        let len = own + drafted + parents;
        // SAFETY: nobody looks at the words before the wait below, which comes before any other
        // use of them; if the wait fails, the device has stopped.
        unsafe { stream.queue_download(&self.words, &mut self.host, len) }?;
        let waited = stream
            .record(&self.copied)
            .and_then(|()| stream.reach(&self.copied));
        if let Err(error) = waited {
            let _ = stream.synchronize();
            return Err(error);
        }
        let (words, rest) = self.host.as_slice()[..len].split_at(own);
        let (drafted, parents) = rest.split_at(drafted);
        Ok(Outcomes {
            words,
            drafted,
            parents,
        })
    }
}

/// Elements of each array.
fn elements(limits: &ChoiceLimits) -> [usize; 4] {
    let pairs = limits.most.saturating_mul(2);
    // Without parents, only the drafts are told.
    let told = if limits.parents > 0 { 2 } else { 1 };
    let drafts = limits.nodes().saturating_mul(told);
    let [words, pairs] =
        [pairs.saturating_add(drafts), pairs].map(|each| each.saturating_mul(limits.requests));
    [limits.rows, words, pairs, limits.requests]
}
