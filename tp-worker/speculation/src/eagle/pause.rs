//! Keeping features while nothing is drafted. The head runs over them once a step drafts again.

use lockstep_backend::Backend;

use super::EagleDrafter;
use crate::{Device, DraftError, ExtendRow, span::Span};

impl<B: Backend> EagleDrafter<B> {
    /// Keeps the features of the rows selected by `missed`, which the head does not take in.
    /// The window keeps the last positions of each request.
    pub(super) fn keep(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[ExtendRow],
        missed: impl Fn(&ExtendRow, Span) -> bool,
    ) {
        let (Some(window), Some(features)) = (&mut self.window, device.features) else {
            return;
        };
        let (from, to) = &mut self.kept;
        from.clear();
        to.clear();
        for row in rows.iter().filter(|row| missed(row, self.spans[row.slot])) {
            let first = row.start.max(row.end().saturating_sub(window.positions()));
            let rows = &device.feature_rows[row.features.clone()][first - row.start..];
            from.extend_from_slice(rows);
            to.extend((first..row.end()).map(|position| window.row(row.slot, position)));
        }
        if !from.is_empty() {
            window.keep(device.backend, features, from, to);
        }
    }

    /// Takes in the pairs that requests have missed, in as few passes as hold them. Each of
    /// `behind` is `(slot, row of the page table, end position)`. If a request has missed more
    /// than the window keeps, the head sees only its last pages from now on.
    ///
    /// # Errors
    /// The errors of the head.
    pub(super) fn catch_up(
        &mut self,
        device: &mut Device<'_, B>,
        behind: impl Iterator<Item = (usize, u32, usize)>,
    ) -> Result<(), DraftError> {
        let Some(window) = &self.window else {
            return Ok(());
        };
        for (slot, pages_start, to) in behind {
            let Some(mut span) = self.reach(slot, to, device.pages.page_size as usize) else {
                continue;
            };
            while span.to < to {
                let end = to.min(span.to + self.pairs.room());
                if end > span.to {
                    let rows = (span.to..end).map(|position| window.row(slot, position));
                    self.pairs.push(device, slot, pages_start, span, rows);
                    span.to = end;
                }
                if end == to {
                    self.pairs.root(slot);
                } else {
                    self.pairs
                        .take_in(&mut self.head, device, window.features())?;
                }
            }
            self.spans[slot] = span;
        }
        self.pairs
            .take_in(&mut self.head, device, window.features())
    }

    /// Returns the span after which a slot's pairs up to `to` can be taken in. Returns `None`
    /// if the window has neither all missed pairs nor the beginning of a page.
    pub(super) fn reach(&self, slot: usize, to: usize, page_size: usize) -> Option<Span> {
        let (span, window) = (self.spans[slot], self.window.as_ref()?.positions());
        if to.saturating_sub(span.to) <= window {
            return Some(span);
        }
        let from = (to - window).next_multiple_of(page_size);
        (from < to).then(|| Span::beginning(from))
    }
}
