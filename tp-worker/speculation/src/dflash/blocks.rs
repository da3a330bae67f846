//! Blocks of masks, and the tokens that fill them.

use lockstep_backend::Backend;

use super::Model;
use crate::{
    Device, DraftError, DraftRow, Drafts, Node, Pass, choose::Chooser, propose::chains::LEAST,
};

/// The blocks of a step under construction, in buffers that are reused.
pub(super) struct Blocks {
    pass: Pass,
    /// For each wanted output, the index of its row among all rows.
    rows: Vec<usize>,
    /// For each row, an upper bound of the chance that its drafts are all accepted.
    chances: Vec<f32>,
    chooser: Chooser,
}

impl Blocks {
    /// Makes room for blocks of `requests` requests in a pass of `tokens` tokens.
    pub fn new(requests: usize, tokens: usize, chooser: Chooser) -> Self {
        Self {
            pass: Pass::new(requests, tokens),
            rows: Vec::with_capacity(tokens),
            chances: Vec::with_capacity(requests),
            chooser,
        }
    }

    /// Begins the blocks of `rows` rows.
    pub fn begin(&mut self, rows: usize) {
        self.pass.clear();
        self.rows.clear();
        self.chances.clear();
        self.chances.resize(rows, 1.0);
    }

    /// Adds the block of row number `at`, of which the first `depth` drafts are wanted. The
    /// block is `token`, the last known one, and `masks` masks; each sees all of them.
    pub fn push<B: Backend>(
        &mut self,
        device: &Device<'_, B>,
        (at, row): (usize, &DraftRow),
        token: u32,
        (mask, masks): (u32, usize),
        depth: usize,
    ) {
        let pass = &mut self.pass;
        pass.begin(row.kv_len, row.pages_start);
        pass.push(device.pages, token, row.kv_len, row.kv_len);
        for place in 1..=masks {
            let position = row.kv_len + place;
            pass.push(device.pages, mask, position, position);
            if place <= depth {
                pass.want();
                self.rows.push(at);
            }
        }
        let width = 1 + masks;
        pass.mask(|words| {
            for _ in 0..width {
                let word = |first| match width - first {
                    64.. => u64::MAX,
                    left => (1 << left) - 1,
                };
                words.extend((0..width).step_by(64).map(word));
            }
        });
    }

    /// Runs the model over the blocks, and fills them with tokens: the likeliest one in each
    /// place, or one that is drawn. `rows` are all rows, with the positions of the text.
    ///
    /// # Errors
    /// The errors of the model.
    pub fn fill<B: Backend>(
        &mut self,
        model: &mut Model<B>,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        if self.pass.is_empty() {
            return Ok(());
        }
        let Model { model, cache } = model;
        let (batch, vocab) = (self.pass.batch(device.pages), model.vocab());
        model.forward(device.backend, cache, device.tables, &batch)?;
        let most = model.limits().logit_block_rows;
        let wanted = self.pass.wanted().chunks(most).zip(self.rows.chunks(most));
        for (wanted, of) in wanted {
            let logits = model.logits(device.backend, device.tables, wanted)?;
            for (logits, at) in logits.chunks_exact(vocab).zip(of) {
                let (at, row, chance) = (*at, &rows[*at], &mut self.chances[*at]);
                if *chance < LEAST {
                    continue;
                }
                let (token, bound) = self.chooser.choose(device, row, at, logits, None, drafts);
                *chance *= bound;
                if *chance >= LEAST {
                    let parent = drafts.nodes(at).len() as u32;
                    drafts.push(at, Node { token, parent });
                }
            }
        }
        Ok(())
    }
}
