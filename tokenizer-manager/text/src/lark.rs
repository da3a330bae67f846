//! Expressions of llguidance's variant of Lark, for grammars of calls and of structural tags.

use serde_json::Value;

/// Returns the expression of a text.
#[must_use]
pub fn literal(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Returns the regular expression of a text, for use between slashes.
#[must_use]
pub fn regex_of(text: &str) -> String {
    let mut regex = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_ascii_alphanumeric() => regex.push(c),
            c => regex.push_str(&format!("\\x{{{:x}}}", u32::from(c))),
        }
    }
    regex
}

/// Returns the regular expression of one of several texts, for use between slashes.
#[must_use]
pub fn one_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let texts: Vec<_> = texts.into_iter().map(regex_of).collect();
    format!("({})", texts.join("|"))
}

/// Returns the terminal of texts, not empty, that contain none of these.
#[must_use]
pub fn text_without<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    format!("/(?s:.)+/ & ~/(?s:.*){}(?s:.*)/", one_of(texts))
}
