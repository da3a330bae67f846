//! A generation request as an API received it, before any check.

use std::borrow::Cow;

use super::SamplingSpec;

/// The names of fields that differ between APIs, for error messages.
#[derive(Debug, Clone, Copy)]
pub struct FieldNames {
    /// The field that holds the prompt, such as `prompt` or `messages`.
    pub input: &'static str,
    /// The word for the prompt in sentences: "the messages", "your prompt".
    pub noun: &'static str,
    /// The field that limits the output's length.
    pub max_tokens: &'static str,
    /// The object around the sampling parameters with its dot, such as
    /// `sampling_params.`; empty where they stand at the top level.
    pub prefix: &'static str,
}

impl FieldNames {
    /// The full name of a sampling field.
    pub fn name(&self, field: &'static str) -> Cow<'static, str> {
        if self.prefix.is_empty() {
            Cow::Borrowed(field)
        } else {
            Cow::Owned(format!("{}{field}", self.prefix))
        }
    }
}

/// One prompt, as text or as token ids.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A text to tokenize.
    Text {
        /// The prompt, any length.
        text: String,
        /// Whether the tokenizer adds its special tokens, such as the one that
        /// begins a sequence; a rendered chat template has them already.
        add_special_tokens: bool,
    },
    /// Token ids, used as they are.
    Ids(Vec<u32>),
}

/// The limit of the output's length, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxTokens {
    /// The client's own limit; an error where the context leaves less.
    Exact(i64),
    /// The API's default; reduced to what the context leaves.
    Default(u32),
    /// Whatever the context leaves.
    Rest,
}

/// Which log-probabilities are reported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogprobSpec {
    /// Those of output tokens.
    pub output: bool,
    /// Most likely tokens per position.
    pub top: i64,
    /// The field that holds `top`.
    pub top_field: Cow<'static, str>,
    /// Those of prompt tokens from this position on; `None` = of no prompt token.
    pub prompt_start: Option<u32>,
}

/// A request's limits on speculative decoding; `None` = not given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpeculativeSpec {
    /// `false` turns it off for this request.
    pub enabled: Option<bool>,
    /// GenerateSpec steps at the most.
    pub max_steps: Option<i64>,
}

/// One generation request, unchecked.
#[derive(Debug, Clone)]
pub struct GenerateSpec {
    /// Field names for error messages.
    pub fields: FieldNames,
    /// The request id that clients and logs see.
    pub trace_id: String,
    /// The prompts; each gets `n` choices.
    pub inputs: Vec<Input>,
    /// Choices per prompt.
    pub n: i64,
    /// The number of a client request that this is a part of; `None` = it is whole.
    pub parent: Option<u64>,
    /// The limit of the output's length.
    pub max_tokens: MaxTokens,
    /// Sampling parameters.
    pub sampling: SamplingSpec,
    /// Which log-probabilities are reported.
    pub logprobs: LogprobSpec,
    /// Strings that end the output.
    pub stops: Vec<String>,
    /// Whether the output includes the stop string that matched.
    pub include_stop: bool,
    /// Whether special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// Higher runs first; `None` = 0.
    pub priority: Option<i32>,
    /// Time limit, milliseconds; `None` = the server's.
    pub timeout_ms: Option<u32>,
    /// Its limits on speculative decoding.
    pub speculative: SpeculativeSpec,
    /// The DP rank that it runs in; `None` = the scheduler chooses.
    pub data_parallel_rank: Option<i64>,
}

impl GenerateSpec {
    /// A request with the default of every optional field.
    pub fn new(fields: FieldNames, trace_id: String, inputs: Vec<Input>) -> Self {
        Self {
            fields,
            trace_id,
            inputs,
            n: 1,
            parent: None,
            max_tokens: MaxTokens::Rest,
            sampling: SamplingSpec {
                min_tokens_field: "min_tokens",
                ..SamplingSpec::default()
            },
            logprobs: LogprobSpec {
                top_field: Cow::Borrowed("top_logprobs"),
                ..LogprobSpec::default()
            },
            stops: Vec::new(),
            include_stop: false,
            skip_special_tokens: true,
            priority: None,
            timeout_ms: None,
            speculative: SpeculativeSpec::default(),
            data_parallel_rank: None,
        }
    }
}
