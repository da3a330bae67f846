//! Chains: one token per row and pass, or all tokens so far while layers draft in turn.

use lockstep_backend::Backend;
use lockstep_model::HiddenSource;

use super::{Growth, Proposer};
use crate::{Device, DraftError, DraftRow, Drafts, Node, PageTable, Pass};

/// Least chance of acceptance at which a draft is worth its share of a pass, and of the
/// drafter's time: one in eight.
pub(crate) const LEAST: f32 = 1.0 / 8.0;

/// Returns the most depth of a row's chain. The positions that the target verifies fit the
/// row's room. The drafter needs no more cells: no pass follows the last node, so the node is
/// in no cell.
pub(crate) fn depth(row: &DraftRow) -> usize {
    row.steps.min(row.most)
}

/// A chain in the pass after its last node.
struct Next<'a> {
    row: &'a DraftRow,
    nodes: &'a [Node],
    first_cell: usize,
    /// Number of the last layer of those that draft in turn.
    last: usize,
    /// Start of the chain's tokens in the pass before.
    before: u32,
}

impl Next<'_> {
    /// Adds the chain to `pass`, and for each of its tokens the hidden state that it follows. A
    /// layer that has not run yet runs over all nodes, the last layer later over the last node
    /// alone.
    fn push(self, pages: PageTable<'_>, pass: &mut Pass, sources: &mut Vec<HiddenSource>) {
        let level = self.nodes.len();
        let first = if level <= self.last { 0 } else { level - 1 };
        // The pass before had either all nodes but the last, or one node.
        let had_all = level - 1 <= self.last;
        let place = self.row.kv_len + self.first_cell;
        pass.begin(place + first, self.row.pages_start);
        for (number, node) in self.nodes.iter().enumerate().skip(first) {
            pass.push(pages, node.token, place + number, place + number);
            sources.push(match number {
                0 => HiddenSource::Root(self.row.slot as u32),
                _ if had_all => HiddenSource::Output(self.before + number as u32 - 1),
                _ => HiddenSource::Output(self.before),
            });
        }
        pass.want();
    }
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
        let (vocab, last) = (model.vocab(), model.layers().saturating_sub(1));
        self.chances.clear();
        self.chances.resize(self.rows.len(), 1.0);
        self.starts.clear();
        self.starts.resize(self.rows.len(), 0);
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
            let rows = rows.zip(self.chances.iter_mut().zip(&mut self.starts));
            let growing = rows.filter(|((_, row), _)| growing(row));
            for (output, ((at, row), (chance, start))) in growing.enumerate() {
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
                    let before = std::mem::replace(start, self.pass.len() as u32);
                    let next = Next {
                        row,
                        nodes: drafts.nodes(*at),
                        first_cell,
                        last,
                        before,
                    };
                    next.push(device.pages, &mut self.pass, &mut self.sources);
                }
            }
        }
        Ok(())
    }
}
