//! Events of one choice: the parts of its answer and its end, as every surface maps them.

use lockstep_types::request::{FinishReason, SpeculationUsage, Usage};

use super::pending::OutputToken;

/// One part of a choice's output.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Text of the answer. It is empty while a character is incomplete or a stop string
    /// may follow.
    Text(TextDelta),
    /// Text of the model's reasoning. It is empty where only tokens of marks and blanks come.
    Reasoning(TextDelta),
    /// The begin of a call of a tool, or more of its arguments.
    ToolCall(CallDelta),
    /// The end of the choice; nothing follows.
    End(End),
}

impl Event {
    /// Returns the tokens whose text began to show with this event.
    pub fn tokens(&self) -> &[OutputToken] {
        match self {
            Self::Text(text) | Self::Reasoning(text) => &text.tokens,
            Self::ToolCall(call) => &call.tokens,
            Self::End(_) => &[],
        }
    }
}

/// Text to show now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TextDelta {
    /// The text.
    pub text: String,
    /// Tokens whose text begins in this text, in order.
    pub tokens: Vec<OutputToken>,
}

impl TextDelta {
    /// Returns true if there is nothing to show.
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty()
    }

    /// Adds the text that follows.
    pub(super) fn append(&mut self, next: Self) {
        self.text.push_str(&next.text);
        self.tokens.extend(next.tokens);
    }
}

/// A part of a call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallDelta {
    /// Place of the call among those of the choice.
    pub index: usize,
    /// The begin of the call; `None` if the call has begun before.
    pub begin: Option<CallBegin>,
    /// Arguments to show now. All of them together are JSON, if the model wrote JSON.
    pub arguments: String,
    /// Tokens whose text begins in this part, in order.
    pub tokens: Vec<OutputToken>,
}

impl CallDelta {
    /// Adds the part that follows.
    pub(super) fn append(&mut self, next: Self) {
        self.arguments.push_str(&next.arguments);
        self.tokens.extend(next.tokens);
    }
}

/// The begin of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallBegin {
    /// Name of the tool.
    pub name: String,
    /// Id of the call, if the model gave it one.
    pub id: Option<String>,
}

/// The end of a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Reason of the end.
    pub reason: FinishReason,
    /// The token or stop string that matched, after [`FinishReason::Stop`].
    pub matched: Option<Matched>,
    /// Number of tokens, by kind.
    pub usage: Usage,
    /// Number of tokens that are reasoning; `None` if reasoning was not told apart.
    pub reasoning_tokens: Option<u32>,
    /// True if a stop string came inside a call of a tool.
    pub cuts_call: bool,
    /// Counts of speculative decoding; `None` if nothing was verified.
    pub speculation: Option<SpeculationUsage>,
}

/// The token or text that ended a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched {
    /// An end or stop token.
    Token(u32),
    /// A stop string.
    Text(String),
}
