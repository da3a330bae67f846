//! A generation request as an API received it, before any check.

use std::borrow::Cow;

use lockstep_constraint::TagSchema;
use lockstep_text::AnswerOptions;
use lockstep_types::constraint::{ConstraintKind, Reasoning, Whitespace};

use super::{FieldNames, SamplingSpec};
use crate::error::{ApiError, ApiResult};

/// One prompt, as text or as token ids.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A text to tokenize.
    Text {
        /// The prompt, of any length.
        text: String,
        /// True if the tokenizer adds its special tokens, such as the one that begins a
        /// sequence. A rendered chat template has them already.
        add_special_tokens: bool,
    },
    /// Token ids, used as they are.
    Ids(Vec<u32>),
}

/// The limit of the output's length, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxTokens {
    /// The client's own limit; an error if the context leaves less.
    Exact(i64),
    /// The API's default; reduced to the rest of the context.
    Default(u32),
    /// The rest of the context.
    Rest,
}

/// Log-probabilities to report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogprobSpec {
    /// True if log-probabilities of output tokens are reported.
    pub output: bool,
    /// Number of most likely tokens per position.
    pub top: i64,
    /// Name of the field that holds `top`.
    pub top_field: Cow<'static, str>,
    /// First prompt position whose log-probabilities are reported; `None` = of no
    /// prompt token.
    pub prompt_start: Option<u32>,
}

/// A request's limits on speculative decoding; `None` = not given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpeculativeSpec {
    /// `false` turns speculation off for this request.
    pub enabled: Option<bool>,
    /// Maximum draft steps.
    pub max_steps: Option<i64>,
}

/// A constraint as an API received it.
#[derive(Debug, Clone, PartialEq)]
pub struct ConstraintSpec {
    /// Field that asked for it.
    pub param: Cow<'static, str>,
    /// Language of `text`.
    pub kind: ConstraintKind,
    /// The schema, expression or list.
    pub text: String,
    /// Blanks between the parts of JSON.
    pub whitespace: Whitespace,
    /// Reasoning that comes first.
    pub after: Option<Reasoning>,
    /// Schemas inside `text`, one of which is named if it can't be followed.
    pub parts: Vec<ConstraintPart>,
}

/// The most tokens of a request's reasoning, as an API received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThinkingBudget {
    /// Field that has it.
    pub param: &'static str,
    /// The number, not checked.
    pub tokens: i64,
}

/// A schema inside a constraint.
#[derive(Debug, Clone, PartialEq)]
pub struct ConstraintPart {
    /// Field that has it.
    pub param: String,
    /// The schema.
    pub schema: String,
}

impl ConstraintSpec {
    /// Makes the constraint of a whole output.
    pub fn new(
        param: impl Into<Cow<'static, str>>,
        kind: ConstraintKind,
        text: impl Into<String>,
    ) -> Self {
        Self {
            param: param.into(),
            kind,
            text: text.into(),
            whitespace: Whitespace::default(),
            after: None,
            parts: Vec::new(),
        }
    }

    /// Makes the constraint of a structural tag.
    pub fn structural_tag(param: impl Into<Cow<'static, str>>, text: String) -> Self {
        let param = param.into();
        // A text that is none is refused when it is compiled.
        let schemas = lockstep_constraint::tag_schemas(&text).unwrap_or_default();
        let parts = schemas.into_iter().map(|TagSchema { path, schema }| {
            let keys = path.iter().map(|key| match key.parse::<usize>() {
                Ok(at) => format!("[{at}]"),
                Err(_) => format!(".{key}"),
            });
            ConstraintPart {
                param: keys.fold(param.to_string(), |path, key| path + &key),
                schema,
            }
        });
        Self {
            parts: parts.collect(),
            ..Self::new(param.clone(), ConstraintKind::StructuralTag, text)
        }
    }

    /// Makes the constraint of a grammar in GBNF, EBNF or Lark.
    ///
    /// # Errors
    /// 400 with the line at fault, for a grammar that has no translation to Lark.
    pub fn grammar(param: impl Into<Cow<'static, str>>, text: &str) -> ApiResult<Self> {
        let param = param.into();
        match lockstep_constraint::lark(text) {
            Ok(lark) => Ok(Self::new(param, ConstraintKind::Lark, lark)),
            Err(error) => {
                let message = format!("Invalid grammar for '{param}': {error}.");
                Err(ApiError::invalid(param, message))
            }
        }
    }
}

/// One generation request, unchecked.
#[derive(Debug, Clone)]
pub struct GenerateSpec {
    /// Field names for error messages.
    pub fields: FieldNames,
    /// Request id that clients and logs see.
    pub trace_id: String,
    /// The prompts; each gets `n` choices.
    pub inputs: Vec<Input>,
    /// Choices per prompt.
    pub n: i64,
    /// Number of the client request of which this is a part; `None` = this is all of
    /// it.
    pub parent: Option<u64>,
    /// Limit of the output's length.
    pub max_tokens: MaxTokens,
    /// Sampling parameters.
    pub sampling: SamplingSpec,
    /// Log-probabilities to report.
    pub logprobs: LogprobSpec,
    /// Strings that end the output.
    pub stops: Vec<String>,
    /// True if the output includes the stop string that matched.
    pub include_stop: bool,
    /// True if special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// Priority; requests of a higher priority run first; `None` = 0.
    pub priority: Option<i32>,
    /// Time limit, milliseconds; `None` = the server's limit.
    pub timeout_ms: Option<u32>,
    /// The request's limits on speculative decoding.
    pub speculative: SpeculativeSpec,
    /// DP rank that runs the request; `None` = the scheduler chooses.
    pub data_parallel_rank: Option<i64>,
    /// Salt of the prefix cache; `None` = the request shares with those that have none.
    pub cache_salt: Option<String>,
    /// Name of the adapter; `None` = the model alone.
    pub adapter: Option<String>,
    /// Language that each output belongs to; `None` = outputs are free.
    pub constraint: Option<ConstraintSpec>,
    /// Most tokens of the reasoning; `None` = as many as the model likes.
    pub thinking_budget: Option<ThinkingBudget>,
    /// Parts of the answer that are told apart; by default none, so all of it is text.
    pub answer: AnswerOptions,
}

impl GenerateSpec {
    /// Makes a request with the default of every optional field.
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
            cache_salt: None,
            adapter: None,
            constraint: None,
            thinking_budget: None,
            answer: AnswerOptions::default(),
        }
    }
}
