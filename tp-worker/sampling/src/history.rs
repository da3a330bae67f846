//! Which tokens a request has seen.

/// Counts of the tokens of one request, kept as it grows. Distinct tokens
/// are held sorted by id; a request without penalties needs none of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenHistory {
    seen: Vec<Seen>,
}

/// One token that occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub token: u32,
    /// Occurrences in the output; 0 = in the prompt only.
    pub outputs: u32,
}

impl TokenHistory {
    /// Forgets everything, keeping the memory.
    pub fn clear(&mut self) {
        self.seen.clear();
    }

    /// Takes in the prompt.
    pub fn reset(&mut self, prompt: &[u32]) {
        self.seen.clear();
        let new = prompt.iter().map(|token| Seen {
            token: *token,
            outputs: 0,
        });
        self.seen.extend(new);
        self.seen.sort_unstable_by_key(|seen| seen.token);
        self.seen.dedup_by_key(|seen| seen.token);
    }

    /// Takes in one output token.
    pub fn push(&mut self, token: u32) {
        match self.seen.binary_search_by_key(&token, |seen| seen.token) {
            Ok(at) => self.seen[at].outputs += 1,
            Err(at) => self.seen.insert(at, Seen { token, outputs: 1 }),
        }
    }

    /// The distinct tokens.
    pub(crate) fn seen(&self) -> &[Seen] {
        &self.seen
    }
}

#[cfg(test)]
mod tests {
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
}
