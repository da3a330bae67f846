//! How tokens are chosen, where kernels read it.

use std::sync::Arc;

use lockstep_backend::{Choice, ChoiceBatch, ChoiceLimits, How};

use crate::context::Context;
use crate::error::CudaError;
use crate::memory::Buffer;
use crate::rows::Rows;
use crate::staged::Staged;
use crate::stream::Stream;

/// Words of one of each, as `choices.cuh` has them.
const CHOICE_WORDS: usize = 9;
const USE_WORDS: usize = 2;
const DRAFTED_WORDS: usize = 4;
/// The parents of a chain.
const CHAIN: u32 = u32::MAX;
/// Blocks that may be on their way at once.
const STAGES: usize = 2;

/// Words of the header: counts, then where each list begins.
const ROWS: usize = 0;
const REQUESTS: usize = 1;
const LISTS: usize = 2;
const HEADER_WORDS: usize = LISTS + 4;

/// Words of the largest block.
fn words(limits: &ChoiceLimits) -> usize {
    let each = CHOICE_WORDS + DRAFTED_WORDS;
    let requests = limits.requests.saturating_mul(each);
    let rows = limits.rows.saturating_mul(USE_WORDS);
    [requests, rows, limits.parents]
        .into_iter()
        .fold(HEADER_WORDS, usize::saturating_add)
}

/// Brings to the device how the tokens of a pass are chosen: one block of words, in
/// one copy.
pub struct Choices {
    limits: ChoiceLimits,
    device: Buffer<u32>,
    stages: [Staged<u32>; STAGES],
    turn: usize,
}

impl Choices {
    /// Takes room for the largest batch. Until one is staged, there is none.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>, limits: ChoiceLimits) -> Result<Self, CudaError> {
        let stage = || Staged::new(context, words(&limits), "staged choices");
        Ok(Self {
            limits,
            device: Buffer::new(context, words(&limits), "choices")?,
            stages: [stage()?, stage()?],
            turn: 0,
        })
    }

    /// Bytes on the device of the largest batch within `limits`.
    pub fn bytes(limits: &ChoiceLimits) -> u64 {
        4 * words(limits) as u64
    }

    /// Queues the copy of a batch. It waits for nothing but the copy before the
    /// last one.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Those of [`ChoiceLimits::expect`].
    pub fn stage(&mut self, stream: &Stream, batch: &ChoiceBatch<'_>) -> Result<(), CudaError> {
        self.limits.expect(batch);
        self.turn = (self.turn + 1) % STAGES;
        let stage = &mut self.stages[self.turn];
        let len = fill(stage.elements()?, batch);
        stage.send(stream, 0..len, &mut self.device, 0)
    }

    /// What it has room for.
    pub fn limits(&self) -> &ChoiceLimits {
        &self.limits
    }
    /// As many requests as the batch has that is staged.
    pub fn requests(&self) -> Rows<'_> {
        Rows::counted(self.limits.requests, &self.device, REQUESTS)
    }
    pub(super) fn address(&self) -> u64 {
        self.device.address()
    }
}

/// Writes a batch; returns how many words it takes.
fn fill(words: &mut [u32], batch: &ChoiceBatch<'_>) -> usize {
    words[ROWS] = batch.rows.len() as u32;
    words[REQUESTS] = batch.choices.len() as u32;
    let mut at = HEADER_WORDS;
    let mut list = |words: &mut [u32], number: usize, len: usize| {
        words[LISTS + number] = at as u32;
        at += len;
        at - len..at
    };
    let to = list(words, 0, CHOICE_WORDS * batch.choices.len());
    let to = words[to].as_chunks_mut().0;
    for (to, choice) in to.iter_mut().zip(batch.choices) {
        *to = choice_words(choice);
    }
    let to = list(words, 1, USE_WORDS * batch.rows.len());
    let to = words[to].as_chunks_mut().0;
    for (to, row) in to.iter_mut().zip(batch.rows) {
        *to = [row.request, row.depth];
    }
    let to = list(words, 2, DRAFTED_WORDS * batch.drafted.len());
    let to = words[to].as_chunks_mut().0;
    for (to, row) in to.iter_mut().zip(batch.drafted) {
        *to = [
            row.logits,
            row.token,
            row.nodes,
            row.parents.unwrap_or(CHAIN),
        ];
    }
    let to = list(words, 3, batch.parents.len());
    words[to].copy_from_slice(batch.parents);
    at
}

fn choice_words(choice: &Choice) -> [u32; CHOICE_WORDS] {
    let halves = |value: u64| [value as u32, (value >> 32) as u32];
    let ([seed, seed_high], [position, position_high]) =
        (halves(choice.seed), halves(choice.position));
    let (how, [temperature, top_p, min_p], top_k) = match choice.how {
        How::Host => (0, [0.0; 3], 0),
        How::Greedy => (1, [0.0; 3], 0),
        How::Sample {
            temperature,
            top_k,
            top_p,
            min_p,
        } => (2, [temperature, top_p, min_p], top_k),
    };
    let [temperature, top_p, min_p] = [temperature, top_p, min_p].map(f32::to_bits);
    [
        how,
        seed,
        seed_high,
        position,
        position_high,
        temperature,
        top_p,
        min_p,
        top_k,
    ]
}
