//! Copies of recurrent states that rows keep.

/// Copy of a request's recurrent state at a position.
///
/// A row without drafts moves the live state over the tokens committed before that the state
/// lacks, and then over its own tokens. A row with drafts moves it over the former alone: which
/// drafts are accepted is known after the pass, and the next row moves the state over them. The
/// copy is written if the state comes to `position` on that way, from before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateKeep {
    /// Number of tokens before the position.
    pub position: u32,
    /// Number of the state that the copy is written to.
    pub state: u32,
}
