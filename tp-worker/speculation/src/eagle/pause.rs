//! While nobody drafts: features are kept, and the head runs over them when
//! somebody does again.

use lockstep_backend::Backend;

use super::EagleDrafter;
use crate::{Device, DraftError, ExtendRow};

impl<B: Backend> EagleDrafter<B> {
    /// Keeps the features of rows that are not taken in, as long as the window
    /// holds all that a request has missed.
    pub(super) fn keep(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) {
        let (Some(window), Some(features)) = (&mut self.window, device.features) else {
            return;
        };
        let (from, to) = &mut self.kept;
        from.clear();
        to.clear();
        for row in rows {
            if row.end().saturating_sub(self.known[row.slot]) > window.positions() {
                continue;
            }
            let rows = &device.feature_rows[row.features.clone()];
            from.extend_from_slice(rows);
            to.extend((row.start..row.end()).map(|position| window.row(row.slot, position)));
        }
        if !from.is_empty() {
            window.keep(device.backend, features, from, to);
        }
    }

    /// Takes in what requests have missed, each `(slot, row of the page table,
    /// up to where)`, in as few passes as hold it. Who has missed more than the
    /// window keeps is left behind.
    ///
    /// # Errors
    /// The head's.
    pub(super) fn catch_up(
        &mut self,
        device: &mut Device<'_, B>,
        behind: impl Iterator<Item = (usize, u32, usize)>,
    ) -> Result<(), DraftError> {
        let Some(window) = &self.window else {
            return Ok(());
        };
        for (slot, pages_start, to) in behind {
            let known = &mut self.known[slot];
            if to.saturating_sub(*known) > window.positions() {
                continue;
            }
            while *known < to {
                let end = to.min(*known + self.pairs.room());
                if end > *known {
                    let rows = (*known..end).map(|position| window.row(slot, position));
                    self.pairs.push(device, slot, pages_start, *known, rows);
                    *known = end;
                }
                if end == to {
                    self.pairs.root(slot);
                } else {
                    self.pairs
                        .take_in(&mut self.head, device, window.features())?;
                }
            }
        }
        self.pairs
            .take_in(&mut self.head, device, window.features())
    }
}
