//! `tojson` with Hugging Face's definition: Python's `json.dumps` with `ensure_ascii=False`.
//!
//! Jinja2's own filter escapes `<`, `>`, `&` and `'` for HTML. Chat templates are written for
//! transformers, which replaces it (`transformers/utils/chat_template_utils.py`).

use minijinja::{Error, ErrorKind, State, Value};

use super::super::super::meter::{Text, charge};
use super::super::args::{Args, count};
use super::super::number::python_float;
use super::super::value::{Py, entries, fail, iterate};
use super::sorting::ordered;

/// Makes the filter `tojson(x, ensure_ascii=False, indent=None, separators=None,
/// sort_keys=False)`. The filter fails on values that JSON cannot express and on nesting beyond
/// `depth_limit`.
pub(in crate::chat) fn tojson(
    depth_limit: usize,
) -> impl Fn(&mut State<'_, '_>, &Value, Args) -> Result<Value, Error> + Send + Sync + 'static {
    move |_, value, args| {
        let [ensure_ascii, indent, separators, sort_keys] =
            args.bind(["ensure_ascii", "indent", "separators", "sort_keys"])?;
        let indent = match indent.as_ref().map(|indent| (Py::of(indent), indent)) {
            None | Some((Py::None, _)) => None,
            Some((Py::Str(unit), _)) => Some(unit.to_owned()),
            Some((_, width)) => {
                let width = count(Some(width), 0)?;
                charge(width)?;
                Some(" ".repeat(width))
            }
        };
        let (item, key) = match separators.filter(|separators| !separators.is_none()) {
            Some(separators) => separator_pair(&separators)?,
            None if indent.is_none() => (", ".to_owned(), ": ".to_owned()),
            None => (",".to_owned(), ": ".to_owned()),
        };
        let mut writer = Writer {
            out: Text::default(),
            ensure_ascii: ensure_ascii.is_some_and(|flag| flag.is_true()),
            indent,
            item,
            key,
            sort_keys: sort_keys.is_some_and(|flag| flag.is_true()),
            depth_limit,
        };
        writer.value(value, 0)?;
        Ok(Value::from(writer.out.into_string()))
    }
}

fn separator_pair(separators: &Value) -> Result<(String, String), Error> {
    match iterate(separators)?.as_slice() {
        [item, key] => match (item.as_str(), key.as_str()) {
            (Some(item), Some(key)) => Ok((item.to_owned(), key.to_owned())),
            _ => Err(fail("the separators of tojson are strings")),
        },
        _ => Err(fail("tojson takes two separators")),
    }
}

struct Writer {
    out: Text,
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
    depth_limit: usize,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > self.depth_limit {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: the value is nested too deeply",
            ));
        }
        match Py::of(value) {
            Py::None => self.out.push_str("null"),
            Py::Bool(true) => self.out.push_str("true"),
            Py::Bool(false) => self.out.push_str("false"),
            Py::Int(number) => self.out.push_str(&number.to_string()),
            Py::Float(number) => self
                .out
                .push_str(&python_float(number, ("Infinity", "NaN"))),
            Py::Str(text) => self.string(text),
            Py::List | Py::Tuple => self.sequence(value, depth),
            Py::Dict => self.map(value, depth),
            other => Err(Error::new(
                ErrorKind::BadSerialization,
                format!(
                    "Object of type {} is not JSON serializable",
                    other.type_name()
                ),
            )),
        }
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[')?;
        let items = iterate(value)?;
        for (at, item) in items.iter().enumerate() {
            self.separate(at > 0, depth + 1)?;
            self.value(item, depth + 1)?;
        }
        self.close(!items.is_empty(), depth, ']')
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut fields = entries(value)?;
        if self.sort_keys {
            fields = ordered(fields, false)?;
        }
        self.out.push('{')?;
        for (at, (key, item)) in fields.iter().enumerate() {
            self.separate(at > 0, depth + 1)?;
            match Py::of(key) {
                Py::Str(text) => self.string(text)?,
                Py::None | Py::Bool(_) | Py::Int(_) | Py::Float(_) => {
                    self.out.push('"')?;
                    self.value(key, depth + 1)?;
                    self.out.push('"')?;
                }
                other => {
                    return Err(Error::new(
                        ErrorKind::BadSerialization,
                        format!(
                            "keys must be str, int, float, bool or None, not {}",
                            other.type_name()
                        ),
                    ));
                }
            }
            self.out.push_str(&self.key)?;
            self.value(item, depth + 1)?;
        }
        self.close(!fields.is_empty(), depth, '}')
    }

    fn separate(&mut self, not_first: bool, depth: usize) -> Result<(), Error> {
        if not_first {
            self.out.push_str(&self.item)?;
        }
        self.new_line(depth)
    }

    fn close(&mut self, any: bool, depth: usize, bracket: char) -> Result<(), Error> {
        if any {
            self.new_line(depth)?;
        }
        self.out.push(bracket)
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            self.out.push('\n')?;
            self.out.repeat(indent, depth)?;
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.out.push('"')?;
        let mut plain = 0;
        for (at, c) in text.char_indices() {
            let escape = match c {
                '"' => "\\\"",
                '\\' => "\\\\",
                '\n' => "\\n",
                '\r' => "\\r",
                '\t' => "\\t",
                '\u{8}' => "\\b",
                '\u{c}' => "\\f",
                c if c < ' ' || (self.ensure_ascii && c > '~') => "",
                _ => continue,
            };
            self.out.push_str(&text[plain..at])?;
            self.out.push_str(escape)?;
            if escape.is_empty() {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    self.out.push_str(&format!("\\u{unit:04x}"))?;
                }
            }
            plain = at + c.len_utf8();
        }
        self.out.push_str(&text[plain..])?;
        self.out.push('"')
    }
}
