//! Reasons why a constraint is refused.

use lockstep_types::constraint::ConstraintKind;

/// A constraint that can't be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The text is not what it should be, or asks for something that is not supported.
    #[error("{}{message}", place(pointer.as_deref()))]
    Refused {
        /// The keyword at fault, if it is known.
        keyword: Option<String>,
        /// JSON pointer of the schema with that keyword.
        pointer: Option<String>,
        /// The fault and the remedy.
        message: String,
    },
    /// Compiling the constraint, or a mask of it, takes too long.
    #[error("it is too complex to be followed in time; simplify it")]
    Slow,
    /// The constraint takes more work than is allowed. Work is counted and not timed, so this says
    /// the same on every machine.
    #[error("it takes too much work to be followed; simplify it")]
    Heavy,
    /// Other constraints are being compiled.
    #[error("the server is compiling other constraints; try again")]
    Busy,
    /// The model has no token that ends an output.
    #[error(
        "outputs of this model can't be constrained: it has no end token, so no output would \
         end; give its generation_config.json an `eos_token_id`"
    )]
    NoEnd,
    /// The vocabulary can't be read.
    #[error("the vocabulary of the model can't be read: {0}")]
    Vocabulary(String),
}

fn place(pointer: Option<&str>) -> String {
    pointer.map_or(String::new(), |pointer| format!("at \"{pointer}\": "))
}

impl ConstraintError {
    /// Makes an error of the whole text.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::Refused {
            keyword: None,
            pointer: None,
            message: message.into(),
        }
    }

    /// Returns the error for what llguidance says. It names keywords in quotes.
    pub(crate) fn told(kind: ConstraintKind, message: &str) -> Self {
        let message = message.split("<non-verbose/>").next().unwrap_or_default();
        let message = message.trim();
        // What llguidance says of its own faults helps nobody.
        let message = match message.starts_with("panic") {
            true => "this version can't compile it; simplify it",
            false => message,
        };
        let message = message.strip_suffix('.').unwrap_or(message);
        let keyword = match kind {
            ConstraintKind::JsonSchema if message.contains("oneOf") => Some("oneOf".to_owned()),
            ConstraintKind::JsonSchema => keyword_in(message),
            _ => None,
        };
        let remedy = match keyword.as_deref() {
            Some("oneOf") => {
                "the schemas of a 'oneOf' overlap, or can't be told apart: use 'anyOf'".to_owned()
            }
            _ => format!("the {} can't be followed: {message}", kind.name()),
        };
        Self::Refused {
            keyword,
            pointer: None,
            message: remedy,
        }
    }

    /// Returns the keyword at fault, if it is known.
    pub fn keyword(&self) -> Option<&str> {
        match self {
            Self::Refused { keyword, .. } => keyword.as_deref(),
            _ => None,
        }
    }
}

/// Returns the first keyword that llguidance quotes in a message.
fn keyword_in(message: &str) -> Option<String> {
    let quoted = message.split(['"', '\'']).skip(1).step_by(2);
    let mut words = quoted.filter(|word| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'$')
    });
    words.next().map(str::to_owned)
}
