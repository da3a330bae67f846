//! JSON as Python writes it.

use std::borrow::Cow;

/// Words of Python's `json` for numbers that are not finite. JSON has no such words.
const NOT_FINITE: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];

/// Puts `NaN`, `Infinity` and `-Infinity` in quotes where they stand outside of texts. A key
/// that nobody reads then does no harm. A reader of the key finds a text in place of a number,
/// which is an error of that key alone.
pub fn quoted(json: &[u8]) -> Cow<'_, [u8]> {
    let mut quoted = Vec::new();
    let (mut copied, mut at) = (0, 0);
    while at < json.len() {
        match json[at] {
            b'"' => at = end_of_text(json, at),
            b'N' | b'I' | b'-' => {
                let word = NOT_FINITE.iter().find(|word| json[at..].starts_with(word));
                let Some(word) = word else {
                    at += 1;
                    continue;
                };
                quoted.extend(&json[copied..at]);
                quoted.extend([b"\"", *word, b"\""].concat());
                at += word.len();
                copied = at;
            }
            _ => at += 1,
        }
    }
    match copied {
        0 => Cow::Borrowed(json),
        _ => {
            quoted.extend(&json[copied..]);
            Cow::Owned(quoted)
        }
    }
}

/// Index behind the text that begins at `start`.
fn end_of_text(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < json.len() {
        match json[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_not_finite_become_texts_and_texts_stay() {
        for (json, expected) in [
            (r#"{"a":NaN}"#, r#"{"a":"NaN"}"#),
            (
                r#"[Infinity, -Infinity,NaN]"#,
                r#"["Infinity", "-Infinity","NaN"]"#,
            ),
            // Text that no parser takes stays such.
            (r#"[1NaN, NaNs, Inf]"#, r#"[1"NaN", "NaN"s, Inf]"#),
        ] {
            assert_eq!(quoted(json.as_bytes()), expected.as_bytes());
        }
        for json in [
            r#"{"NaN": "Infinity", "b": -1e5, "c": "\"NaN"}"#,
            r#"{"a": "\\", "b": null}"#,
            r#"["no end, NaN"#,
            r#"["\"#,
            r#""#,
        ] {
            assert!(
                matches!(quoted(json.as_bytes()), Cow::Borrowed(same) if same == json.as_bytes())
            );
        }
    }
}
