//! Blanks between free text and the constrained part of an output.

/// Most bytes of blanks between free text and the constrained part.
pub(crate) const MOST_BLANKS: usize = 16;

/// Returns true for a text of blanks alone.
pub(crate) fn is_blank(text: &[u8]) -> bool {
    text.iter().all(|byte| b" \t\r\n".contains(byte))
}
