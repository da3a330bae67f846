//! STANDALONE: a small model that shares the target's tokenizer.

mod chains;

use std::ops::Range;

use lockstep_backend::{Axis, Backend};
use lockstep_model::{DraftPasses, HiddenSource, LoadOptions, LogitBlock, ModelCache, Transformer};

use crate::{
    Build, Device, DraftError, DraftRow, Drafter, Drafts, DraftsOnDevice, ExtendRow, Pass,
    propose::{Growth, Proposer},
    span::Span,
};

/// Drafts with a whole model.
pub struct StandaloneDrafter<B: Backend> {
    /// Drafting by the device. It names memory of the model, and so is dropped first.
    chains: DraftPasses<B>,
    model: Model<B>,
    growth: Growth,
    pass: Pass,
    /// For each slot that drafted: the request's position then, and how many of its drafts have
    /// keys and values.
    drafted: Vec<(usize, usize)>,
    /// Most positions of a pause that the drafter takes in when a request drafts again.
    window: usize,
    /// Number of positions that a request may be behind at its next draft. The draft's first
    /// pass takes them in.
    left: usize,
    /// Most tokens of a pass.
    most: usize,
    /// The rows to draft for, with the depths that they may have.
    rows: Vec<DraftRow>,
}

/// The model, its cache and its logits.
struct Model<B: Backend> {
    transformer: Transformer<B>,
    cache: ModelCache<B>,
    /// Positions of each slot with keys and values.
    spans: Vec<Span>,
    pass: Pass,
    logits: Vec<f32>,
}

impl<B: Backend> StandaloneDrafter<B> {
    /// Loads the configured model.
    ///
    /// # Errors
    /// [`DraftError`] if its files can't be used, or for want of memory.
    pub fn load(build: Build<'_, B>) -> Result<Self, DraftError> {
        let (draft, chooser) = (build.draft()?, build.chooser());
        let Build {
            backend,
            speculation,
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
        let left = speculation.reserve().left_by_draft_model() as usize;
        let transformer = Transformer::load(backend, &draft.model, options, progress)?;
        Ok(Self {
            model: Model {
                cache: transformer.kv_cache(backend, pages, page_size, kv_dtype)?,
                transformer,
                spans: vec![Span::default(); requests],
                pass: Pass::new(requests, limits.max_tokens),
                logits: Vec::new(),
            },
            growth: Growth::new(requests, limits.max_tokens, chooser),
            chains: DraftPasses::new(left + 1, speculation.num_steps, speculation.topk),
            left,
            pass: Pass::new(requests, limits.max_tokens),
            drafted: vec![(0, 0); requests],
            window: speculation.pause_window,
            most: limits.max_tokens.max(1),
            rows: Vec::with_capacity(requests),
        })
    }
}

impl<B: Backend> Drafter<B> for StandaloneDrafter<B> {
    fn bytes(&self, backend: &B) -> (usize, usize) {
        let Model {
            transformer, cache, ..
        } = &self.model;
        (transformer.weight_bytes(backend), cache.bytes())
    }

    fn record(
        &mut self,
        device: &mut Device<'_, B>,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), DraftError> {
        let Model {
            transformer, cache, ..
        } = &mut self.model;
        Ok(transformer.record(device.backend, cache, each)?)
    }

    fn open(&mut self, slot: usize, _tokens: &[u32], cached: Range<usize>) {
        self.model.spans[slot] = Span {
            from: cached.start,
            to: cached.end,
        };
        self.drafted[slot] = (0, 0);
    }

    fn draft(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        self.begin(device, rows)?;
        self.growth
            .draft(&mut self.model, device, &self.rows, drafts)?;
        self.note(rows, drafts);
        Ok(())
    }

    fn cut(&mut self, slot: usize, left: usize) {
        let taken_in = &mut self.drafted[slot].1;
        *taken_in = (*taken_in).min(left);
    }

    fn on_device(&mut self) -> Option<&mut dyn DraftsOnDevice<B>> {
        Some(self)
    }

    fn extend(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        for row in rows {
            let known = &mut self.model.spans[row.slot].to;
            let (stood, taken_in) = std::mem::take(&mut self.drafted[row.slot]);
            if taken_in > 0 && stood == row.start {
                // Accepted drafts are in place. The first new position is the token that was
                // known before.
                *known = (*known).max((row.start + 1 + taken_in).min(row.end()));
            }
            *known = (*known).min(row.end());
        }
        let behind = |row: &ExtendRow| Behind {
            slot: row.slot,
            pages_start: row.pages_start,
            stood: row.start,
            end: row.end(),
        };
        self.catch_up(device, rows.iter().map(behind))
    }

    /// Does nothing: the request's tokens are known whenever it drafts again.
    fn pause(&mut self, _: &mut Device<'_, B>, _: &[ExtendRow]) -> Result<(), DraftError> {
        Ok(())
    }
}

/// A request that may have tokens without keys and values.
struct Behind {
    slot: usize,
    pages_start: u32,
    /// The request's position before the step.
    stood: usize,
    /// The position after its last final token.
    end: usize,
}

impl<B: Backend> StandaloneDrafter<B> {
    /// Catches up with `rows`, and notes them with the positions of the model's passes.
    fn begin(&mut self, device: &mut Device<'_, B>, rows: &[DraftRow]) -> Result<(), DraftError> {
        let behind = |row: &DraftRow| Behind {
            slot: row.slot,
            pages_start: row.pages_start,
            stood: row.kv_len,
            end: row.kv_len,
        };
        self.catch_up(device, rows.iter().map(behind))?;
        self.rows.clear();
        let spans = &self.model.spans;
        let seen = |row: &DraftRow| spans[row.slot].row(device.pages, row);
        self.rows.extend(rows.iter().map(seen));
        Ok(())
    }

    /// Notes how many drafts of `rows` have keys and values.
    fn note(&mut self, rows: &[DraftRow], drafts: &Drafts) {
        for (at, row) in rows.iter().enumerate() {
            // The last node of a chain was not taken in. Nodes of a tree are not at the
            // positions where they belong.
            let taken_in = match row.topk {
                1 => drafts.nodes(at).len().saturating_sub(1),
                _ => 0,
            };
            self.drafted[row.slot] = (row.kv_len, taken_in);
        }
    }

    /// Takes in the tokens that requests are behind, in as few passes as hold them. If a
    /// request was further behind than the window, the model sees only its last pages from now
    /// on.
    fn catch_up(
        &mut self,
        device: &mut Device<'_, B>,
        behind: impl Iterator<Item = Behind>,
    ) -> Result<(), DraftError> {
        self.pass.clear();
        for row in behind {
            let tokens = device.requests.tokens(row.slot);
            let mut span = self.model.spans[row.slot];
            if row.end.saturating_sub(span.to) <= self.left {
                continue;
            }
            if row.stood.saturating_sub(span.to) > self.window + self.left {
                let page_size = device.pages.page_size as usize;
                let from = row.end.saturating_sub(self.window) / page_size * page_size;
                span = Span::beginning(from.max(span.from));
            }
            while span.to < row.end {
                if self.pass.len() == self.most {
                    self.model.take_in(device, &mut self.pass)?;
                }
                let end = row.end.min(span.to + self.most - self.pass.len());
                let (place, pages) = (
                    span.place(span.to),
                    span.pages(device.pages, row.pages_start),
                );
                self.pass.begin(place, pages);
                self.pass
                    .push_chain(device.pages, &tokens[span.to..end], place);
                span.to = end;
            }
            self.model.spans[row.slot] = span;
        }
        self.model.take_in(device, &mut self.pass)
    }
}

impl<B: Backend> Model<B> {
    /// Runs the model over `pass`, whose tokens are final, and clears the pass.
    fn take_in(&mut self, device: &mut Device<'_, B>, pass: &mut Pass) -> Result<(), DraftError> {
        if !pass.is_empty() {
            let batch = pass.batch(device.pages);
            let Self {
                transformer, cache, ..
            } = self;
            transformer.forward(device.backend, cache, &batch, None, &mut |_| {})?;
        }
        pass.clear();
        Ok(())
    }

    /// Adds a slot's tokens without keys and values to `pass` as a row, up to the last token,
    /// at `end`. `pages` is the start of the row's page table.
    fn push_last(
        &mut self,
        device: &Device<'_, B>,
        slot: usize,
        pages: u32,
        end: usize,
        pass: &mut Pass,
    ) {
        let span = &mut self.spans[slot];
        let first = span.to.min(end);
        let tokens = &device.requests.tokens(slot)[first..=end];
        pass.begin(span.place(first), pages);
        pass.push_chain(device.pages, tokens, span.place(first));
        span.to = end + 1;
    }

    fn run(&mut self, device: &mut Device<'_, B>, pass: &Pass) -> Result<(), DraftError> {
        let logits = &mut self.logits;
        logits.clear();
        let batch = pass.batch(device.pages);
        let mut keep = |block: LogitBlock<'_>| logits.extend_from_slice(block.logits);
        self.transformer
            .forward(device.backend, &mut self.cache, &batch, None, &mut keep)?;
        Ok(())
    }
}

impl<B: Backend> Proposer<B> for Model<B> {
    fn vocab(&self) -> usize {
        self.transformer.model().vocab_size
    }

    fn ids(&self) -> Option<&[u32]> {
        None
    }

    /// The last known token takes the first cell.
    fn first_cell(&self) -> usize {
        1
    }

    fn first(&mut self, device: &mut Device<'_, B>, rows: &[DraftRow]) -> Result<(), DraftError> {
        let mut pass = std::mem::take(&mut self.pass);
        pass.clear();
        for row in rows {
            // The rows have the positions of passes.
            let end = self.spans[row.slot].from + row.kv_len;
            self.push_last(device, row.slot, row.pages_start, end, &mut pass);
            pass.want();
        }
        let done = self.run(device, &pass);
        self.pass = pass;
        done
    }

    fn next(
        &mut self,
        device: &mut Device<'_, B>,
        pass: &Pass,
        _sources: &[HiddenSource],
    ) -> Result<(), DraftError> {
        self.run(device, pass)
    }

    fn logits(&self) -> &[f32] {
        &self.logits
    }
}
