//! `str` and `repr` of Python.

use std::fmt::Write as _;

use minijinja::{Error, Value};

use super::super::meter::{Text, charge};
use super::macros::Macro;
use super::number::python_float;
use super::objects::{Namespace, Range};
use super::text::is_printable;
use super::value::{Py, entries, fail, iterate};

/// Values inside each other that are printed: more than any value that can be made has, but for a
/// namespace that holds itself.
const DEEPEST: usize = 400;

/// `str(value)`.
pub(in crate::chat) fn string(value: &Value) -> Result<String, Error> {
    let mut out = Text::default();
    push_str(&mut out, value)?;
    Ok(out.into_string())
}

/// `repr(value)`.
pub(in crate::chat) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = Text::default();
    push_repr(&mut out, value, 0)?;
    Ok(out.into_string())
}

/// Appends `str(value)`.
pub(in crate::chat) fn push_str(out: &mut Text, value: &Value) -> Result<(), Error> {
    match Py::of(value) {
        Py::Str(text) => out.push_str(text),
        Py::Undefined => Ok(()),
        _ => push_repr(out, value, 0),
    }
}

fn push_repr(out: &mut Text, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > DEEPEST {
        return Err(fail("the value is nested too deeply to be printed"));
    }
    match Py::of(value) {
        Py::Str(text) if value.is_safe() => {
            out.push_str("Markup(")?;
            quote(out, text)?;
            out.push(')')
        }
        Py::List => bracketed(out, "[", &iterate(value)?, "]", depth),
        Py::Tuple => {
            let items = iterate(value)?;
            let end = if items.len() == 1 { ",)" } else { ")" };
            bracketed(out, "(", &items, end, depth)
        }
        Py::Dict => mapping(out, &entries(value)?, depth),
        Py::View(view) => {
            out.push_str(view.kind.type_name())?;
            bracketed(out, "([", &view.items, "])", depth)
        }
        _ => match value.downcast_object_ref::<Namespace>() {
            Some(namespace) => {
                let fields = namespace.fields().into_iter();
                let fields: Vec<_> = fields
                    .map(|(name, item)| (Value::from(&*name), item))
                    .collect();
                out.push_str("<Namespace ")?;
                mapping(out, &fields, depth + 1)?;
                out.push('>')
            }
            None => scalar(out, value),
        },
    }
}

fn scalar(out: &mut Text, value: &Value) -> Result<(), Error> {
    match Py::of(value) {
        Py::Undefined => out.push_str("Undefined"),
        Py::None => out.push_str("None"),
        Py::Bool(true) => out.push_str("True"),
        Py::Bool(false) => out.push_str("False"),
        Py::Int(int) => out.push_str(&int.to_string()),
        Py::Float(float) => out.push_str(&python_float(float, ("inf", "nan"))),
        Py::Str(text) => quote(out, text),
        Py::Range(Range {
            start,
            stop,
            step: 1,
        }) => out.push_str(&format!("range({start}, {stop})")),
        Py::Range(Range { start, stop, step }) => {
            out.push_str(&format!("range({start}, {stop}, {step})"))
        }
        Py::Generator(_) => out.push_str("<generator object>"),
        Py::Loop => {
            let field = |name| value.get_attr(name).unwrap_or_default();
            let (index, length) = (field("index"), field("length"));
            out.push_str(&format!("<LoopContext {index}/{length}>"))
        }
        _ => match value.as_object() {
            // An address differs from run to run, so there is nothing to agree with.
            Some(object) => {
                if let Some(declared) = value.downcast_object_ref::<Macro>() {
                    return declared.push_repr(out);
                }
                let name = object.type_name().rsplit("::").next().unwrap_or_default();
                match name {
                    "Function" => out.push_str(&value.to_string()),
                    name => out.push_str(&format!("<{name} object>")),
                }
            }
            None => out.push_str("<object>"),
        },
    }
}

fn bracketed(
    out: &mut Text,
    start: &str,
    items: &[Value],
    end: &str,
    depth: usize,
) -> Result<(), Error> {
    out.push_str(start)?;
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push_str(", ")?;
        }
        push_repr(out, item, depth + 1)?;
    }
    out.push_str(end)
}

fn mapping(out: &mut Text, fields: &[(Value, Value)], depth: usize) -> Result<(), Error> {
    out.push('{')?;
    for (at, (key, item)) in fields.iter().enumerate() {
        if at > 0 {
            out.push_str(", ")?;
        }
        push_repr(out, key, depth + 1)?;
        out.push_str(": ")?;
        push_repr(out, item, depth + 1)?;
    }
    out.push('}')
}

/// A text in quotes, what cannot be printed escaped.
pub(super) fn quote(out: &mut Text, text: &str) -> Result<(), Error> {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    charge(text.len())?;
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push(quote);
    for c in text.chars() {
        match c {
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c == quote || c == '\\' => quoted.extend(['\\', c]),
            c if is_printable(c) => quoted.push(c),
            c => {
                let _ = match u32::from(c) {
                    code @ ..=0xff => write!(quoted, "\\x{code:02x}"),
                    code @ ..=0xffff => write!(quoted, "\\u{code:04x}"),
                    code => write!(quoted, "\\U{code:08x}"),
                };
            }
        }
    }
    quoted.push(quote);
    out.push_str(&quoted)
}

/// `ascii(value)`: `repr` with everything beyond ASCII escaped.
pub(in crate::chat) fn ascii(value: &Value) -> Result<String, Error> {
    let mut out = Text::default();
    for c in repr(value)?.chars() {
        match u32::from(c) {
            ..=0x7f => out.push(c)?,
            code @ ..=0xff => out.push_str(&format!("\\x{code:02x}"))?,
            code @ ..=0xffff => out.push_str(&format!("\\u{code:04x}"))?,
            code => out.push_str(&format!("\\U{code:08x}"))?,
        }
    }
    Ok(out.into_string())
}
