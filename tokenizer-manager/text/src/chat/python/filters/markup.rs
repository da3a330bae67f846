//! Filters for HTML and addresses.

use minijinja::{Error, State, Value};

use super::super::super::meter::Text;
use super::super::args::{Args, text};
use super::super::html;
use super::super::repr;
use super::super::value::{Py, entries, fail, iterate};

type Result<T, E = Error> = std::result::Result<T, E>;

pub(super) fn escape(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    html::escaped(value).map(Value::from_safe_string)
}

pub(super) fn forceescape(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    let text = Value::from(repr::string(value)?);
    html::escaped(&text).map(Value::from_safe_string)
}

pub(super) fn safe(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    repr::string(value).map(Value::from_safe_string)
}

pub(super) fn striptags(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    html::without_tags(&repr::string(value)?).map(Value::from)
}

pub(super) fn xmlattr(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [space] = args.bind(["autospace"])?;
    let space = space.is_none_or(|space| space.is_true());
    if Py::of(value) != Py::Dict {
        return Err(fail("xmlattr needs a mapping"));
    }
    let mut out = Text::default();
    for (key, item) in entries(value)? {
        if item.is_none() || item.is_undefined() {
            continue;
        }
        let name = text(&key)?;
        let breaks = |c: char| {
            matches!(
                c,
                ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}' | '/' | '>' | '='
            )
        };
        if name.contains(breaks) {
            return Err(fail(format!(
                "invalid character in attribute name: {name:?}"
            )));
        }
        if space || !out.as_str().is_empty() {
            out.push(' ')?;
        }
        html::push_escaped(&mut out, name, key.is_safe())?;
        out.push_str("=\"")?;
        out.push_str(&html::escaped(&item)?)?;
        out.push('"')?;
    }
    Ok(Value::from(out.into_string()))
}

pub(super) fn urlencode(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    let mut out = Text::default();
    let pairs = match Py::of(value) {
        Py::Dict => entries(value)?,
        Py::List | Py::Tuple | Py::View(_) | Py::Generator(_) | Py::Range(_) | Py::Undefined => {
            let pairs = iterate(value)?
                .into_iter()
                .map(|pair| match iterate(&pair)?.as_slice() {
                    [key, item] => Ok((key.clone(), item.clone())),
                    _ => Err(fail("urlencode needs pairs")),
                });
            pairs.collect::<Result<_>>()?
        }
        _ => {
            quote(&mut out, &repr::string(value)?, false)?;
            return Ok(Value::from(out.into_string()));
        }
    };
    for (at, (key, item)) in pairs.iter().enumerate() {
        if at > 0 {
            out.push('&')?;
        }
        quote(&mut out, &repr::string(key)?, true)?;
        out.push('=')?;
        quote(&mut out, &repr::string(item)?, true)?;
    }
    Ok(Value::from(out.into_string()))
}

/// Percent-encodes a text, for a path or for a query.
fn quote(out: &mut Text, text: &str, query: bool) -> Result<()> {
    for byte in text.bytes() {
        match byte {
            b' ' if query => out.push('+')?,
            b'/' if !query => out.push('/')?,
            b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte))?,
            byte if byte.is_ascii_alphanumeric() => out.push(char::from(byte))?,
            byte => out.push_str(&format!("%{byte:02X}"))?,
        }
    }
    Ok(())
}
