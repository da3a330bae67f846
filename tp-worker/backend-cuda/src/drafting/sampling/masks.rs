//! Masks of rows of logits, on their way from the host.

use std::sync::Arc;

use lockstep_backend::Masks;

use super::{LogitRows, PART, SamplingKernels, parameters::Mask};
use crate::error::CudaError;
use crate::runtime::{Buffer, Context, Staged, Stream};
use crate::tensors::{Element, blocks};

/// Room for the masks of a pass: first the numbers of the masked rows, then their masks.
pub struct MaskRoom {
    device: Buffer<u32>,
    stage: Staged<u32>,
}

impl MaskRoom {
    /// Allocates room for the masks of `rows` rows of `vocab` tokens.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>, rows: usize, vocab: usize) -> Result<Self, CudaError> {
        let words = rows.saturating_mul(1 + vocab.div_ceil(32));
        Ok(Self {
            device: Buffer::new(context, words, "masks of logits")?,
            stage: Staged::new(context, words, "masks of logits")?,
        })
    }

    /// Queues the copy of `masks` to the device, with the numbers of their rows counted from
    /// `first`. Waits for the copy before, which an earlier pass has used.
    fn send(&mut self, stream: &Stream, first: usize, masks: Masks<'_>) -> Result<(), CudaError> {
        let (count, len) = (masks.rows.len(), masks.rows.len() + masks.bits.len());
        let (rows, bits) = self.stage.elements()?[..len].split_at_mut(count);
        for (to, row) in rows.iter_mut().zip(masks.rows) {
            *to = row - first as u32;
        }
        bits.copy_from_slice(masks.bits);
        self.stage.send(stream, 0..len, &mut self.device, 0)
    }
}

impl SamplingKernels {
    /// Takes the tokens that `masks` forbid out of rows of `logits`, whose first row has number
    /// `first`, before [`Self::choose`]: their logits become -∞. NaN and ∞ stay, so that a row
    /// that is not finite fails with its mask as it does without one.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if a mask has another width than the vocabulary, or if there is no room for all.
    pub fn mask(
        &self,
        stream: &Stream,
        logits: &LogitRows<'_>,
        first: usize,
        masks: Masks<'_>,
        room: &mut MaskRoom,
    ) -> Result<(), CudaError> {
        let (count, vocab) = (masks.rows.len(), logits.vocab);
        let (Some(last), words) = (masks.rows.last(), vocab.div_ceil(32)) else {
            return Ok(());
        };
        assert_eq!(masks.bits.len(), count * words, "every row has a mask");
        let least = masks.rows.iter().min().copied().unwrap_or(0) as usize;
        assert!(least >= first, "masked rows are among the logits");
        let end = logits.first + *last as usize + 1 - first;
        logits
            .floats
            .expect(Element::F32, end * vocab, "logits to mask");
        room.send(stream, first, masks)?;
        let rows = room.device.address();
        let parameters = Mask {
            logits: logits.floats.address() + 4 * (logits.first * vocab) as u64,
            rows,
            masks: rows + 4 * count as u64,
            words: words as u32,
            vocab: vocab as u32,
        };
        // SAFETY: the rows ascend and the last of them is within the logits; the room has the
        // numbers of these rows, then a mask of `words` words for each.
        unsafe {
            let grid = [blocks(vocab, PART), count as u32, 1];
            self.mask.launch(stream, grid, &parameters)
        }
    }
}
