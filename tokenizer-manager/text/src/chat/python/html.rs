//! Safe texts, and MarkupSafe's escapes.

use minijinja::{Error, Value};

use super::super::meter::Text;
use super::repr;
use super::value::Py;

/// Makes a text that is safe if `model` is.
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

/// Returns a value's text with escapes, unless it is safe already.
pub(in crate::chat) fn escaped(value: &Value) -> Result<String, Error> {
    let mut out = Text::default();
    match Py::of(value) {
        Py::Str(text) => push_escaped(&mut out, text, value.is_safe())?,
        _ => push_escaped(&mut out, &repr::string(value)?, false)?,
    }
    Ok(out.into_string())
}
