//! Queue of tokens whose text does not show yet. A token's id and log-probability are
//! never sent before its text, and never for the tokens of a stop string.

use std::collections::VecDeque;

use lockstep_types::sampling::TokenLogprob;

/// One output token.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputToken {
    /// Token id.
    pub id: u32,
    /// Start of the token's text, in characters from the start of the output.
    pub text_offset: usize,
    /// Log-probability, if requested.
    pub logprob: Option<TokenLogprob>,
}

/// Tokens not shown yet, in order, and the number of characters shown.
#[derive(Debug, Default)]
pub(super) struct Pending {
    tokens: VecDeque<OutputToken>,
    shown: usize,
    /// Bytes of the tokens' log-probabilities.
    logprob_bytes: usize,
}

impl Pending {
    /// Adds a token whose text starts at `text_offset` (in characters).
    pub(super) fn push(&mut self, id: u32, text_offset: usize, logprob: Option<TokenLogprob>) {
        self.logprob_bytes += logprob.as_ref().map_or(0, TokenLogprob::bytes);
        self.tokens.push_back(OutputToken {
            id,
            text_offset,
            logprob,
        });
    }

    /// Adds the token that ended the output, behind all text.
    pub(super) fn push_last(&mut self, id: u32, logprob: Option<TokenLogprob>) {
        self.push(id, self.shown, logprob);
    }

    /// Counts `text` as shown.
    pub(super) fn showed(&mut self, text: &str) {
        self.shown += text.chars().count();
    }

    /// Sets the number of characters that have shown or never will.
    pub(super) fn showed_up_to(&mut self, chars: usize) {
        self.shown = chars;
    }

    /// Takes the tokens whose text began to show.
    pub(super) fn take(&mut self) -> Vec<OutputToken> {
        let ready = self
            .tokens
            .iter()
            .take_while(|token| token.text_offset < self.shown)
            .count();
        let tokens: Vec<_> = self.tokens.drain(..ready).collect();
        let logprobs = tokens.iter().filter_map(|token| token.logprob.as_ref());
        self.logprob_bytes -= logprobs.map(TokenLogprob::bytes).sum::<usize>();
        tokens
    }

    /// Takes all tokens: the text is complete.
    pub(super) fn rest(&mut self) -> Vec<OutputToken> {
        self.logprob_bytes = 0;
        self.tokens.drain(..).collect()
    }

    /// Approximate bytes of the log-probabilities of tokens that do not show yet.
    pub(super) fn logprob_bytes(&self) -> usize {
        self.logprob_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_with_their_text() {
        let mut pending = Pending::default();
        pending.push(1, 0, None);
        pending.push(2, 3, None);
        assert!(pending.take().is_empty(), "nothing shown");
        pending.showed("äöü");
        let ids = |tokens: Vec<OutputToken>| tokens.iter().map(|t| t.id).collect::<Vec<_>>();
        assert_eq!(ids(pending.take()), [1], "three characters, six bytes");
        pending.showed("x");
        assert_eq!(ids(pending.take()), [2]);
        pending.push(3, 4, None);
        assert_eq!(
            ids(pending.rest()),
            [3],
            "an end token has no text of its own"
        );
    }
}
