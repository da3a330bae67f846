//! Sampling of a request's tokens, and the log-probabilities that are reported.

use std::fmt;

use lockstep_adaptive::Digest;

/// A value outside its field's range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}`: {message}")]
pub struct InvalidField {
    /// Name of the field, the same in the .proto file.
    pub field: &'static str,
    /// The fault and the valid values.
    pub message: String,
}

/// Parameters by which one request's next token is chosen; all defaults are resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divisor of the logits; 0 means greedy.
    pub temperature: f32,
    /// Nucleus: only the smallest set of tokens whose probability reaches `top_p`, in (0, 1].
    pub top_p: f32,
    /// Only the `k` most likely tokens; 0 means all.
    pub top_k: u32,
    /// Tokens less likely than `min_p` times the most likely token are dropped.
    pub min_p: f32,
    /// Subtracted once from the logit of every token already in the output.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token once per occurrence in the output.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output (CTRL,
    /// arXiv:1909.05858).
    pub repetition_penalty: f32,
    /// Added to single logits; sorted by token id.
    pub logit_bias: Vec<(u32, f32)>,
    /// Key of the counter-based generator; the counter is the output position.
    pub seed: u64,
    /// Number of output tokens before which end and stop tokens are masked.
    pub min_new_tokens: u32,
    /// Tokens that end the request, sorted: the request's own and, unless
    /// `ignore_eos`, the model's.
    pub stop_token_ids: Vec<u32>,
    /// True if the model's own end tokens do not end the request.
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
    /// Returns the parameters that always choose the most likely token.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Returns true if any penalty looks at earlier tokens.
    pub fn has_penalties(&self) -> bool {
        self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || self.repetition_penalty != 1.0
    }

    /// Returns true if no end or stop token may come at output position `position`.
    pub fn masks_stops(&self, position: u64) -> bool {
        position < u64::from(self.min_new_tokens) && !self.stop_token_ids.is_empty()
    }

    /// Returns true if the token at output position `position` needs more than logits and
    /// temperature, top-k, top-p and min-p: a bias, a penalty, or masked end tokens. Then the
    /// host chooses it, on every device. The struct is taken apart without `..`, so that a new
    /// field does not compile until it is decided here.
    pub fn adjusts_logits(&self, position: u64) -> bool {
        let Self {
            temperature: _,
            top_p: _,
            top_k: _,
            min_p: _,
            presence_penalty: _,
            frequency_penalty: _,
            repetition_penalty: _,
            logit_bias,
            seed: _,
            min_new_tokens: _,
            stop_token_ids: _,
            ignore_eos: _,
        } = self;
        !logit_bias.is_empty() || self.has_penalties() || self.masks_stops(position)
    }

    /// Folds all fields into a digest by which ranks are compared.
    pub(crate) fn digest(&self, digest: &mut Digest) {
        let Self {
            temperature,
            top_p,
            top_k,
            min_p,
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            logit_bias,
            seed,
            min_new_tokens,
            stop_token_ids,
            ignore_eos,
        } = self;
        for value in [
            temperature,
            top_p,
            min_p,
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
        ] {
            digest.word(u64::from(value.to_bits()));
        }
        digest.word(u64::from(*top_k));
        digest.word(logit_bias.len() as u64);
        for (token, bias) in logit_bias {
            digest.word(u64::from(*token) << 32 | u64::from(bias.to_bits()));
        }
        digest.word(*seed);
        digest.word(u64::from(*min_new_tokens));
        digest.list(stop_token_ids);
        digest.word(u64::from(*ignore_eos));
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

/// Log-probabilities that a request asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogprobParams {
    /// True to report the log-probability of each output token.
    pub output: bool,
    /// Alternatives per reported position.
    pub top: u32,
    /// First prompt position to report; `None` = none is reported.
    pub prompt_start: Option<u32>,
}

/// Approximate bytes of a token's log-probability until it is sent: 60 to 80 as JSON, fewer
/// before.
const LOGPROB_BYTES: usize = 80;
/// Most bytes of log-probabilities that one request may ask for.
const MOST_LOGPROB_BYTES: usize = 64 << 20;
/// Expected tokens of an output that only the context limits.
const EXPECTED_TOKENS: u32 = 4096;

/// Error of a request for more log-probabilities than there is ever room for.
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

/// Checks the `bytes` of log-probabilities that all choices of a request may bring against the
/// limit. `room` is the room that there is when no other request holds any.
///
/// # Errors
/// [`TooManyLogprobs`], at every attempt of the same request.
pub fn check_logprobs(bytes: usize, room: usize) -> Result<(), TooManyLogprobs> {
    let limit = room.min(MOST_LOGPROB_BYTES);
    match bytes <= limit {
        true => Ok(()),
        false => Err(TooManyLogprobs { bytes, limit }),
    }
}

impl LogprobParams {
    /// Folds all fields into a digest by which ranks are compared.
    pub(crate) fn digest(&self, digest: &mut Digest) {
        let Self {
            output,
            top,
            prompt_start,
        } = self;
        digest.word(u64::from(*output) << 32 | u64::from(*top));
        digest.option(*prompt_start);
    }

    /// Returns the bytes of log-probabilities that a choice reserves before it begins, behind a
    /// prompt of `prompt` tokens. If the client limited the output (`is_limited`), it reserves
    /// for all `output` tokens, else for the expected ones. Log-probabilities beyond that
    /// reserve their room when they come.
    pub fn reserve(&self, prompt: usize, output: u32, is_limited: bool) -> usize {
        let expected = match is_limited {
            true => output,
            false => output.min(EXPECTED_TOKENS),
        };
        self.bytes(prompt, expected)
    }

    /// Returns the approximate bytes of log-probabilities that a choice holds at its end, with
    /// `output` tokens behind a prompt of `prompt` tokens.
    fn bytes(&self, prompt: usize, output: u32) -> usize {
        let start = |start: u32| prompt.saturating_sub(start as usize);
        let output = if self.output { output as usize } else { 0 };
        let positions = output.saturating_add(self.prompt_start.map_or(0, start));
        positions.saturating_mul((self.top as usize + 1) * LOGPROB_BYTES)
    }
}

/// One token's log-probability (natural logarithm) and its alternatives, most likely first.
/// Like OpenAI's and SGLang's, log-probabilities are the model's at temperature 1, before
/// penalties, bias and truncation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenLogprob {
    /// The token at this position.
    pub token_id: u32,
    /// `None` for the first token of a prompt: no token precedes it.
    pub logprob: Option<f32>,
    /// The most likely tokens here: (id, log-probability).
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprob {
    /// Returns the approximate bytes that the entry takes until it is sent.
    pub fn bytes(&self) -> usize {
        (self.top.len() + 1) * LOGPROB_BYTES
    }
}
