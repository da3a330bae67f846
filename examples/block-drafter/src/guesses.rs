//! The block of a request from round to round.

/// Input and output of a request's last pass.
///
/// A pass runs over the last known token, at position `p - 1`, and over guesses for the
/// positions from `p` on. The model's output after these tokens is the block. The block
/// starts at position `p` too, and is one token longer than the guesses.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    /// The position `p`.
    position: usize,
    /// The guesses that the pass ran over.
    guesses: Vec<u32>,
    /// The output of the pass.
    block: Vec<u32>,
}

impl Guesses {
    /// Forgets everything, because the slot gets another request.
    pub(crate) fn clear(&mut self) {
        self.guesses.clear();
        self.block.clear();
    }

    /// Returns `count` guesses for the tokens after `text`: first the part of the last
    /// block that lies beyond `text`, then the block's last token again and again.
    pub(crate) fn guess(&mut self, text: &[u32], count: usize) -> &[u32] {
        let behind = text.len().saturating_sub(self.position);
        let rest = self.block.iter().skip(behind).copied();
        let filler = self.block.last().or(text.last()).copied().unwrap_or(0);
        self.guesses.clear();
        self.guesses
            .extend(rest.chain(std::iter::repeat(filler)).take(count));
        self.position = text.len();
        &self.guesses
    }

    /// Stores the model's output after the last known token and after each guess.
    pub(crate) fn said(&mut self, block: &[u32]) {
        self.block.clear();
        self.block.extend_from_slice(block);
    }

    /// Returns the number of guesses that equal the tokens of `text`, up to the first
    /// wrong guess. The draft model has keys and values for these tokens. Call this
    /// once per pass.
    pub(crate) fn right(&mut self, text: &[u32]) -> usize {
        let known = text.get(self.position..).unwrap_or(&[]);
        let pairs = self.guesses.iter().zip(known);
        let right = pairs.take_while(|(guess, token)| guess == token).count();
        self.guesses.clear();
        right
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_block_moves_on_with_the_text() {
        let mut state = Guesses::default();
        assert_eq!(state.guess(&[1, 2], 3), [2, 2, 2]);
        state.said(&[3, 4, 5, 6]);
        // 3 was drafted and accepted, and 9 came after 3.
        let text = [1, 2, 3, 9];
        assert_eq!(state.right(&text), 0);
        assert_eq!(state.guess(&text, 3), [5, 6, 6]);
        state.said(&[5, 6, 7, 8]);
        assert_eq!(state.right(&[1, 2, 3, 9, 5, 6, 8]), 2);
        state.clear();
        assert_eq!(state.guess(&[4], 2), [4, 4]);
    }

    proptest! {
        /// The model here looks at the last token alone. A block is right one token
        /// further than its guesses were. A right part stays right while the text moves
        /// on.
        #[test]
        fn a_block_is_right_one_token_further_than_its_guesses(
            next in prop::collection::vec(0u32..8, 8),
            first in 0u32..8,
            count in 1usize..6,
        ) {
            let next = |token: u32| next[token as usize];
            let (mut state, mut text, mut before) = (Guesses::default(), vec![first], 0);
            for _ in 0..10 {
                let last = *text.last().expect("never empty");
                let guesses = state.guess(&text, count).to_vec();
                let block: Vec<u32> = [last].iter().chain(&guesses).map(|t| next(*t)).collect();
                state.said(&block);
                prop_assert_eq!(block[0], next(last));
                let own = std::iter::successors(Some(next(last)), |token| Some(next(*token)));
                let own: Vec<u32> = own.take(block.len()).collect();
                let right = guesses.iter().zip(&own).take_while(|(a, b)| a == b).count();
                prop_assert_eq!(&block[..=right], &own[..=right]);
                prop_assert!(right >= before);
                before = right;
                text.push(next(last));
                let expected = usize::from(guesses[0] == next(last));
                prop_assert_eq!(state.right(&text), expected);
            }
        }
    }
}
