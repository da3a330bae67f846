//! How a request's tokens are chosen and what is reported of them.

use std::fmt;

/// A value outside what its field may hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}`: {message}")]
pub struct InvalidField {
    /// The field's name, the same in the .proto file.
    pub field: &'static str,
    /// What is wrong and what would be right.
    pub message: String,
}

/// How one request's next token is chosen; all defaults are resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by it; 0 means greedy.
    pub temperature: f32,
    /// Nucleus: the smallest set whose probability reaches it, in (0, 1].
    pub top_p: f32,
    /// The `k` most likely tokens only; 0 means all.
    pub top_k: u32,
    /// Tokens less likely than `min_p` times the most likely one are dropped.
    pub min_p: f32,
    /// Subtracted once from the logit of every token already in the output.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the output.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output (CTRL, arXiv:1909.05858).
    pub repetition_penalty: f32,
    /// Added to single logits; sorted by token id.
    pub logit_bias: Vec<(u32, f32)>,
    /// Key of the counter-based generator; the counter is the output position.
    pub seed: u64,
    /// End and stop tokens are masked until so many tokens are out.
    pub min_new_tokens: u32,
    /// Tokens that end the request, sorted: the request's own and, unless
    /// `ignore_eos`, the model's.
    pub stop_token_ids: Vec<u32>,
    /// The model's own end tokens do not end the request.
    pub ignore_eos: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: 0,
            min_new_tokens: 0,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
        }
    }
}

impl SamplingParams {
    /// The most likely token, always.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }
    /// Whether any penalty looks at earlier tokens.
    pub fn has_penalties(&self) -> bool {
        self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || self.repetition_penalty != 1.0
    }
    /// Checks ranges and sorts the lists.
    ///
    /// # Errors
    /// [`InvalidField`] names the first field outside its range.
    pub fn validated(mut self, vocab_size: u32) -> Result<Self, InvalidField> {
        let range = |field, value: f32, low: f32, high: f32, open_low: bool| {
            let ok =
                value.is_finite() && value <= high && (value > low || (!open_low && value == low));
            let open = if open_low { "(" } else { "[" };
            ok.then_some(()).ok_or_else(|| InvalidField {
                field,
                message: format!("{value} is not in {open}{low}, {high}]"),
            })
        };
        range("temperature", self.temperature, 0.0, 100.0, false)?;
        range("top_p", self.top_p, 0.0, 1.0, true)?;
        range("min_p", self.min_p, 0.0, 1.0, false)?;
        range("presence_penalty", self.presence_penalty, -2.0, 2.0, false)?;
        range(
            "frequency_penalty",
            self.frequency_penalty,
            -2.0,
            2.0,
            false,
        )?;
        range(
            "repetition_penalty",
            self.repetition_penalty,
            0.0,
            2.0,
            true,
        )?;
        for (id, bias) in &self.logit_bias {
            range("logit_bias", *bias, -100.0, 100.0, false)?;
            token_in_vocabulary("logit_bias", *id, vocab_size)?;
        }
        for id in &self.stop_token_ids {
            token_in_vocabulary("stop_token_ids", *id, vocab_size)?;
        }
        self.logit_bias.sort_by_key(|(id, _)| *id);
        self.logit_bias.dedup_by_key(|(id, _)| *id);
        self.stop_token_ids.sort_unstable();
        self.stop_token_ids.dedup();
        Ok(self)
    }
}

/// Checks one token id against the vocabulary.
///
/// # Errors
/// [`InvalidField`] when the id is not a token of the model.
pub fn token_in_vocabulary(
    field: &'static str,
    id: u32,
    vocab_size: u32,
) -> Result<(), InvalidField> {
    if id < vocab_size {
        return Ok(());
    }
    Err(InvalidField {
        field,
        message: format!(
            "token id {id} is not in the vocabulary (0 to {})",
            vocab_size - 1
        ),
    })
}

/// What is reported about token probabilities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogprobParams {
    /// Report the log-probability of each output token.
    pub output: bool,
    /// Alternatives per reported position.
    pub top: u32,
    /// Report prompt positions from here on; `None` = none.
    pub prompt_start: Option<u32>,
}

/// Bytes that a log-probability and its token take, about, until they are sent: 60
/// to 80 as JSON, less before.
const LOGPROB_BYTES: usize = 80;
/// Bytes of log-probabilities at most that one request may ask for.
const MOST_LOGPROB_BYTES: usize = 64 << 20;
/// Tokens that are expected of an output that the context alone limits.
const EXPECTED_TOKENS: u32 = 4096;

/// More log-probabilities than there will ever be room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyLogprobs {
    bytes: usize,
    limit: usize,
}

impl std::error::Error for TooManyLogprobs {}

impl fmt::Display for TooManyLogprobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = match self.limit < 1 << 20 {
            true => ("KiB", 1 << 10),
            false => ("MiB", 1 << 20),
        };
        let (bytes, limit) = (self.bytes.div_ceil(size), self.limit / size);
        let of_memory = match self.limit < MOST_LOGPROB_BYTES {
            true => ", the most that --max-request-memory leaves to one request",
            false => "",
        };
        write!(
            f,
            "the answer could have {bytes} {unit} of log-probabilities, and the limit is \
             {limit} {unit}{of_memory}"
        )
    }
}

/// Checks the `bytes` of log-probabilities that all choices of a request may bring,
/// for which there could be `room` if nobody else had any.
///
/// # Errors
/// [`TooManyLogprobs`], however often it is asked for.
pub fn check_logprobs(bytes: usize, room: usize) -> Result<(), TooManyLogprobs> {
    let limit = room.min(MOST_LOGPROB_BYTES);
    match bytes <= limit {
        true => Ok(()),
        false => Err(TooManyLogprobs { bytes, limit }),
    }
}

impl LogprobParams {
    /// Bytes of log-probabilities for which a choice behind a prompt of `prompt`
    /// tokens needs room before it begins: of all `output` tokens where its client
    /// asked for so many, else of those that are expected. What comes beyond needs
    /// its room when it comes.
    pub fn reserve(&self, prompt: usize, output: u32, is_limited: bool) -> usize {
        let expected = match is_limited {
            true => output,
            false => output.min(EXPECTED_TOKENS),
        };
        self.bytes(prompt, expected)
    }

    /// Bytes at the most, about, that a choice of `output` tokens behind a prompt of
    /// `prompt` tokens holds of log-probabilities when it ends.
    fn bytes(&self, prompt: usize, output: u32) -> usize {
        let start = |start: u32| prompt.saturating_sub(start as usize);
        let output = if self.output { output as usize } else { 0 };
        let positions = output.saturating_add(self.prompt_start.map_or(0, start));
        positions.saturating_mul((self.top as usize + 1) * LOGPROB_BYTES)
    }
}

/// One token's log-probability (natural logarithm) and its alternatives,
/// most likely first. Log-probabilities are those of the model at temperature
/// 1, before penalties, bias and truncation, as OpenAI's and SGLang's are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenLogprob {
    /// The token at this position.
    pub token_id: u32,
    /// `None` for the first token of a prompt, which nothing precedes.
    pub logprob: Option<f32>,
    /// The most likely tokens here: (id, log-probability).
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprob {
    /// Bytes that this takes until it is sent, about.
    pub fn bytes(&self) -> usize {
        (self.top.len() + 1) * LOGPROB_BYTES
    }
}
