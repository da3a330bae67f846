//! A batch where kernels read it.

use std::sync::Arc;

use lockstep_backend::{Batch, Row};

use crate::context::Context;
use crate::error::CudaError;
use crate::memory::{Buffer, Pinned};
use crate::rows::Rows;
use crate::stream::{Event, Stream};

/// Words of a row, as `batch.cuh` has it.
const ROW_WORDS: usize = 5;
/// The mask of a row that has none.
const CAUSAL: u32 = u32::MAX;
/// Batches that may be on their way at once.
const STAGES: usize = 2;

/// The header's counts, by word.
const TOKENS: usize = 0;
const ROWS: usize = 1;
const WANTED: usize = 2;

/// The lists behind the header, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    Tokens,
    Positions,
    Cells,
    Rows,
    Pages,
    Masks,
    Wanted,
}

impl List {
    /// The word of the header that says where it begins.
    pub(crate) fn header(self) -> usize {
        WANTED + 1 + self as usize
    }
}

/// Words before the lists.
const HEADER_WORDS: usize = WANTED + 1 + List::Wanted as usize + 1;

/// The largest batch, and the pages that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputLimits {
    /// New tokens.
    pub tokens: usize,
    /// Requests.
    pub rows: usize,
    /// Entries of all page tables.
    pub pages: usize,
    /// Words of all masks, of 64 bits.
    pub masks: usize,
    /// Tokens whose logits are wanted.
    pub wanted: usize,
    /// Tokens per page.
    pub page_size: usize,
}

impl InputLimits {
    /// Words of the largest batch.
    fn words(&self) -> usize {
        let lists = 3 * self.tokens + ROW_WORDS * self.rows + self.pages + 2 * self.masks;
        HEADER_WORDS + lists + self.wanted
    }
    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        4 * self.words() as u64
    }
}

/// Brings batches to the device: one block of words each, in one copy.
pub struct Inputs {
    limits: InputLimits,
    device: Buffer<u32>,
    stages: [Stage; STAGES],
    turn: usize,
    /// What was staged last.
    counts: [usize; 3],
}

struct Stage {
    words: Pinned<u32>,
    /// The last copy from here is done.
    copied: Event,
}

impl Inputs {
    /// Takes room for the largest batch.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>, limits: InputLimits) -> Result<Self, CudaError> {
        let words = limits.words();
        let stage = || -> Result<Stage, CudaError> {
            Ok(Stage {
                words: Pinned::new(context, words, "a staged batch")?,
                copied: Event::new(context)?,
            })
        };
        Ok(Self {
            limits,
            device: Buffer::new(context, words, "a batch")?,
            stages: [stage()?, stage()?],
            turn: 0,
            counts: [0; 3],
        })
    }

    /// Queues the copy of a batch. It waits for nothing but the copy before the
    /// last one.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// If the batch goes beyond the limits, its rows are not one behind the
    /// other, or they name tokens, pages or masks that are not there.
    pub fn stage(&mut self, stream: &Stream, batch: &Batch<'_>) -> Result<(), CudaError> {
        self.check(batch);
        self.turn = (self.turn + 1) % STAGES;
        let stage = &mut self.stages[self.turn];
        stage.copied.synchronize()?;
        let len = fill(stage.words.as_mut_slice(), batch);
        // SAFETY: the words are changed next once `copied` has happened, and
        // dropping pinned memory waits for its copies.
        unsafe { stream.queue_upload(&stage.words, len, &mut self.device) }?;
        stream.record(&stage.copied)?;
        self.counts = [
            batch.tokens.len(),
            batch.rows.len(),
            batch.logit_tokens.len(),
        ];
        Ok(())
    }

    fn check(&self, batch: &Batch<'_>) {
        let (tokens, limits) = (batch.tokens.len(), &self.limits);
        let fits = tokens <= limits.tokens
            && batch.rows.len() <= limits.rows
            && batch.pages.len() <= limits.pages
            && batch.masks.len() <= limits.masks
            && batch.logit_tokens.len() <= limits.wanted;
        assert!(fits, "a batch keeps within the limits: {limits:?}");
        let each = batch.positions.len() == tokens && batch.cells.len() == tokens;
        assert!(each, "every token has a position and a cell");
        let wanted = batch.logit_tokens.iter();
        assert!(
            wanted.copied().all(|token| (token as usize) < tokens),
            "logits are wanted of tokens of the batch"
        );
        let mut start = 0;
        for row in batch.rows {
            let end = row.start as usize + row.q_len as usize;
            let positions = row.kv_len as usize + row.q_len as usize;
            let pages = row.pages_start as usize + positions.div_ceil(limits.page_size);
            let words = row.mask_words() * row.q_len as usize;
            let masked = row
                .mask
                .is_none_or(|mask| mask != CAUSAL && mask as usize + words <= batch.masks.len());
            let inside = row.start as usize >= start && end <= tokens;
            assert!(
                inside && pages <= batch.pages.len() && masked,
                "a row lies behind the one before it, within the batch's lists: {row:?}"
            );
            start = end;
        }
    }

    /// The tokens of the batch.
    pub fn tokens(&self) -> Rows<'_> {
        Rows::counted(self.counts[TOKENS], &self.device, TOKENS)
    }
    /// Its requests.
    pub fn rows(&self) -> Rows<'_> {
        Rows::counted(self.counts[ROWS], &self.device, ROWS)
    }
    /// The tokens whose logits are wanted.
    pub fn wanted(&self) -> Rows<'_> {
        Rows::counted(self.counts[WANTED], &self.device, WANTED)
    }
    /// What it has room for.
    pub fn limits(&self) -> &InputLimits {
        &self.limits
    }
    pub(crate) fn address(&self) -> u64 {
        self.device.address()
    }
}

/// Writes a batch; returns how many words it takes.
fn fill(words: &mut [u32], batch: &Batch<'_>) -> usize {
    words[TOKENS] = batch.tokens.len() as u32;
    words[ROWS] = batch.rows.len() as u32;
    words[WANTED] = batch.logit_tokens.len() as u32;
    let (header, lists) = words.split_at_mut(HEADER_WORDS);
    let mut at = 0;
    let mut list = |which: List, len: usize, write: &mut dyn FnMut(&mut [u32])| {
        header[which.header()] = (HEADER_WORDS + at) as u32;
        write(&mut lists[at..at + len]);
        at += len;
    };
    let plain = [
        (List::Tokens, batch.tokens),
        (List::Positions, batch.positions),
        (List::Cells, batch.cells),
        (List::Pages, batch.pages),
        (List::Wanted, batch.logit_tokens),
    ];
    for (which, values) in plain {
        list(which, values.len(), &mut |to| to.copy_from_slice(values));
    }
    list(List::Rows, ROW_WORDS * batch.rows.len(), &mut |to| {
        let rows = to.as_chunks_mut::<ROW_WORDS>().0;
        for (to, row) in rows.iter_mut().zip(batch.rows) {
            *to = row_words(row);
        }
    });
    list(List::Masks, 2 * batch.masks.len(), &mut |to| {
        for (to, mask) in to.as_chunks_mut::<2>().0.iter_mut().zip(batch.masks) {
            *to = [*mask as u32, (*mask >> 32) as u32];
        }
    });
    HEADER_WORDS + at
}

fn row_words(row: &Row) -> [u32; ROW_WORDS] {
    let mask = row.mask.unwrap_or(CAUSAL);
    [row.start, row.q_len, row.kv_len, row.pages_start, mask]
}
