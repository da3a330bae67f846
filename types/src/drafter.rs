//! Commands to the drafter while the server runs.

use crate::request::RequestError;

/// A command to a drafter. Each family of commands needs an algorithm with one capability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrafterCommand {
    /// Needs [`Capabilities::drafts_from_texts`](crate::Capabilities::drafts_from_texts).
    Corpora(CorpusCommand),
}

/// A command about the texts (corpora) that are drafted from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorpusCommand {
    /// List the corpora; changes nothing.
    List,
    /// Add a corpus, in place of one of the same name.
    Add {
        /// Name of the corpus.
        name: String,
        /// Tokens of the text.
        token_ids: Vec<u32>,
    },
    /// Remove a corpus.
    Remove {
        /// Name of the corpus.
        name: String,
    },
}

/// The answer to a command of the same family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrafterReply {
    /// All corpora that there are after the command, by name.
    Corpora(Vec<CorpusSize>),
}

/// An entry in the list of corpora.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorpusSize {
    /// Name of the corpus.
    pub name: String,
    /// Number of tokens in the corpus.
    pub tokens: u64,
}

/// The drafter's reply, or the reason why nothing changed.
pub type DrafterResult = Result<DrafterReply, RequestError>;
