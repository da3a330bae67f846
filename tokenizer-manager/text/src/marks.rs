//! Marks of a model's format, such as `<tool_call>`, found in a growing output.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// One mark of a model's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Spelling of the mark.
    pub text: &'static str,
    /// Place of the mark in the list of its format.
    pub index: usize,
    /// The token that is this mark. `None` if the vocabulary has no such token; the mark is then
    /// found by its spelling.
    pub id: Option<u32>,
    /// True if the mark does not show where it turns out to be plain text, because it is a special
    /// token.
    pub hidden: bool,
    /// Meaning of the mark to the parts of an answer.
    pub role: Role,
}

/// Meaning of a mark to the parts of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A mark around the reasoning.
    Reasoning,
    /// A mark that opens a call of a tool.
    OpensCall,
    /// Another mark of calls.
    Call,
    /// A mark of messages, which are reasoning, calls and text.
    Channel,
}

impl Mark {
    /// Describes a mark as a tokenizer knows it. `skip_special_tokens` hides special tokens.
    pub fn new(
        (index, text): (usize, &'static str),
        role: Role,
        tokenizer: &Tokenizer,
        skip_special_tokens: bool,
    ) -> Self {
        let id = tokenizer.token_to_id(text);
        // A token whose text is another one would be counted wrongly.
        let id = id.filter(|id| tokenizer.token_bytes(*id) == Some(text.as_bytes()));
        let special = id.is_some_and(|id| tokenizer.is_special(id));
        Self {
            text,
            index,
            id,
            hidden: special && skip_special_tokens,
            role,
        }
    }

    /// The text that clients see if the mark turns out to be plain text.
    pub fn shown(&self) -> &'static str {
        if self.hidden { "" } else { self.text }
    }
}

/// A character or a mark of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Symbol {
    /// A character that is in no mark.
    Char(char),
    /// A whole mark.
    Mark(Mark),
}

/// Finds the marks that have no token of their own. The longest end of the text that may begin a
/// mark is held back, so the symbols do not depend on how the text is cut. No mark may contain
/// another one.
#[derive(Debug)]
pub(crate) struct MarkFinder {
    marks: Arc<[Mark]>,
    held: String,
}

impl MarkFinder {
    pub fn new(marks: Arc<[Mark]>) -> Self {
        let held = String::new();
        Self { marks, held }
    }

    /// All marks of the format.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Returns the mark whose token this is.
    pub fn of_token(&self, id: u32) -> Option<Mark> {
        self.marks.iter().find(|mark| mark.id == Some(id)).copied()
    }

    /// Number of characters that are held back.
    pub fn held(&self) -> usize {
        self.held.chars().count()
    }

    /// Adds a character.
    pub fn push(&mut self, c: char) {
        self.held.push(c);
    }

    /// Takes the next symbol that is certain now.
    pub fn take(&mut self) -> Option<Symbol> {
        let mut begins = false;
        let spelled = self.marks.iter().filter(|mark| mark.id.is_none());
        for mark in spelled.filter(|mark| mark.text.starts_with(self.held.as_str())) {
            if mark.text.len() == self.held.len() {
                self.held.clear();
                return Some(Symbol::Mark(*mark));
            }
            begins = true;
        }
        match begins {
            true => None,
            false => self.take_char(),
        }
    }

    /// Takes the next character that is held back, since no mark continues here.
    pub fn take_char(&mut self) -> Option<Symbol> {
        let first = self.held.chars().next()?;
        self.held.remove(0);
        Some(Symbol::Char(first))
    }
}
