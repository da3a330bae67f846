//! The tokens that a request has seen.

/// Counts of the tokens of one request, kept as it grows. Distinct tokens are sorted by id. A
/// request without penalties needs no counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenHistory {
    seen: Vec<Seen>,
}

/// One token that occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub token: u32,
    /// Number of occurrences in the output; 0 if the token is in the prompt only.
    pub outputs: u32,
    /// True if the token occurs in the prompt, so that it stays when its outputs are taken
    /// back.
    pub prompt: bool,
}

impl TokenHistory {
    /// Removes everything, keeping the memory.
    pub fn clear(&mut self) {
        self.seen.clear();
    }

    /// Takes in the prompt.
    pub fn reset(&mut self, prompt: &[u32]) {
        self.seen.clear();
        let new = prompt.iter().map(|token| Seen {
            token: *token,
            outputs: 0,
            prompt: true,
        });
        self.seen.extend(new);
        self.seen.sort_unstable_by_key(|seen| seen.token);
        self.seen.dedup_by_key(|seen| seen.token);
    }

    /// Takes in one output token.
    pub fn push(&mut self, token: u32) {
        match self.find(token) {
            Ok(at) => self.seen[at].outputs += 1,
            Err(at) => self.seen.insert(
                at,
                Seen {
                    token,
                    outputs: 1,
                    prompt: false,
                },
            ),
        }
    }

    /// Takes back one output token, as if it had never been pushed. A token
    /// that is not in the output changes nothing.
    pub fn pop(&mut self, token: u32) {
        if let Ok(at) = self.find(token) {
            let seen = &mut self.seen[at];
            seen.outputs = seen.outputs.saturating_sub(1);
            if seen.outputs == 0 && !seen.prompt {
                self.seen.remove(at);
            }
        }
    }

    /// Returns the distinct tokens.
    pub(crate) fn seen(&self) -> &[Seen] {
        &self.seen
    }

    fn find(&self, token: u32) -> Result<usize, usize> {
        self.seen.binary_search_by_key(&token, |seen| seen.token)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts_prompt_and_output() {
        let mut history = TokenHistory::default();
        history.reset(&[5, 3, 5]);
        history.push(3);
        history.push(9);
        history.push(3);
        let seen: Vec<_> = history
            .seen()
            .iter()
            .map(|s| (s.token, s.outputs))
            .collect();
        assert_eq!(seen, [(3, 2), (5, 0), (9, 1)]);
        history.reset(&[1]);
        assert_eq!(history.seen().len(), 1);
    }

    proptest! {
        /// Pushing tokens and taking them back, in any order, leaves the counts as they were.
        #[test]
        fn pop_undoes_push(
            prompt in prop::collection::vec(0u32..8, 0..6),
            output in prop::collection::vec(0u32..8, 0..6),
            (tentative, undone) in prop::collection::vec(0u32..8, 0..6)
                .prop_flat_map(|list| (Just(list.clone()), Just(list).prop_shuffle())),
            absent in 8u32..10,
        ) {
            let mut history = TokenHistory::default();
            history.reset(&prompt);
            output.iter().for_each(|token| history.push(*token));
            let before = history.clone();
            tentative.iter().for_each(|token| history.push(*token));
            prop_assert_eq!(history == before, tentative.is_empty());
            undone.iter().for_each(|token| history.pop(*token));
            history.pop(absent);
            prop_assert_eq!(history, before);
        }
    }
}
