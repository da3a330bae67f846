//! Fixed texts, in which the name of a special token may stand for that token.

use lockstep_text::lark::literal;

use super::tree::shown;
use crate::{ConstraintError, Vocabulary};

/// Most special tokens in one text.
const MOST_TOKENS: usize = 32;

/// A piece of a fixed text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    /// A special token, or its name spelled by others.
    Token(u32, String),
}

impl Piece {
    /// Returns the text of the piece.
    pub fn text(&self) -> &str {
        let (Self::Text(text) | Self::Token(_, text)) = self;
        text
    }

    fn expression(&self) -> String {
        match self {
            Self::Text(text) => literal(text),
            Self::Token(id, name) => format!("(<[{id}]> | {})", literal(name)),
        }
    }
}

/// Cuts a text at the names of special tokens.
///
/// # Errors
/// [`ConstraintError::Refused`] for the name of a token that ends outputs.
pub(super) fn pieces(text: &str, vocabulary: &Vocabulary) -> Result<Vec<Piece>, ConstraintError> {
    let (mut pieces, mut rest, mut tokens) = (Vec::new(), text, 0);
    while let Some((at, name, id)) = vocabulary.named_in(rest) {
        if vocabulary.end_tokens().contains(&id) {
            return Err(ConstraintError::refused(format!(
                "the text '{}' contains '{name}', the token that ends outputs of this model; leave \
                 it out: an 'end' may be empty",
                shown(text)
            )));
        }
        tokens += 1;
        if tokens > MOST_TOKENS {
            return Err(ConstraintError::refused(format!(
                "the text '{}' has more than {MOST_TOKENS} special tokens",
                shown(text)
            )));
        }
        if at > 0 {
            pieces.push(Piece::Text(rest[..at].to_owned()));
        }
        pieces.push(Piece::Token(id, name.to_owned()));
        rest = &rest[at + name.len()..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    Ok(pieces)
}

/// Returns the expression of pieces.
pub(super) fn join(pieces: &[Piece]) -> String {
    let pieces: Vec<_> = pieces.iter().map(Piece::expression).collect();
    pieces.join(" ")
}

/// Returns the end of the special token's name in which a place of a text lies, and otherwise that
/// place.
pub(super) fn whole_token(pieces: &[Piece], at: usize) -> usize {
    let mut end = 0;
    for piece in pieces {
        end += piece.text().len();
        if end >= at {
            return match piece {
                Piece::Text(_) => at,
                Piece::Token(..) => end,
            };
        }
    }
    at
}
