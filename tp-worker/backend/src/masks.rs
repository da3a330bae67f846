//! Masks of rows of logits, for devices that choose tokens of constrained requests.

use std::ops::Range;

/// Allowed tokens of some rows of wanted logits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Masks<'a> {
    /// Number of each masked row among the wanted tokens, ascending.
    pub rows: &'a [u32],
    /// For each of these rows a bit for each token, in as many words as the vocabulary takes.
    pub bits: &'a [u32],
}

impl Masks<'_> {
    /// Returns the masks of those rows that are in `block`.
    pub fn within(&self, block: Range<usize>) -> Self {
        let place = |end: usize| self.rows.partition_point(|row| (*row as usize) < end);
        let (start, end) = (place(block.start), place(block.end).max(place(block.start)));
        let words = self.bits.len().checked_div(self.rows.len()).unwrap_or(0);
        Self {
            rows: &self.rows[start..end],
            bits: &self.bits[start * words..end * words],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_the_masks_of_its_rows() {
        let masks = Masks {
            rows: &[1, 4, 5],
            bits: &[10, 11, 40, 41, 50, 51],
        };
        for (block, rows, bits) in [
            (0..6, &[1, 4, 5][..], &[10, 11, 40, 41, 50, 51][..]),
            (0..4, &[1], &[10, 11]),
            (2..5, &[4], &[40, 41]),
            (5..9, &[5], &[50, 51]),
            (2..4, &[], &[]),
        ] {
            let found = masks.within(block.clone());
            assert_eq!((found.rows, found.bits), (rows, bits), "{block:?}");
        }
        assert!(Masks::default().within(0..3).bits.is_empty());
    }
}
