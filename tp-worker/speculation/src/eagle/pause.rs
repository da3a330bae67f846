//! Catching up after steps that drafted nothing. The head runs over the features that were kept.

use lockstep_backend::Backend;

use super::EagleDrafter;
use crate::{Device, DraftError};

impl<B: Backend> EagleDrafter<B> {
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
        let Some(window) = self.missed.window() else {
            return Ok(());
        };
        for (slot, pages_start, to) in behind {
            let (span, page_size) = (self.spans[slot], device.pages.page_size as usize);
            let Some(mut span) = self.missed.reach(span, to, page_size) else {
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
}
