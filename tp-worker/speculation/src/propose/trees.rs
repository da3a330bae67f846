//! Trees. Every level runs all nodes expanded so far in one masked row.

use lockstep_backend::Backend;
use lockstep_model::HiddenSource;

use super::{Growth, Proposer};
use crate::{Device, DraftError, Drafts, TreeGrower, TreeShape};

/// One grower per row, reused from step to step.
#[derive(Debug, Default)]
pub(super) struct Trees {
    growers: Vec<TreeGrower>,
    /// Start of each row's tokens in the last pass.
    starts: Vec<u32>,
}

impl Growth {
    /// Drafts trees for `self.rows`.
    pub(super) fn trees<B: Backend>(
        &mut self,
        model: &mut impl Proposer<B>,
        device: &mut Device<'_, B>,
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        let (rows, count) = (&self.rows, self.rows.len());
        let Trees { growers, starts } = &mut self.trees;
        growers.resize_with(count.max(growers.len()), TreeGrower::default);
        starts.clear();
        starts.resize(count, 0);
        for (grower, row) in growers.iter_mut().zip(rows) {
            grower.begin(TreeShape::fit(row, model.first_cell()));
        }
        model.first(device, rows)?;
        self.level(model, device, drafts, |_| 1);
        let last = model.layers().saturating_sub(1);
        for level in 1.. {
            if !self.expand(model.first_cell(), (level, last), device) {
                break;
            }
            model.next(device, &self.pass, &self.sources)?;
            self.level(model, device, drafts, |grower| grower.frontier().len());
        }
        let rows = self.active.iter().zip(&self.rows);
        for (grower, (at, row)) in self.trees.growers.iter_mut().zip(rows) {
            // Drawn tokens are drafted already.
            if self.chooser.drawing(device, row, None).is_none() {
                grower.finish(drafts, *at);
            }
        }
        Ok(())
    }

    /// Generates a level of every tree from the model's logits. Each grower takes `wanted` rows
    /// of them.
    fn level<B: Backend>(
        &mut self,
        model: &impl Proposer<B>,
        device: &Device<'_, B>,
        drafts: &mut Drafts,
        wanted: impl Fn(&TreeGrower) -> usize,
    ) {
        let (ids, mut rest) = (model.ids(), model.logits());
        let rows = self.active.iter().zip(&self.rows);
        for (grower, (at, row)) in self.trees.growers.iter_mut().zip(rows) {
            let (logits, others) = rest.split_at(wanted(grower) * model.vocab());
            rest = others;
            match self.chooser.drawing(device, row, ids) {
                Some(mut drawing) => grower.sample_level(logits, &mut drawing, drafts, *at),
                None => grower.level(logits, &|id| target_token(ids, id)),
            }
        }
    }

    /// Lays out the pass of a level. Returns true if there is one. A token's hidden state comes from
    /// its parent's row of the pass before, which had all parents. Of layers that draft in turn,
    /// number `last` runs again behind its own level, over its own outputs. What it has read
    /// of the layer before stays the hidden state of the tokens up to that level.
    fn expand<B: Backend>(
        &mut self,
        first_cell: usize,
        (level, last): (usize, usize),
        device: &Device<'_, B>,
    ) -> bool {
        self.pass.clear();
        self.sources.clear();
        let Trees { growers, starts } = &mut self.trees;
        for ((grower, row), start) in growers.iter().zip(&self.rows).zip(starts) {
            let frontier = grower.frontier().len();
            if frontier == 0 {
                continue;
            }
            let (before, base) = (*start, row.kv_len + first_cell);
            *start = self.pass.len() as u32;
            self.pass.begin(base, row.pages_start);
            self.pass.mask(|masks| grower.push_mask(masks));
            let fresh = grower.expanded().len() - frontier;
            for (at, node) in grower.expanded().iter().enumerate() {
                let position = base + node.depth as usize - 1;
                self.pass
                    .push(device.pages, node.token, position, base + at);
                if at >= fresh {
                    self.pass.want();
                }
                self.sources.push(match node.parent.checked_sub(1) {
                    _ if level > last && node.depth as usize <= last => {
                        HiddenSource::Input(before + at as u32)
                    }
                    None => HiddenSource::Root(row.slot as u32),
                    Some(parent) => HiddenSource::Output(before + parent),
                });
            }
        }
        !self.pass.is_empty()
    }
}

fn target_token(ids: Option<&[u32]>, id: u32) -> u32 {
    ids.and_then(|ids| ids.get(id as usize))
        .copied()
        .unwrap_or(id)
}
