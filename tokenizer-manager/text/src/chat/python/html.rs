//! Texts that are marked as safe, and MarkupSafe's escapes.

use minijinja::{Error, Value};

use super::super::meter::{Text, charge};
use super::repr;
use super::value::Py;

/// A text, safe if `model` is.
pub(in crate::chat) fn like(model: &Value, text: String) -> Value {
    match model.is_safe() {
        true => Value::from_safe_string(text),
        false => Value::from(text),
    }
}

/// Appends a text, escaped unless it is safe.
pub(in crate::chat) fn push_escaped(out: &mut Text, text: &str, safe: bool) -> Result<(), Error> {
    if safe {
        return out.push_str(text);
    }
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;")?,
            '<' => out.push_str("&lt;")?,
            '>' => out.push_str("&gt;")?,
            '"' => out.push_str("&#34;")?,
            '\'' => out.push_str("&#39;")?,
            c => out.push(c)?,
        }
    }
    Ok(())
}

/// A value's text with escapes, unless it is safe already.
pub(in crate::chat) fn escaped(value: &Value) -> Result<String, Error> {
    let mut out = Text::default();
    match Py::of(value) {
        Py::Str(text) => push_escaped(&mut out, text, value.is_safe())?,
        _ => push_escaped(&mut out, &repr::string(value)?, false)?,
    }
    Ok(out.into_string())
}

/// Without tags and comments, escapes resolved and blanks joined (`Markup.striptags`).
pub(in crate::chat) fn without_tags(text: &str) -> Result<String, Error> {
    let mut rest = text.to_owned();
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        while let Some(start) = rest.find(open) {
            charge(rest.len())?;
            let Some(length) = rest[start..].find(close) else {
                break;
            };
            rest.replace_range(start..start + length + close.len(), "");
        }
    }
    let joined: Vec<&str> = super::text::words(&rest).collect();
    Ok(unescaped(&joined.join(" ")))
}

/// The entities that HTML needs; others stay as they are.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(';').filter(|end| *end < 12);
        match end.and_then(|end| Some((entity(&rest[1..end])?, end))) {
            Some((c, end)) => {
                out.push(c);
                rest = &rest[end + 1..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

fn entity(name: &str) -> Option<char> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => number.parse(),
        };
        return code.ok().and_then(char::from_u32);
    }
    const NAMED: &[(&str, char)] = &[
        ("amp", '&'),
        ("lt", '<'),
        ("gt", '>'),
        ("quot", '"'),
        ("apos", '\''),
        ("nbsp", '\u{a0}'),
    ];
    let known = NAMED.iter().find(|(known, _)| *known == name)?;
    Some(known.1)
}
