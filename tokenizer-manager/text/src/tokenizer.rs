//! Conversion of text to token ids and back.

mod bound;
mod config;
pub(crate) mod decoder;
mod error;
#[cfg(test)]
pub(crate) mod samples;
mod stream;
#[cfg(test)]
mod tests;
pub(crate) mod vocabulary;

use std::path::Path;
use std::sync::Arc;

use config::Frame;
pub use config::{NamedTemplate, SpecialTokens, TokenizerConfig};
use decoder::Decoder;
pub use error::{EncodeError, TokenizerError};
use lockstep_files::LARGEST_TOKENIZER;
use serde::Deserialize;
use serde_json::Value;
use stream::{Ids, Stream};
use tokenizers::{AddedToken, Encoding, Token, Tokenizer as HfTokenizer};
use vocabulary::Vocabulary;

/// A Hugging Face tokenizer (`tokenizer.json`). Cloning copies a pointer. All methods may be
/// called from any number of threads at once.
///
/// Encoding is done by the `tokenizers` crate. Decoding is done here, from a table of each
/// token's bytes. It gives the text of `tokenizers::Tokenizer::decode` for every sequence of
/// valid UTF-8, and always for byte-level tokenizers. Byte-fallback tokenizers differ on bytes
/// that are not UTF-8. There `tokenizers` replaces the whole run of byte tokens, its valid
/// characters included. Here only the invalid bytes are replaced (one U+FFFD each), because text
/// that was streamed cannot be taken back.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tokenizer: HfTokenizer,
    vocabulary: Vocabulary,
    decoder: Decoder,
    special_tokens: SpecialTokens,
    stream: Option<Stream>,
    /// Tokens before and after a text with special tokens.
    frame: [Vec<u32>; 2],
    max_bytes_per_token: Option<usize>,
}

/// Texts longer than this, in bytes, are tokenized word by word.
const LONG: usize = 64 << 10;

/// Maximum bytes of a text if the tokenizer has steps that cannot be done word by word.
const LONGEST_WHOLE: usize = 1 << 20;

/// The parts of `tokenizer.json` that are read here; the vocabulary is skipped.
#[derive(Deserialize)]
struct Fields {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    model: ModelFields,
}

#[derive(Deserialize)]
struct ModelFields {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    byte_fallback: bool,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

impl Tokenizer {
    /// Loads `tokenizer.json` of a model directory, with `tokenizer_config.json` if there is one:
    /// its added tokens join the vocabulary and its named tokens become special, as in
    /// transformers. Truncation and padding settings in the file are dropped.
    ///
    /// # Errors
    /// [`TokenizerError`] naming the file.
    pub fn load(dir: &Path) -> Result<Self, TokenizerError> {
        let path = lockstep_files::path_of(dir, "tokenizer.json");
        let bytes = lockstep_files::read(dir, "tokenizer.json", LARGEST_TOKENIZER);
        let bytes = bytes.map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => TokenizerError::Missing { path: path.clone() },
            _ => TokenizerError::Read {
                path: path.clone(),
                source,
            },
        })?;
        Self::from_json(&bytes, TokenizerConfig::load(dir)?, &path)
    }

    /// Builds a tokenizer from the contents of `tokenizer.json`. `path` names it in errors.
    ///
    /// # Errors
    /// [`TokenizerError::Parse`] or [`TokenizerError::Decoder`].
    pub fn from_json(
        json: &[u8],
        config: TokenizerConfig,
        path: &Path,
    ) -> Result<Self, TokenizerError> {
        let invalid = |message: String| TokenizerError::Parse {
            path: path.to_owned(),
            message,
        };
        let fields: Fields = serde_json::from_slice(json).map_err(|e| invalid(e.to_string()))?;
        let mut tokenizer = HfTokenizer::from_bytes(json).map_err(|e| invalid(e.to_string()))?;
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|e| invalid(e.to_string()))?;
        add_tokens(&mut tokenizer, &config).map_err(|e| invalid(e.to_string()))?;
        let decoder = Decoder::new(&fields.decoder)?;
        let vocabulary = Vocabulary::new(&tokenizer, &decoder).map_err(invalid)?;
        let id = |role: &str| {
            config
                .special_tokens
                .get(role)
                .and_then(|token| tokenizer.token_to_id(token))
        };
        let frame = match config.frame {
            Some(Frame { bos, eos }) => [("bos_token", bos), ("eos_token", eos)]
                .map(|(role, wanted)| id(role).filter(|_| wanted).into_iter().collect()),
            None => surroundings(&tokenizer).map_err(|e| invalid(e.to_string()))?,
        };
        let stream = Stream::new(&fields, &tokenizer);
        let max_bytes_per_token = bound::max_bytes_per_token(&fields, &tokenizer);
        let special_tokens = config.special_tokens;
        let inner = Inner {
            tokenizer,
            vocabulary,
            decoder,
            special_tokens,
            stream,
            frame,
            max_bytes_per_token,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Tokenizes a text. `add_special_tokens` adds the tokens that the model expects around a
    /// text, mostly a BOS token. A prompt rendered by a chat template has these already. Special
    /// tokens written in the text are recognised.
    ///
    /// The time is about linear in the text; the caller bounds its length.
    ///
    /// # Errors
    /// [`EncodeError::Failed`].
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EncodeError> {
        self.encode_bounded(text, add_special_tokens, usize::MAX)
    }

    /// Tokenizes a text of at most `max_tokens` tokens, special tokens included. A text that
    /// cannot fit because of its length alone is refused without being tokenized. Tokenizing a
    /// long text stops where it has too many tokens, so the cost is bounded by `max_tokens`, not
    /// by the length.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] or [`EncodeError::Failed`].
    pub fn encode_bounded(
        &self,
        text: &str,
        add_special_tokens: bool,
        max_tokens: usize,
    ) -> Result<Vec<u32>, EncodeError> {
        let too_long = |at_least, exact| EncodeError::TooLong {
            at_least,
            limit: max_tokens,
            exact,
        };
        let at_least = self.min_tokens(text.len());
        if at_least > max_tokens {
            return Err(too_long(at_least, false));
        }
        let inner = &*self.inner;
        let frame: [&[u32]; 2] = match &inner.frame {
            [before, after] if add_special_tokens => [before, after],
            _ => [&[], &[]],
        };
        let mut ids = Ids::new(frame[0], max_tokens);
        match &inner.stream {
            _ if text.len() <= LONG => ids.ids.extend(self.encode_whole(text)?),
            Some(stream) => stream.encode(&inner.tokenizer, text, &mut ids)?,
            None if text.len() <= LONGEST_WHOLE => ids.ids.extend(self.encode_whole(text)?),
            None => {
                return Err(EncodeError::Failed {
                    message: format!(
                        "it has {} bytes, and this model's tokenizer takes at most {LONGEST_WHOLE}",
                        text.len()
                    ),
                });
            }
        }
        ids.ids.extend(frame[1]);
        if ids.ids.len() > max_tokens {
            return Err(too_long(ids.ids.len(), true));
        }
        Ok(ids.ids)
    }

    /// Returns the ids of a text of moderate length, without the tokens around it.
    fn encode_whole(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        let failed = |message: String| EncodeError::Failed { message };
        // `tokenizers` panics if a pattern gives up; nothing it computed is kept.
        let encode = || self.inner.tokenizer.encode_fast(text, false);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(encode)) {
            Ok(Ok(encoding)) => Ok(encoding.get_ids().to_vec()),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed("the tokenizer's pattern gives up on it".into())),
        }
    }

    /// Returns the minimum number of tokens that a text of `bytes` bytes can have: its length
    /// divided by the most bytes that one token covers. Zero if this tokenizer has no such bound,
    /// because it may drop or merge any amount of text.
    #[must_use]
    pub fn min_tokens(&self, bytes: usize) -> usize {
        self.inner
            .max_bytes_per_token
            .map_or(0, |most| bytes.div_ceil(most.max(1)))
    }

    /// Returns the bytes that a token contributes to a text, unless it is the first token. They
    /// may not be UTF-8 on their own. A space mark is a space, `<0x0A>` is a newline. `None` for
    /// an id without a token.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let vocabulary = &self.inner.vocabulary;
        vocabulary.contains(id).then(|| vocabulary.bytes(id))
    }

    /// Returns [`Self::token_bytes`] as text, with replacement characters if the token is part of
    /// a character.
    #[must_use]
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.token_bytes(id)
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// Returns a token in the vocabulary's spelling, such as `Ġthe` or `▁the`.
    #[must_use]
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.tokenizer.id_to_token(id)
    }

    /// Returns the id of a token in the vocabulary's spelling.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// Returns true if `skip_special_tokens` leaves this token out.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.vocabulary.is_special(id)
    }

    /// Number of tokens, added ones included. A model's logits may be wider, padded to a round
    /// number.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.vocabulary.tokens()
    }

    /// Largest token id plus one.
    #[must_use]
    pub fn id_limit(&self) -> usize {
        self.inner.vocabulary.id_limit()
    }

    /// Returns the special tokens that have a role.
    #[must_use]
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.inner.special_tokens
    }

    /// Returns the id of the token with a role such as `bos_token` or `eos_token`.
    #[must_use]
    pub fn special_token_id(&self, role: &str) -> Option<u32> {
        self.token_to_id(self.special_tokens().get(role)?)
    }

    pub(crate) fn vocabulary(&self) -> &Vocabulary {
        &self.inner.vocabulary
    }

    pub(crate) fn decoder(&self) -> &Decoder {
        &self.inner.decoder
    }

    /// Returns the bytes of a token that starts a text.
    pub(crate) fn first_piece(&self, id: u32) -> Vec<u8> {
        self.id_to_token(id)
            .map(|token| self.inner.decoder.piece(&token, true))
            .unwrap_or_default()
    }
}

/// Returns the tokens that the tokenizer's post-processor puts before and after a text.
fn surroundings(tokenizer: &HfTokenizer) -> tokenizers::Result<[Vec<u32>; 2]> {
    // No token has this id.
    const TEXT: u32 = u32::MAX;
    let text = Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0);
    let framed = tokenizer.post_process(text, None, true)?;
    let mut sides = framed
        .get_ids()
        .split(|&id| id == TEXT)
        .map(<[u32]>::to_vec);
    Ok([(); 2].map(|()| sides.next().unwrap_or_default()))
}

/// Adds the tokens that only `tokenizer_config.json` knows, and marks tokens with a role as
/// special. A role whose token is not in the vocabulary gets no id: the model cannot have been
/// trained with that token.
fn add_tokens(tokenizer: &mut HfTokenizer, config: &TokenizerConfig) -> tokenizers::Result<()> {
    let known = tokenizer.get_added_tokens_decoder();
    let changed = config
        .added_tokens
        .iter()
        .filter(|token| !known.values().any(|other| other == *token));
    tokenizer.add_tokens(changed.cloned())?;
    let special: Vec<AddedToken> = config
        .special_tokens
        .contents()
        .filter(|token| tokenizer.token_to_id(token).is_some())
        .filter(|token| !tokenizer.get_added_vocabulary().is_special_token(token))
        .map(|token| AddedToken::from(token, true))
        .collect();
    tokenizer.add_special_tokens(special)?;
    Ok(())
}
