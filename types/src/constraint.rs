//! Constraints on the text of an output.

use std::sync::Arc;

use lockstep_adaptive::Digest;

/// Most bytes of a constraint's text. All constraints of a plan travel in one message.
pub const CONSTRAINT_BYTES: usize = 64 << 10;

/// Language that a request's whole output belongs to, as a text that a grammar is compiled
/// from. Nobody but the front, which checks it, and the lead, which obeys it, reads the text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Constraint {
    /// Language of `text`.
    pub kind: ConstraintKind,
    /// The schema, expression or grammar; at most [`CONSTRAINT_BYTES`] bytes.
    pub text: Arc<str>,
    /// Blanks between the parts of JSON.
    pub whitespace: Whitespace,
    /// Reasoning that comes before the constrained part; `None` = that part begins at once.
    pub after: Option<Reasoning>,
}

/// Free text before the constrained part of an output. It ends with a mark. Where the part is
/// constrained at all, the output does not end inside the free text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reasoning {
    /// Mark with which it begins, such as `<think>`, in which case the output may also have
    /// none; `None` = the prompt has begun it.
    pub open: Option<Arc<str>>,
    /// Mark with which it ends, such as `</think>`.
    pub close: Arc<str>,
    /// Most tokens between the marks. When it has that many, nothing but the closing mark may
    /// follow. `None` = the free text is as long as the model likes.
    pub limit: Option<u32>,
    /// True if free text with an opening mark may begin again behind the closing one, anywhere in
    /// an output of [`ConstraintKind::Anything`]. The limit is that of all of it together.
    pub again: bool,
    /// Marks of one token that end it too: those of calls that a model makes before it has ended
    /// its reasoning. Anything may follow them, since the model may only have mentioned the mark.
    pub breaks: Vec<Arc<str>>,
}

impl Reasoning {
    /// Makes free text between these marks, without a limit.
    pub fn new(open: Option<&str>, close: &str) -> Self {
        Self {
            open: open.map(Into::into),
            close: close.into(),
            limit: None,
            again: false,
            breaks: Vec::new(),
        }
    }
}

/// Language of a constraint's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConstraintKind {
    /// JSON Schema; the output is an instance.
    JsonSchema,
    /// A regular expression, which matches the output from begin to end.
    Regex,
    /// A grammar in llguidance's variant of Lark.
    Lark,
    /// A JSON array of texts; the output is one of them.
    Choice,
    /// A structural tag, of SGLang's and vLLM's form or of XGrammar's.
    StructuralTag,
    /// Any tokens at all; the text is empty. Only the reasoning before them has a limit.
    Anything,
}

/// Blanks that JSON may have between its parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Whitespace {
    /// One space, or a line break with some indentation.
    #[default]
    Bounded,
    /// None at all.
    Compact,
}

impl ConstraintKind {
    /// Returns the name of the language, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::JsonSchema => "JSON schema",
            Self::Regex => "regular expression",
            Self::Lark => "grammar",
            Self::Choice => "list of choices",
            Self::StructuralTag => "structural tag",
            Self::Anything => "limit of the reasoning",
        }
    }
}

impl Constraint {
    /// Makes a constraint of the whole output.
    pub fn new(kind: ConstraintKind, text: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            text: text.into(),
            whitespace: Whitespace::default(),
            after: None,
        }
    }

    /// Folds all fields into a digest by which ranks are compared.
    pub(crate) fn digest(&self, digest: &mut Digest) {
        let Self {
            kind,
            text,
            whitespace,
            after,
        } = self;
        digest.word(*kind as u64);
        digest.word(*whitespace as u64);
        digest_text(text, digest);
        digest.word(u64::from(after.is_some()));
        if let Some(after) = after {
            after.digest(digest);
        }
    }
}

impl Reasoning {
    fn digest(&self, digest: &mut Digest) {
        let Self {
            open,
            close,
            limit,
            again,
            breaks,
        } = self;
        digest.word(u64::from(open.is_some()));
        digest_text(open.as_deref().unwrap_or_default(), digest);
        digest_text(close, digest);
        digest.option(*limit);
        digest.word(u64::from(*again));
        digest.word(breaks.len() as u64);
        breaks.iter().for_each(|mark| digest_text(mark, digest));
    }
}

fn digest_text(text: &str, digest: &mut Digest) {
    digest.word(text.len() as u64);
    for chunk in text.as_bytes().chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        digest.word(u64::from_le_bytes(word));
    }
}
