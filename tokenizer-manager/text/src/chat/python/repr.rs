//! Python's `str` and `repr`.

use minijinja::{Error, Value};

use super::super::meter::Text;
use super::macros::Macro;
use super::number::python_float;
use super::objects::{Namespace, Range};
use super::text::is_printable;
use super::value::{Py, entries, fail, iterate};

/// Maximum nesting of values that are printed. Only a namespace that holds itself nests deeper.
const DEEPEST: usize = 400;

/// Returns `str(value)`.
pub(in crate::chat) fn string(value: &Value) -> Result<String, Error> {
    let mut out = Text::default();
    push_str(&mut out, value)?;
    Ok(out.into_string())
}

/// Returns `repr(value)`.
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
            // No address is printed: it differs from run to run, so no test could compare it with
            // Python's.
            Some(object) => {
                if let Some(declared) = value.downcast_object_ref::<Macro>() {
                    out.push_str("<Macro ")?;
                    match declared.declared_name() {
                        Some(name) => quote(out, name)?,
                        None => out.push_str("anonymous")?,
                    }
                    return out.push('>');
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

/// Appends a text in quotes, with unprintable characters escaped.
fn quote(out: &mut Text, text: &str) -> Result<(), Error> {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote)?;
    let mut plain = 0;
    for (at, c) in text.char_indices() {
        let escape = match c {
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            c if c == quote || c == '\\' => format!("\\{c}"),
            c if is_printable(c) => continue,
            c => match u32::from(c) {
                code @ ..=0xff => format!("\\x{code:02x}"),
                code @ ..=0xffff => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            },
        };
        out.push_str(&text[plain..at])?;
        out.push_str(&escape)?;
        plain = at + c.len_utf8();
    }
    out.push_str(&text[plain..])?;
    out.push(quote)
}

/// Returns `ascii(value)`: `repr` with all characters beyond ASCII escaped.
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
