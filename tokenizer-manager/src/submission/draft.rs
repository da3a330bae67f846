//! What a surface hands over: a client's wishes, not yet checked.

use std::borrow::Cow;

/// How the fields that surfaces name differently are called, for error messages.
#[derive(Debug, Clone, Copy)]
pub struct Fields {
    /// The prompt's field.
    pub input: &'static str,
    /// The word for the prompt in sentences: "the messages", "your prompt".
    pub noun: &'static str,
    /// The length limit's field.
    pub max_tokens: &'static str,
    /// Object that holds the sampling parameters, with its dot; mostly empty.
    pub prefix: &'static str,
}

impl Fields {
    /// The full name of a sampling field.
    pub fn name(&self, field: &'static str) -> Cow<'static, str> {
        if self.prefix.is_empty() {
            Cow::Borrowed(field)
        } else {
            Cow::Owned(format!("{}{field}", self.prefix))
        }
    }
}

/// One prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// To be tokenized.
    Text {
        /// The text.
        text: String,
        /// Whether the tokenizer adds what a text begins with; a rendered
        /// template has it already.
        add_special_tokens: bool,
    },
    /// Tokens as they are.
    Ids(Vec<u32>),
}

/// How long the output may become, tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxTokens {
    /// What the client said; too much is an error.
    Exact(i64),
    /// A default; cut to what the context leaves.
    Default(u32),
    /// All that the context leaves.
    Rest,
}

/// Sampling parameters as given, `None` = left out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingDraft {
    /// 0 = greedy.
    pub temperature: Option<f64>,
    /// Nucleus.
    pub top_p: Option<f64>,
    /// -1 or 0 = all.
    pub top_k: Option<i64>,
    /// Relative cut.
    pub min_p: Option<f64>,
    /// Once per token seen.
    pub presence_penalty: Option<f64>,
    /// Per occurrence.
    pub frequency_penalty: Option<f64>,
    /// Factor.
    pub repetition_penalty: Option<f64>,
    /// Token id and bias, ids not yet checked.
    pub logit_bias: Vec<(u32, f64)>,
    /// Drawn when absent.
    pub seed: Option<u64>,
    /// Output tokens before any end.
    pub min_tokens: Option<i64>,
    /// Further tokens that end the output.
    pub stop_token_ids: Vec<u32>,
    /// The model's end tokens do not end the output.
    pub ignore_eos: bool,
    /// Name of the field that holds `min_tokens`.
    pub min_tokens_field: &'static str,
}

/// What is reported of token probabilities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogprobDraft {
    /// Of output tokens.
    pub output: bool,
    /// Alternatives per position.
    pub top: i64,
    /// Name of the field that holds `top`.
    pub top_field: Cow<'static, str>,
    /// Also of prompt tokens from here on.
    pub prompt_start: Option<u32>,
}

/// How much speculation a request takes, as given, `None` = left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpeculativeDraft {
    /// `false` = none.
    pub enabled: Option<bool>,
    /// Draft steps at the most.
    pub max_steps: Option<i64>,
}

/// A client's wishes.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Names for messages.
    pub fields: Fields,
    /// The client-visible id.
    pub trace_id: String,
    /// Prompts.
    pub inputs: Vec<Input>,
    /// Choices per prompt.
    pub n: i64,
    /// Length of the output.
    pub max_tokens: MaxTokens,
    /// How tokens are chosen.
    pub sampling: SamplingDraft,
    /// What is reported of them.
    pub logprobs: LogprobDraft,
    /// Stop strings.
    pub stops: Vec<String>,
    /// The stop string that matched is shown.
    pub include_stop: bool,
    /// Special tokens are not shown.
    pub skip_special_tokens: bool,
    /// Higher first.
    pub priority: Option<i32>,
    /// Milliseconds; `None` = the server's limit.
    pub timeout_ms: Option<u32>,
    /// How much speculation it takes.
    pub speculative: SpeculativeDraft,
}

impl Draft {
    /// A draft with every default.
    pub fn new(fields: Fields, trace_id: String, inputs: Vec<Input>) -> Self {
        Self {
            fields,
            trace_id,
            inputs,
            n: 1,
            max_tokens: MaxTokens::Rest,
            sampling: SamplingDraft {
                min_tokens_field: "min_tokens",
                ..SamplingDraft::default()
            },
            logprobs: LogprobDraft {
                top_field: Cow::Borrowed("top_logprobs"),
                ..LogprobDraft::default()
            },
            stops: Vec::new(),
            include_stop: false,
            skip_special_tokens: true,
            priority: None,
            timeout_ms: None,
            speculative: SpeculativeDraft::default(),
        }
    }
}
