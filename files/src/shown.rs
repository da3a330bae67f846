//! Escapes of foreign text for terminals and logs: texts of files and of servers.

/// Largest number of characters of a name or of a reason.
const LONGEST: usize = 2_000;

/// Largest number of characters of a note, which has several names and reasons.
const LONGEST_NOTE: usize = 10_000;

/// A name or a reason in one line of bounded length. Characters that a terminal would obey, or
/// that change the direction of a line, are escaped as in Rust's literals.
pub fn shown(text: &str) -> String {
    escaped(text, LONGEST)
}

/// Does the same as [`shown`] for a whole note.
pub fn shown_note(text: &str) -> String {
    escaped(text, LONGEST_NOTE)
}

fn escaped(text: &str, most: usize) -> String {
    let mut escaped = String::new();
    for (at, c) in text.chars().enumerate() {
        match c {
            _ if at == most => {
                escaped.push('…');
                break;
            }
            '\'' | '"' | '\\' => escaped.push(c),
            _ => escaped.extend(c.escape_debug()),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_obeyed_and_the_rest_is_as_it_was() {
        for (text, expected) in [
            ("a \"b\" 'c' \\ – ü 模型", "a \"b\" 'c' \\ – ü 模型"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\0\u{7f}\u{9b}", "\\0\\u{7f}\\u{9b}"),
            ("\u{202e}cba\u{2066}", "\\u{202e}cba\\u{2066}"),
            ("\u{2028}\u{200b}\u{feff}", "\\u{2028}\\u{200b}\\u{feff}"),
        ] {
            assert_eq!(shown(text), expected);
            assert_eq!(shown(expected), expected, "it is shown once more");
        }
        let long = shown(&"x".repeat(LONGEST + 1));
        assert_eq!(long, "x".repeat(LONGEST) + "…");
        assert_eq!(shown(&long), long);
        assert_eq!(shown(&"x".repeat(LONGEST)).len(), LONGEST);
        let note = shown_note(&"x".repeat(LONGEST_NOTE + 1));
        assert_eq!(note, "x".repeat(LONGEST_NOTE) + "…");
    }
}
