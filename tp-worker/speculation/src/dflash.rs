//! DFLASH: a model that fills a whole block of tokens in one pass.

mod blocks;
mod context;

use std::ops::Range;

use lockstep_backend::Backend;
use lockstep_model::{CaptureSpec, DflashModel, ModelCache};

use crate::{
    Build, Device, DraftError, DraftRow, Drafter, Drafts, ExtendRow, missed::Missed,
    propose::chains::depth, span::Span,
};
use blocks::Blocks;
use context::Context;

/// Drafts with a DFlash model.
///
/// Position `i` of the model's cache is made of the target's features at `i`. A draft is one
/// pass over the last known token and masks behind it, in the cells of their positions. Later
/// features take the place of what that pass leaves there.
pub struct DflashDrafter<B: Backend> {
    model: Model<B>,
    /// Positions of each slot that are in the model's cache.
    spans: Vec<Span>,
    /// Features of the last positions that are not.
    missed: Missed<B>,
    context: Context,
    blocks: Blocks,
}

/// The model and its cache.
struct Model<B: Backend> {
    model: DflashModel<B>,
    cache: ModelCache<B>,
}

impl<B: Backend> DflashDrafter<B> {
    /// Loads the configured model.
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
        let model = DflashModel::load(backend, draft, target, limits, files, progress)?;
        let width = model.capture().width(target.hidden_size);
        let missed = Missed::new(backend, requests, speculation.kept_positions(), width)?;
        Ok(Self {
            model: Model {
                cache: model.kv_cache(backend, pages, page_size, kv_dtype)?,
                model,
            },
            spans: vec![Span::default(); requests],
            missed,
            context: Context::new(requests, limits.max_tokens),
            blocks: Blocks::new(requests, limits.max_tokens, chooser),
        })
    }

    /// Takes in the positions that requests have missed, in as few passes as hold them. Each of
    /// `behind` is `(slot, row of the page table, end position)`. If a request has missed more
    /// than the window keeps, the model sees only its last pages from now on.
    ///
    /// # Errors
    /// The errors of the model.
    fn catch_up(
        &mut self,
        device: &mut Device<'_, B>,
        behind: impl Iterator<Item = (usize, u32, usize)>,
    ) -> Result<(), DraftError> {
        let Some(window) = self.missed.window() else {
            return Ok(());
        };
        for (slot, pages_start, to) in behind {
            let (span, page_size) = (self.spans[slot], device.pages.page_size as usize);
            let Some(mut span) = self.missed.reach(span, to, page_size) else {
                continue;
            };
            while span.to < to {
                let end = to.min(span.to + self.context.room());
                if end == span.to {
                    self.context
                        .take_in(&mut self.model, device, window.features())?;
                    continue;
                }
                let rows = (span.to..end).map(|position| window.row(slot, position));
                self.context.push(device, pages_start, span, rows);
                span.to = end;
            }
            self.spans[slot] = span;
        }
        self.context
            .take_in(&mut self.model, device, window.features())
    }
}

impl<B: Backend> Drafter<B> for DflashDrafter<B> {
    fn capture(&self) -> CaptureSpec {
        self.model.model.capture()
    }

    fn bytes(&self, backend: &B) -> (usize, usize) {
        let Model { model, cache } = &self.model;
        (model.weight_bytes(backend), cache.bytes())
    }

    fn open(&mut self, slot: usize, _tokens: &[u32], cached: Range<usize>) {
        self.spans[slot] = Span {
            from: cached.start,
            to: cached.end,
        };
    }

    fn draft(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        let asked = rows.iter().filter(|row| row.steps > 0);
        let behind = asked.map(|row| (row.slot, row.pages_start, row.kv_len));
        self.catch_up(device, behind)?;
        let spec = self.model.model.spec();
        let (mask, most) = (spec.mask_token_id, spec.block_size - 1);
        self.blocks.begin(rows.len());
        for (at, row) in rows.iter().enumerate() {
            // A whole block, as the model was trained, however few of its drafts are wanted.
            let masks = most.min(row.room.saturating_sub(1));
            let (depth, span) = (depth(row).min(masks), self.spans[row.slot]);
            // If no page begins within the window, the request drafts nothing.
            if depth > 0 && span.to == row.kv_len {
                let token = device.requests.tokens(row.slot)[row.kv_len];
                let seen = span.row(device.pages, row);
                let blocks = &mut self.blocks;
                blocks.push(device, (at, &seen), token, (mask, masks), depth);
            }
        }
        self.blocks.fill(&mut self.model, device, rows, drafts)
    }

    fn extend(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        let behind = rows
            .iter()
            .map(|row| (row.slot, row.pages_start, row.start));
        self.catch_up(device, behind)?;
        let Some(features) = device.features else {
            return Ok(());
        };
        let spans = &self.spans;
        let missed = |row: &ExtendRow| spans[row.slot].to != row.start;
        self.missed.keep(device, rows, missed);
        for row in rows {
            let span = &mut self.spans[row.slot];
            let rows = &device.feature_rows[row.features.clone()];
            if span.to == row.start && !rows.is_empty() {
                let rows = rows.iter().copied();
                self.context.push(device, row.pages_start, *span, rows);
                span.to = row.end();
            }
        }
        self.context.take_in(&mut self.model, device, features)
    }

    fn pause(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        self.missed.keep(device, rows, |_| true);
        Ok(())
    }
}
