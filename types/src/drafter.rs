//! Commands to the drafter while the server runs.

use crate::request::RequestError;

/// A command, to an algorithm that declares its family by a capability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrafterCommand {
    /// With [`Capabilities::drafts_from_texts`](crate::Capabilities::drafts_from_texts).
    Corpora(CorpusCommand),
}

/// What to do with the texts that are drafted from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorpusCommand {
    /// Nothing: list them.
    List,
    /// Add one, in place of one of the same name.
    Add {
        /// The corpus.
        name: String,
        /// Its tokens.
        token_ids: Vec<u32>,
    },
    /// Forget one.
    Remove {
        /// The corpus.
        name: String,
    },
}

/// The answer to a command of the same family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrafterReply {
    /// All corpora that there are now, by name.
    Corpora(Vec<CorpusSize>),
}

/// A corpus, for a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorpusSize {
    /// Its name.
    pub name: String,
    /// How many tokens it has.
    pub tokens: u64,
}

/// A reply, or why nothing changed.
pub type DrafterResult = Result<DrafterReply, RequestError>;
