//! Blanks between the parts of JSON.

use llguidance::JsonCompileOptions;
use lockstep_types::constraint::Whitespace;

/// Most blanks between parts of JSON: a space, or a line break and up to 32.
const MOST_BLANKS: u64 = 33;

/// Returns the options of JSON with these blanks.
pub(crate) fn json_options(whitespace: Whitespace) -> JsonCompileOptions {
    blanks_options(match whitespace {
        Whitespace::Bounded => MOST_BLANKS,
        Whitespace::Compact => 0,
    })
}

/// Returns the options of JSON with at most this many blanks in a row, of which only the first one
/// may be a line break.
pub(crate) fn blanks_options(blanks: u64) -> JsonCompileOptions {
    let more = blanks.min(MOST_BLANKS).checked_sub(1);
    JsonCompileOptions {
        whitespace_flexible: false,
        whitespace_pattern: more.map(|more| format!(r"(\x20|\n[\x20\t]{{0,{more}}})")),
        ..JsonCompileOptions::default()
    }
}
