//! The new tokens that the queries of a masked row see.

use lockstep_backend::Row;

/// The mask of one row, `words` words per query.
pub(super) struct TreeMask<'a> {
    masks: &'a [u64],
    words: usize,
    tokens: usize,
}

impl<'a> TreeMask<'a> {
    /// The mask of `row`, whose words begin at `mask`.
    pub(super) fn new(masks: &'a [u64], mask: u32, row: &Row) -> Self {
        let (words, tokens) = (row.mask_words(), row.q_len as usize);
        let start = mask as usize;
        Self {
            masks: &masks[start..start + words * tokens],
            words,
            tokens,
        }
    }

    /// New tokens that `query` sees, ascending. Bits past the last token are ignored.
    pub(super) fn tokens(&self, query: usize) -> impl Iterator<Item = usize> + use<'a> {
        let words = &self.masks[query * self.words..(query + 1) * self.words];
        let count = self.tokens;
        let bits = words.iter().enumerate().flat_map(|(index, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.checked_sub(1)?;
                Some(64 * index + bit)
            })
        });
        bits.take_while(move |&token| token < count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_tokens_in_order() {
        let row = Row {
            start: 0,
            q_len: 66,
            kv_len: 5,
            pages_start: 0,
            mask: Some(1),
        };
        let mut masks = vec![u64::MAX; 1 + 2 * 66];
        masks[1] = 1 | (1 << 63);
        masks[2] = 0b110;
        (masks[3], masks[4]) = (0, 0);
        let mask = TreeMask::new(&masks, 1, &row);
        assert_eq!(mask.tokens(0).collect::<Vec<_>>(), [0, 63, 65]);
        assert_eq!(mask.tokens(1).count(), 0);
        assert_eq!(mask.tokens(65).count(), 66);
    }
}
