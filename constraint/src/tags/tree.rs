//! Structural tags as trees of formats.

use lockstep_text::XmlStyle;
use serde_json::Value;

use crate::ConstraintError;

/// A format, and its place in the structural tag.
#[derive(Debug)]
pub(super) struct Node {
    pub place: Place,
    pub format: Format,
}

/// A language of a part of an output.
#[derive(Debug)]
pub(super) enum Format {
    /// One text.
    Fixed(String),
    /// Instances of a schema, as JSON or as tags around raw values.
    Schema {
        schema: Value,
        /// Place of the schema.
        at: Place,
        style: Option<XmlStyle>,
        /// Most blanks between parts of JSON; `None` = as everywhere.
        blanks: Option<u64>,
    },
    AnyText {
        /// Texts that it does not contain.
        excludes: Vec<String>,
        /// Most characters.
        most: Option<u64>,
    },
    Regex(String),
    /// A grammar in EBNF.
    Grammar(String),
    Sequence(Vec<Node>),
    Or(Vec<Node>),
    /// The least and the most repetitions.
    Repeat(Box<Node>, u64, Option<u64>),
    Tag(Tag),
    Triggered(Triggered),
    Separated {
        tags: Vec<Tag>,
        separator: String,
        flags: Flags,
    },
}

/// A format between two texts.
#[derive(Debug)]
pub(super) struct Tag {
    pub begin: String,
    pub content: Box<Node>,
    /// Texts, one of which ends it. An empty one stands for nothing.
    pub ends: Vec<String>,
}

/// Free text with tags inside.
#[derive(Debug)]
pub(super) struct Triggered {
    pub triggers: Vec<String>,
    /// Tags, each with the place of its trigger, with which it begins.
    pub tags: Vec<(Tag, usize)>,
    /// Texts that the free text does not contain.
    pub excludes: Vec<String>,
    pub flags: Flags,
}

/// Number of tags.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flags {
    /// True if there is one, which comes first.
    pub at_least_one: bool,
    /// True if nothing follows the first one.
    pub stop_after_first: bool,
}

/// A place in a structural tag, as a JSON pointer.
#[derive(Debug, Clone, Default)]
pub(super) struct Place(Vec<String>);

impl Place {
    /// Returns the place of a key below.
    pub fn below(&self, key: impl Into<String>) -> Self {
        let mut path = self.0.clone();
        path.push(key.into());
        Self(path)
    }

    /// Returns the place of an item of a list.
    pub fn item(&self, at: usize) -> Self {
        self.below(at.to_string())
    }

    /// Returns the keys that lead to it.
    pub fn path(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Makes the error of what stands there.
    pub fn refuse(&self, message: impl Into<String>) -> ConstraintError {
        ConstraintError::Refused {
            keyword: None,
            pointer: Some(self.pointer()),
            message: message.into(),
        }
    }

    /// Returns the error of a schema, an expression or a grammar that stands there.
    pub fn inside(&self, error: ConstraintError) -> ConstraintError {
        match error {
            ConstraintError::Refused {
                keyword,
                pointer,
                message,
            } => {
                let inner = pointer.unwrap_or_default();
                let inner = inner.trim_start_matches('#');
                ConstraintError::Refused {
                    keyword,
                    pointer: Some(self.pointer() + inner),
                    message,
                }
            }
            other => other,
        }
    }

    fn pointer(&self) -> String {
        let mut pointer = "#".to_owned();
        for key in &self.0 {
            pointer.push('/');
            pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
        }
        pointer
    }
}

impl Node {
    /// Visits all schemas in their order.
    pub fn each_schema(&self, visit: &mut impl FnMut(&Place, &Value)) {
        match &self.format {
            Format::Schema { schema, at, .. } => visit(at, schema),
            Format::Sequence(nodes) | Format::Or(nodes) => {
                nodes.iter().for_each(|node| node.each_schema(visit));
            }
            Format::Repeat(node, ..) => node.each_schema(visit),
            Format::Tag(tag) => tag.content.each_schema(visit),
            Format::Triggered(triggered) => {
                let tags = triggered.tags.iter().map(|(tag, _)| tag);
                tags.for_each(|tag| tag.content.each_schema(visit));
            }
            Format::Separated { tags, .. } => {
                tags.iter().for_each(|tag| tag.content.each_schema(visit));
            }
            Format::Fixed(_) | Format::AnyText { .. } | Format::Regex(_) | Format::Grammar(_) => {}
        }
    }
}

/// Returns a text as errors show it, without most of a long one.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let mut chars = text.chars();
    let mut shown: String = chars.by_ref().take(MOST).collect();
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}
