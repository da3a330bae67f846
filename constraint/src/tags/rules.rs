//! Rules of a grammar that is written from the end of an output to its begin.

use std::{collections::BTreeMap, rc::Rc};

use super::literal::{Piece, join, pieces};
use crate::{ConstraintError, Vocabulary};

/// Most bytes of a grammar.
const MOST_BYTES: usize = 1 << 20;

pub(super) type Result<T> = std::result::Result<T, ConstraintError>;

/// A way in which an output may go on at some place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Way {
    /// It ends.
    End,
    /// A text, not empty, and the name of the rule behind it.
    Fixed { text: String, rest: String },
    /// The name of a rule that begins in another way.
    Other(String),
}

/// Expression of nothing.
pub(super) const NOTHING: &str = "\"\"";

/// Adds ways that are not among others yet.
pub(super) fn add(ways: &mut Vec<Way>, more: Vec<Way>) {
    for way in more {
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
}

/// Rules and terminals of one grammar.
pub(super) struct Rules<'a> {
    vocabulary: &'a Vocabulary,
    text: String,
    /// Names of rules and terminals by what they are.
    known: BTreeMap<String, String>,
    /// Pieces of fixed texts.
    texts: BTreeMap<String, Rc<[Piece]>>,
    count: usize,
}

impl<'a> Rules<'a> {
    /// Begins a grammar.
    pub fn new(vocabulary: &'a Vocabulary) -> Self {
        Self {
            vocabulary,
            text: String::new(),
            known: BTreeMap::new(),
            texts: BTreeMap::new(),
            count: 0,
        }
    }

    /// Returns the whole grammar, which begins with this rule.
    pub fn finish(self, start: &str) -> String {
        format!("start: {start}\n{}", self.text)
    }

    /// Returns the ways in which a fixed text begins that is followed in one of the ways `next`.
    pub fn fixed(&mut self, text: &str, next: &[Way]) -> Result<Vec<Way>> {
        Ok(match text {
            "" => next.to_vec(),
            text => vec![Way::Fixed {
                text: text.to_owned(),
                rest: self.behind(next)?,
            }],
        })
    }

    /// Returns the name of a rule of one of these ways, or an expression that is as short.
    pub fn behind(&mut self, ways: &[Way]) -> Result<String> {
        match ways {
            [Way::Other(name)] => Ok(name.clone()),
            [Way::End] => Ok(NOTHING.to_owned()),
            ways => {
                let body = self.alternatives(ways)?;
                self.rule(&body)
            }
        }
    }

    /// Returns the body of a rule of one of these ways.
    pub fn alternatives(&mut self, ways: &[Way]) -> Result<String> {
        let mut all = Vec::with_capacity(ways.len());
        for way in ways {
            all.push(match way {
                Way::End => NOTHING.to_owned(),
                Way::Fixed { text, rest } => format!("{} {rest}", join(&self.pieces(text)?)),
                Way::Other(name) => name.clone(),
            });
        }
        Ok(all.join("\n  | "))
    }

    /// Returns the pieces of a fixed text.
    pub fn pieces(&mut self, text: &str) -> Result<Rc<[Piece]>> {
        if let Some(known) = self.texts.get(text) {
            return Ok(known.clone());
        }
        let pieces: Rc<[Piece]> = pieces(text, self.vocabulary)?.into();
        self.texts.insert(text.to_owned(), pieces.clone());
        Ok(pieces)
    }

    /// Returns the name of a rule.
    pub fn rule(&mut self, body: &str) -> Result<String> {
        self.named('g', body)
    }

    /// Returns the name of a terminal.
    pub fn terminal(&mut self, body: &str) -> Result<String> {
        self.named('G', body)
    }

    fn named(&mut self, kind: char, body: &str) -> Result<String> {
        let key = format!("{kind}{body}");
        if let Some(name) = self.known.get(&key) {
            return Ok(name.clone());
        }
        let name = format!("{kind}{}", self.number());
        self.define(&name, body)?;
        self.known.insert(key, name.clone());
        Ok(name)
    }

    /// Returns a name for a rule that is defined later.
    pub fn reserve(&mut self) -> String {
        format!("g{}", self.number())
    }

    /// Defines a rule whose name is reserved.
    pub fn define(&mut self, name: &str, body: &str) -> Result<()> {
        self.push(&format!("{name}: {body}\n"))
    }

    /// Returns a prefix for the names of a part's rules.
    pub fn prefix(&mut self) -> String {
        format!("{}-", self.number())
    }

    fn number(&mut self) -> usize {
        self.count += 1;
        self.count
    }

    /// Adds rules that are written already.
    ///
    /// # Errors
    /// [`ConstraintError::Refused`] for a grammar that is too long.
    pub fn push(&mut self, rules: &str) -> Result<()> {
        self.text.push_str(rules);
        match self.text.len() > MOST_BYTES {
            true => Err(ConstraintError::refused(format!(
                "its translation to Lark grows to more than {MOST_BYTES} bytes; use fewer or \
                 shorter texts"
            ))),
            false => Ok(()),
        }
    }
}
