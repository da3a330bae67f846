//! Log-probabilities in the form of the chat API and of the completions API.

use std::fmt::Write;

use lockstep_text::Tokenizer;
use lockstep_types::sampling::TokenLogprob;
use serde::{Serialize, Serializer};

use crate::generation::OutputToken;

/// OpenAI's value for a probability that is too small to report; JSON has no infinity.
const TINY: f32 = -9999.0;

/// `choices[].logprobs` of the chat API.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatToken>,
    refusal: Option<()>,
}

#[derive(Debug, Serialize)]
struct ChatToken {
    #[serde(flatten)]
    token: ChatAlternative,
    top_logprobs: Vec<ChatAlternative>,
}

#[derive(Debug, Serialize)]
struct ChatAlternative {
    token: String,
    logprob: f32,
    bytes: Option<Vec<u8>>,
}

impl ChatLogprobs {
    /// Adds the tokens that have log-probabilities.
    pub(crate) fn extend(&mut self, tokenizer: &Tokenizer, tokens: &[OutputToken]) {
        let logprobs = tokens.iter().filter_map(|token| token.logprob.as_ref());
        self.content.extend(logprobs.map(|logprob| {
            ChatToken {
                token: alternative(tokenizer, logprob.token_id, logprob.logprob.unwrap_or(0.0)),
                top_logprobs: logprob
                    .top
                    .iter()
                    .map(|(id, value)| alternative(tokenizer, *id, *value))
                    .collect(),
            }
        }));
    }
}

fn alternative(tokenizer: &Tokenizer, id: u32, logprob: f32) -> ChatAlternative {
    ChatAlternative {
        token: tokenizer.token_text(id).unwrap_or_default(),
        logprob: finite(logprob),
        bytes: tokenizer.token_bytes(id).map(<[u8]>::to_vec),
    }
}

/// `choices[].logprobs` of the completions API.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Alternatives>>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Adds a token whose text starts at `offset` (in characters).
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, logprob: &TokenLogprob, offset: usize) {
        self.tokens.push(token_name(tokenizer, logprob.token_id));
        self.token_logprobs.push(logprob.logprob.map(finite));
        self.text_offset.push(offset);
        self.top_logprobs.push(logprob.logprob.map(|own| {
            let mut top = Alternatives::default();
            for (id, value) in &logprob.top {
                // If two ids have the same text, the likelier id comes first and stays.
                top.add(token_name(tokenizer, *id), *value);
            }
            // The token itself is listed even if it is not among the likeliest.
            top.add(token_name(tokenizer, logprob.token_id), own);
            top
        }));
    }

    /// Adds output tokens; the output starts `base` characters into the choice's text.
    pub(crate) fn extend(&mut self, tokenizer: &Tokenizer, tokens: &[OutputToken], base: usize) {
        for token in tokens {
            if let Some(logprob) = &token.logprob {
                self.push(tokenizer, logprob, base + token.text_offset);
            }
        }
    }
}

/// Token names and their log-probabilities. They become a JSON object with the same
/// decimals as `token_logprobs`, since clients compare the two to find the greedy
/// choice.
#[derive(Debug, Default)]
struct Alternatives(Vec<(String, f32)>);

impl Alternatives {
    /// Adds a name unless it is present already.
    fn add(&mut self, name: String, logprob: f32) {
        if !self.0.iter().any(|(known, _)| *known == name) {
            self.0.push((name, finite(logprob)));
        }
    }
}

impl Serialize for Alternatives {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, logprob)| (name, logprob)))
    }
}

/// Returns a token's text. A token that is no text by itself gets OpenAI's form
/// `bytes:\xe2\x82`, so that different tokens have different names.
fn token_name(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |mut name, byte| {
            // Writing to a string cannot fail.
            let _ = write!(name, "\\x{byte:02x}");
            name
        }),
    }
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() {
        logprob.max(TINY)
    } else {
        TINY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alternative_has_the_decimals_of_its_token() {
        let own = -0.1_f32;
        let mut top = Alternatives::default();
        top.add("a".to_owned(), own);
        top.add("a".to_owned(), -3.0);
        top.add("b".to_owned(), f32::NEG_INFINITY);
        let logprobs = CompletionLogprobs {
            tokens: vec!["a".to_owned()],
            token_logprobs: vec![Some(own)],
            top_logprobs: vec![Some(top)],
            text_offset: vec![0],
        };
        assert_eq!(
            serde_json::to_string(&logprobs).expect("json"),
            r#"{"tokens":["a"],"token_logprobs":[-0.1],"top_logprobs":[{"a":-0.1,"b":-9999.0}],"text_offset":[0]}"#
        );
    }
}
