//! A tile of query rows in whole numbers.

use super::super::call::Call;
use super::super::integers::{CODES, Integers};
use super::super::scratch::padded;
use super::super::softmax::{Bytes, Rows};
use super::{DURING, KernelTile};

impl Call<'_> {
    /// Attends one tile to one block.
    pub(super) fn integer_tile(&self, integers: &Integers, of: KernelTile<'_>) {
        let KernelTile {
            queries,
            few,
            block,
            ahead,
            panels,
            tile,
            states,
            acc,
            ..
        } = of;
        let (rows, seen, head_dim) = (states.len(), block.len(), self.shape.head_dim);
        let width = padded(head_dim);
        let acc = &mut acc[..rows * width];
        let few = few.then(|| integers.few[rows - 1]);
        let during = few.map_or([0; 3], |_| DURING);
        let scores = tile.scores[..rows].as_mut_ptr();
        // SAFETY: the kernels were chosen for this machine and cache, where the
        // block lies, as do the panels; queries and scores hold `rows` rows.
        unsafe {
            if let Some((few_scores, _)) = few {
                let mut source = self.source(block, ahead.hand_out(self.cache, during[0]));
                few_scores(&mut source, queries.as_ptr(), scores);
            } else {
                let keys = panels.keys.as_ptr();
                integers.scores[rows - 1](queries.as_ptr(), keys, head_dim / CODES, seen, scores);
            }
        }
        self.cap(panels, &mut tile.scores[..rows]);
        let softmax = Rows {
            scores: &mut tile.scores[..rows],
            visible: &tile.visible[..rows],
            scales: self.factors(panels),
            states,
            acc,
            asking: ahead.hand_out(self.cache, during[1]),
        };
        let weights: &mut [Bytes] = bytemuck::cast_slice_mut(&mut tile.rows);
        let (weights, worth) = (&mut weights[..rows], &mut tile.worth[..rows]);
        // SAFETY: as above; all have `rows` rows, those of `acc` of `width`.
        unsafe {
            (integers.weigh)(softmax, &panels.value_scales, weights, worth);
            let (weights, worth, acc) = (weights.as_ptr(), worth.as_ptr(), acc.as_mut_ptr());
            if let Some((_, few_sums)) = few {
                let mut source = self.source(block, ahead.hand_out(self.cache, during[2]));
                few_sums(&mut source, weights, worth, acc, width);
            } else {
                let values = panels.values.as_ptr();
                integers.sums[rows - 1](weights, worth, values, seen, head_dim, acc, width);
            }
        }
    }
}
