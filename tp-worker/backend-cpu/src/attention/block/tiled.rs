//! A tile of query rows in AMX tiles.

use super::super::call::Call;
use super::super::prefetch::Asking;
use super::super::scratch::padded;
use super::super::softmax::{Rows, softmax_blocks};
use super::super::tiled::Tiled;
use super::{FETCH, KernelTile};

use crate::gemm::PANEL;

impl Call<'_> {
    /// Attends one tile to one block.
    pub(super) fn tiled_tile(&self, tiled: &Tiled, of: KernelTile<'_>) {
        let KernelTile {
            queries,
            height,
            few,
            block,
            ahead,
            panels,
            tile,
            states,
            acc,
        } = of;
        let (rows, seen, width) = (states.len(), block.len(), padded(self.shape.head_dim));
        let scores = tile.scores.as_mut_ptr();
        // SAFETY: the kernels were chosen for this machine and cache, where the
        // block lies, as do the panels; queries and scores hold whole heights, and
        // panels of keys a block.
        unsafe {
            if few {
                let mut source = self.source(block, Asking::NOTHING);
                let room = panels.keys.as_mut_ptr().cast();
                (tiled.few_scores)(&mut source, queries.as_ptr(), rows, room, scores);
            } else {
                let blocks = self.shape.head_dim / PANEL;
                let keys = panels.keys.as_ptr();
                (tiled.scores)(queries.as_ptr(), keys, blocks, seen, height, scores);
                ahead.fetch(self.cache, 2 * FETCH);
            }
        }
        self.cap(panels, &mut tile.scores[..rows]);
        let softmax = Rows {
            scores: &mut tile.scores[..rows],
            visible: &tile.visible[..rows],
            scales: self.factors(panels),
            states,
            acc: &mut acc[..rows * width],
            asking: Asking::NOTHING,
        };
        let (lanes, weights) = (&mut tile.lanes, &mut tile.weights);
        let high = if few { rows } else { height.padded() };
        softmax_blocks(self.isa, softmax, None, lanes, weights, high);
        // SAFETY: as above; weights and `acc` hold the height.
        unsafe {
            let (weights, values) = (weights.as_ptr(), panels.values.as_ptr());
            let acc = acc.as_mut_ptr();
            if few {
                (tiled.few_sums)(weights, values, seen, rows, acc, width);
            } else {
                (tiled.sums)(weights, values, seen, height, acc, width);
            }
        }
    }
}
