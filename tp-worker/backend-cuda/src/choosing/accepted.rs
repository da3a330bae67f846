//! What came of the drafts of a pass, on the device.

use std::sync::Arc;

use crate::context::Context;
use crate::error::CudaError;
use crate::memory::Buffer;
use crate::stream::Stream;

/// Room for what [`super::Choosing::accept`] finds.
pub struct Accepted {
    requests: usize,
    most: usize,
    words: Buffer<u32>,
    moves: Buffer<u32>,
    counts: Buffer<u32>,
}

impl Accepted {
    /// Takes room for so many requests, of up to `most` tokens each.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn new(context: &Arc<Context>, requests: usize, most: usize) -> Result<Self, CudaError> {
        let pairs = requests.saturating_mul(most).saturating_mul(2);
        Ok(Self {
            requests,
            most,
            words: Buffer::new(context, pairs, "accepted drafts")?,
            moves: Buffer::new(context, pairs, "cells that move")?,
            counts: Buffer::new(context, requests, "cells that move")?,
        })
    }

    /// Bytes on the device.
    pub fn bytes(requests: usize, most: usize) -> u64 {
        let words = most.saturating_mul(4).saturating_add(1);
        (requests as u64)
            .saturating_mul(words as u64)
            .saturating_mul(4)
    }

    /// Requests that there is room for.
    pub fn requests(&self) -> usize {
        self.requests
    }
    /// Tokens of a request at the most.
    pub fn most(&self) -> usize {
        self.most
    }
    /// For each request `2 · most` words: how many tokens; the tokens, the accepted
    /// drafts and the one after them; the numbers of the accepted nodes. The rest is
    /// zero. One whose logits were not finite has one token,
    /// [`FAILED`](lockstep_backend::FAILED), and one whose tokens the host chooses
    /// has none.
    pub fn words(&self) -> &Buffer<u32> {
        &self.words
    }

    /// Waits, and gives for each of the first requests the cells that move, `(from,
    /// to)` one after the other.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// If there are not as many.
    pub fn moves(
        &self,
        stream: &Stream,
        requests: usize,
    ) -> Result<Vec<Vec<(u32, u32)>>, CudaError> {
        let mut counts = vec![0; requests];
        let mut moves = vec![0; 2 * self.most * requests];
        stream.download(&self.counts, &mut counts)?;
        stream.download(&self.moves, &mut moves)?;
        let moves = moves.as_chunks().0.chunks(self.most);
        let own = |(moves, count): (&[[u32; 2]], u32)| {
            let pairs = moves[..count as usize].iter();
            pairs.map(|[from, to]| (*from, *to)).collect()
        };
        Ok(moves.zip(counts).map(own).collect())
    }

    pub(crate) fn move_list(&self) -> &Buffer<u32> {
        &self.moves
    }
    pub(crate) fn move_counts(&self) -> &Buffer<u32> {
        &self.counts
    }
}
