//! One corpus, sorted by the tokens before each place.

use std::{cmp::Ordering, ops::RangeInclusive};

use crate::CorpusIndex;

/// A text and its places. The places are sorted by the tokens before them, the nearest token
/// first, so that places with equal ends stand together.
#[derive(Debug)]
pub struct Index {
    tokens: Vec<u32>,
    /// Every place that has a continuation. Among places with equal ends the later ones come
    /// first.
    places: Vec<u32>,
}

/// Number of tokens before a place by which places are sorted. No option asks for longer
/// matches.
const SORTED: usize = 64;

impl CorpusIndex for Index {
    /// Sorts a text's places. It takes 8 bytes per token.
    fn new(tokens: Vec<u32>) -> Self {
        let mut places: Vec<u32> = (1..tokens.len() as u32).collect();
        let before = |place: u32| tokens[..place as usize].iter().rev().take(SORTED);
        places.sort_unstable_by(|a, b| before(*a).cmp(before(*b)).then(b.cmp(a)));
        Self { tokens, places }
    }

    fn tokens(&self) -> usize {
        self.tokens.len()
    }
}

impl Index {
    /// Returns the places that end as `text` does for as many tokens as possible, and the
    /// number of these tokens. `None` if that number is not within `lengths`.
    pub(super) fn find(
        &self,
        text: &[u32],
        lengths: RangeInclusive<usize>,
    ) -> Option<(&[u32], usize)> {
        let (mut places, mut len) = (&self.places[..], 0);
        for token in text.iter().rev().take(SORTED.min(*lengths.end())) {
            let at = |place: &u32| {
                let before = (*place as usize).checked_sub(len + 1);
                before.map_or(Ordering::Less, |before| self.tokens[before].cmp(token))
            };
            let from = places.partition_point(|place| at(place).is_lt());
            let to = places.partition_point(|place| at(place).is_le());
            if from == to {
                break;
            }
            places = &places[from..to];
            len += 1;
        }
        lengths.contains(&len).then_some((places, len))
    }

    /// Returns the tokens from a place on.
    pub(super) fn after(&self, place: u32) -> &[u32] {
        &self.tokens[place as usize..]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_text_ends_like_nothing() {
        let index = Index::new(vec![1, 2, 1, 2]);
        assert_eq!(index.find(&[], 1..=4), None);
        assert_eq!(index.find(&[3], 1..=4), None);
        assert_eq!(index.find(&[2], 2..=4), None);
        // The last token has no continuation.
        assert_eq!(index.find(&[1, 2], 1..=4), Some((&[2][..], 2)));
        assert_eq!(index.after(2), [1, 2]);
    }

    proptest! {
        #[test]
        fn ends_are_the_naive_ones(
            tokens in prop::collection::vec(0u32..3, 2..60),
            text in prop::collection::vec(0u32..3, 0..10),
            longest in 1usize..8,
            shortest in 1usize..4,
        ) {
            let index = Index::new(tokens.clone());
            let end = |place: &usize| {
                let pairs = tokens[..*place].iter().rev().zip(text.iter().rev());
                pairs.take(longest).take_while(|(a, b)| a == b).count()
            };
            let best = (1..tokens.len()).map(|place| end(&place)).max().unwrap_or(0);
            let found = index.find(&text, shortest..=longest);
            if best < shortest || shortest > longest {
                prop_assert_eq!(found, None);
            } else {
                let mut places: Vec<usize> = (1..tokens.len()).filter(|p| end(p) == best).collect();
                places.reverse();
                let (found, len) = found.expect("there is one");
                prop_assert_eq!(len, best);
                let mut found: Vec<usize> = found.iter().map(|p| *p as usize).collect();
                found.sort_unstable();
                places.reverse();
                prop_assert_eq!(found, places);
            }
        }
    }
}
