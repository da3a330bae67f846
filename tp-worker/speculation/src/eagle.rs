//! EAGLE's heads and models' own draft layers: a layer that reads the target's hidden states, or
//! several in turn.

mod chains;
mod pairs;
mod pause;
mod waiting;

use std::ops::Range;

use lockstep_backend::Backend;
use lockstep_model::{CaptureSpec, DraftPasses, EagleHead, HiddenSource, ModelCache};

use crate::{
    Build, Device, DraftError, DraftRow, Drafter, Drafts, DraftsOnDevice, ExtendRow, Pass,
    missed::Missed,
    propose::{Growth, Proposer},
    span::Span,
};
use pairs::Pairs;
use waiting::Waiting;

/// Drafts with an EAGLE-1/2 or EAGLE-3 head, or with a model's own draft layers.
///
/// Position `i` of the head's cache holds the pair of the target's features at `i` and token
/// `i + 1`. The output after the last pair predicts the token after that pair's token, and
/// starts the next draft.
pub struct EagleDrafter<B: Backend> {
    head: Head<B>,
    growth: Growth,
    /// Positions of each slot whose pairs the head has taken in.
    spans: Vec<Span>,
    /// Features of the last pairs that the head has not taken in.
    missed: Missed<B>,
    pairs: Pairs,
    /// Drafting by the device.
    chains: DraftPasses<B>,
    waiting: Waiting,
    /// The rows to draft for, with the depths that they may have.
    rows: Vec<DraftRow>,
}

/// The head, its cache and its logits.
struct Head<B: Backend> {
    head: EagleHead<B>,
    cache: ModelCache<B>,
    /// The target's ids of the head's tokens.
    ids: Vec<u32>,
    logits: Vec<f32>,
    sources: Vec<HiddenSource>,
    /// Number of passes of the present drafts.
    level: usize,
}

impl<B: Backend> EagleDrafter<B> {
    /// Loads the configured head.
    ///
    /// # Errors
    /// [`DraftError`] if its files can't be used, or for want of memory.
    pub fn load(build: Build<'_, B>) -> Result<Self, DraftError> {
        let (draft, chooser) = (build.draft()?, build.chooser());
        let Build {
            backend,
            speculation,
            target,
            requests,
            limits,
            pages,
            page_size,
            kv_dtype,
            files,
            progress,
            ..
        } = build;
        let head = EagleHead::load(backend, draft, target, requests, limits, files, progress)?;
        let layers = head.layers();
        let width = head.capture().width(target.hidden_size);
        let missed = Missed::new(backend, requests, speculation.kept_positions(), width)?;
        Ok(Self {
            head: Head {
                cache: head.kv_cache(backend, pages, page_size, kv_dtype)?,
                ids: (0..head.vocab() as u32)
                    .map(|id| head.target_token(id))
                    .collect(),
                head,
                logits: Vec::new(),
                sources: Vec::with_capacity(limits.max_tokens),
                level: 0,
            },
            growth: Growth::new(requests, limits.max_tokens, chooser),
            spans: vec![Span::default(); requests],
            missed,
            pairs: Pairs::new(requests, limits.max_tokens, layers),
            waiting: Waiting::new(requests, speculation.max_commit()),
            chains: DraftPasses::new(
                speculation.max_commit(),
                speculation.num_steps,
                speculation.topk,
            ),
            rows: Vec::with_capacity(requests),
        })
    }
}

impl<B: Backend> Drafter<B> for EagleDrafter<B> {
    fn capture(&self) -> CaptureSpec {
        self.head.head.capture()
    }

    fn bytes(&self, backend: &B) -> (usize, usize) {
        let Head { head, cache, .. } = &self.head;
        (head.weight_bytes(backend), cache.bytes())
    }

    fn record(
        &mut self,
        device: &mut Device<'_, B>,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), DraftError> {
        let Head { head, cache, .. } = &mut self.head;
        Ok(head.record(device.backend, cache, device.tables, each)?)
    }

    fn open(&mut self, slot: usize, _tokens: &[u32], cached: Range<usize>) {
        self.spans[slot] = Span {
            from: cached.start,
            to: cached.end,
        };
        self.pairs.forget_roots(slot);
        self.waiting.done(slot);
    }

    fn close(&mut self, slot: usize, _tokens: &[u32]) {
        self.waiting.done(slot);
    }

    fn forget(&mut self) {
        self.waiting.forget();
    }

    fn draft(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        let behind = rows
            .iter()
            .map(|row| (row.slot, row.pages_start, row.kv_len));
        self.catch_up(device, behind)?;
        self.rows.clear();
        self.rows
            .extend(rows.iter().map(|row| match self.spans[row.slot] {
                span if span.to == row.kv_len => span.row(device.pages, row),
                // No page begins within the window, so this request drafts nothing.
                _ => DraftRow { steps: 0, ..*row },
            }));
        self.growth
            .draft(&mut self.head, device, &self.rows, drafts)
    }

    fn on_device(&mut self) -> Option<&mut dyn DraftsOnDevice<B>> {
        Some(self)
    }

    fn extend(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        let behind = rows
            .iter()
            .map(|row| (row.slot, row.pages_start, row.start));
        self.catch_up(device, behind)?;
        let Some(features) = device.features else {
            return Ok(());
        };
        self.waiting.forget();
        let spans = &self.spans;
        let missed = |row: &ExtendRow| spans[row.slot].to != row.start;
        self.missed.keep(device, rows, missed);
        for row in rows {
            // In a text whose prompt alone is scored no token follows the last one.
            let end = row.end().min(device.requests.tokens(row.slot).len() - 1);
            if end <= row.start || self.spans[row.slot].to != row.start {
                continue;
            }
            let rows = &device.feature_rows[row.features.clone()];
            self.take_or_wait(device, row, &rows[..end - row.start]);
        }
        self.pairs.take_in(&mut self.head, device, features)
    }

    fn pause(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        self.missed.keep(device, rows, |_| true);
        Ok(())
    }
}

impl<B: Backend> Head<B> {
    fn read_logits(&mut self, device: &mut Device<'_, B>) -> Result<(), DraftError> {
        let logits = self
            .head
            .logits(device.backend, device.tables, &self.sources)?;
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        Ok(())
    }
}

impl<B: Backend> Proposer<B> for Head<B> {
    fn vocab(&self) -> usize {
        self.head.vocab()
    }

    fn ids(&self) -> Option<&[u32]> {
        Some(&self.ids)
    }

    fn first_cell(&self) -> usize {
        0
    }

    fn layers(&self) -> usize {
        self.head.layers()
    }

    fn first(&mut self, device: &mut Device<'_, B>, rows: &[DraftRow]) -> Result<(), DraftError> {
        self.level = 0;
        self.sources.clear();
        let roots = rows.iter().map(|row| HiddenSource::Root(row.slot as u32));
        self.sources.extend(roots);
        self.read_logits(device)
    }

    fn next(
        &mut self,
        device: &mut Device<'_, B>,
        pass: &Pass,
        sources: &[HiddenSource],
    ) -> Result<(), DraftError> {
        let batch = pass.batch(device.pages);
        self.level += 1;
        self.head.feed_hidden(device.backend, self.level, sources)?;
        self.head
            .forward(device.backend, &mut self.cache, device.tables, &batch)?;
        self.sources.clear();
        let wanted = pass.wanted().iter().map(|row| HiddenSource::Output(*row));
        self.sources.extend(wanted);
        self.read_logits(device)
    }

    fn logits(&self) -> &[f32] {
        &self.logits
    }
}
