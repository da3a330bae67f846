//! The algorithm's work on the device.

use std::ops::Range;

use lockstep_backend::{Axis, Backend};
use lockstep_model::{LoadOptions, LogitBlock, ModelCache, Transformer};
use lockstep_speculation::{
    Build, Device, DraftError, DraftRow, Drafter, Drafts, ExtendRow, Node, Pass,
};

use crate::guesses::Guesses;

/// Smallest number of tokens missing from the draft model's cache that is worth a pass.
/// A single missing token, the last known one, waits for the next draft.
const LAG: usize = 2;

/// Drafts blocks with a whole model.
pub(crate) struct BlockDrafter<B: Backend> {
    transformer: Transformer<B>,
    cache: ModelCache<B>,
    /// Maximum number of tokens of one request in a pass, the last known token
    /// included.
    width: usize,
    slots: Vec<Slot>,
    pass: Pass,
    /// The most likely token after each token whose logits the pass wants.
    said: Vec<u32>,
    /// Number of entries of `said` for each row of the pass.
    widths: Vec<usize>,
}

/// State of a request.
#[derive(Debug, Default)]
struct Slot {
    /// Number of leading tokens that have keys and values.
    known: usize,
    guesses: Guesses,
}

impl Slot {
    /// Counts the guesses of the last pass that the text has confirmed. Their keys and
    /// values are in place.
    fn settle(&mut self, text: &[u32]) {
        self.known += self.guesses.right(text);
    }
}

impl<B: Backend> BlockDrafter<B> {
    /// Loads the configured draft model.
    pub(crate) fn load(build: Build<'_, B>, width: usize) -> Result<Self, DraftError> {
        let draft = build.draft()?;
        let Build {
            backend,
            requests,
            limits,
            pages,
            page_size,
            kv_dtype,
            files,
            progress,
            ..
        } = build;
        let options = LoadOptions {
            files,
            ..LoadOptions::new(Axis::Alone, limits)
        };
        let transformer = Transformer::load(backend, &draft.model, options, progress)?;
        Ok(Self {
            cache: transformer.kv_cache(backend, pages, page_size, kv_dtype)?,
            transformer,
            width,
            slots: (0..requests).map(|_| Slot::default()).collect(),
            pass: Pass::new(requests, limits.max_tokens),
            said: Vec::with_capacity(requests * width),
            widths: Vec::with_capacity(requests),
        })
    }

    /// Runs the pass and stores the most likely tokens in `said`.
    fn run(&mut self, device: &mut Device<'_, B>) -> Result<(), DraftError> {
        self.said.clear();
        if self.pass.is_empty() {
            return Ok(());
        }
        let said = &mut self.said;
        let mut read = |block: LogitBlock<'_>| {
            said.extend(block.logits.chunks_exact(block.vocab).map(most_likely));
        };
        let batch = self.pass.batch(device.pages);
        self.transformer
            .forward(device.backend, &mut self.cache, &batch, None, &mut read)?;
        Ok(())
    }
}

impl<B: Backend> Drafter<B> for BlockDrafter<B> {
    fn bytes(&self, backend: &B) -> (usize, usize) {
        (self.transformer.weight_bytes(backend), self.cache.bytes())
    }

    fn open(&mut self, slot: usize, _tokens: &[u32], cached: Range<usize>) {
        let slot = &mut self.slots[slot];
        slot.known = cached.end;
        slot.guesses.clear();
    }

    /// Drafts with one pass for all rows. The pass runs over the tokens not known yet,
    /// the last one included, and then over the guesses.
    fn draft(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        self.pass.clear();
        self.widths.clear();
        for row in rows.iter().filter(|row| row.steps > 0) {
            let slot = &mut self.slots[row.slot];
            let text = device.requests.tokens(row.slot);
            slot.settle(text);
            let known = slot.known.min(row.kv_len);
            self.pass.begin(known, row.pages_start);
            self.pass
                .push_chain(device.pages, &text[known..=row.kv_len], known);
            self.pass.want();
            let width = self.width.min(row.room);
            let guesses = slot.guesses.guess(text, width.saturating_sub(1));
            for (guess, position) in guesses.iter().zip(row.kv_len + 1..) {
                self.pass.push(device.pages, *guess, position, position);
                self.pass.want();
            }
            slot.known = row.kv_len + 1;
            self.widths.push(1 + guesses.len());
        }
        self.run(device)?;
        let mut said = &self.said[..];
        let asked = rows.iter().enumerate().filter(|(_, row)| row.steps > 0);
        for ((at, row), width) in asked.zip(&self.widths) {
            let (block, rest) = said.split_at(*width);
            said = rest;
            self.slots[row.slot].guesses.said(block);
            let depth = row.steps.min(row.most);
            for (token, parent) in block.iter().take(depth).zip(0..) {
                let token = *token;
                drafts.push(at, Node { token, parent });
            }
        }
        Ok(())
    }

    /// Runs over tokens that the target has committed: whole prompt chunks, and
    /// accepted tokens that the guesses had missed.
    fn extend(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        self.pass.clear();
        for row in rows {
            let slot = &mut self.slots[row.slot];
            let text = device.requests.tokens(row.slot);
            slot.settle(text);
            let (from, end) = (slot.known, row.end());
            if end >= from + LAG {
                self.pass.begin(from, row.pages_start);
                self.pass.push_chain(device.pages, &text[from..end], from);
                slot.known = end;
            }
        }
        self.run(device)
    }
}

/// Returns the first of the largest logits; 0 if no logit is a number.
fn most_likely(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, logit) in (0..).zip(logits) {
        if *logit > best.1 {
            best = (token, *logit);
        }
    }
    best.0
}
