//! Chains: one token per row and pass.

use lockstep_backend::Backend;
use lockstep_model::HiddenSource;

use super::{Growth, Proposer};
use crate::{Device, DraftError, DraftRow, Drafts, Node};

/// Least chance of acceptance at which a draft is worth its share of a pass, and of the
/// drafter's time: one in eight.
pub(crate) const LEAST: f32 = 1.0 / 8.0;

/// Returns the most depth of a row's chain. The positions that the target verifies fit the
/// row's room. The drafter needs no more cells: no pass follows the last node, so the node is
/// in no cell.
pub(crate) fn depth(row: &DraftRow) -> usize {
    row.steps.min(row.most)
}

impl Growth {
    /// Drafts chains for `self.rows`.
    pub(super) fn chains<B: Backend>(
        &mut self,
        model: &mut impl Proposer<B>,
        device: &mut Device<'_, B>,
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        let first_cell = model.first_cell();
        let deepest = self.rows.iter().map(depth).max();
        let deepest = deepest.unwrap_or(0);
        let vocab = model.vocab();
        self.chances.clear();
        self.chances.resize(self.rows.len(), 1.0);
        model.first(device, &self.rows)?;
        for level in 0..deepest {
            // Logits of the rows that still grow, in their order.
            let growing = |row: &DraftRow| depth(row) > level;
            if level > 0 {
                if self.pass.is_empty() {
                    break;
                }
                model.next(device, &self.pass, &self.sources)?;
            }
            self.pass.clear();
            self.sources.clear();
            let logits = model.logits();
            let rows = self.active.iter().zip(&mut self.rows);
            let rows = rows.zip(&mut self.chances);
            let growing = rows.filter(|((_, row), _)| growing(row));
            for (output, ((at, row), chance)) in growing.enumerate() {
                let logits = &logits[output * vocab..(output + 1) * vocab];
                let (token, bound) =
                    self.chooser
                        .choose(device, row, *at, logits, model.ids(), drafts);
                *chance *= bound;
                if *chance < LEAST {
                    row.steps = level;
                    continue;
                }
                drafts.push(
                    *at,
                    Node {
                        token,
                        parent: level as u32,
                    },
                );
                if depth(row) > level + 1 {
                    let place = row.kv_len + first_cell + level;
                    self.pass.begin(place, row.pages_start);
                    self.pass.push(device.pages, token, place, place);
                    self.pass.want();
                    self.sources.push(match level {
                        0 => HiddenSource::Root(row.slot as u32),
                        _ => HiddenSource::Output(output as u32),
                    });
                }
            }
        }
        Ok(())
    }
}
