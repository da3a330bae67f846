//! `tojson` as Hugging Face defines it: Python's `json.dumps` with `ensure_ascii=False`.
//!
//! Jinja2's own filter escapes `<`, `>`, `&` and `'` for HTML; chat templates are written against
//! transformers, which replaces it (`transformers/utils/chat_template_utils.py`).

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, Value};

use super::meter;

/// The filter `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`. Fails
/// on values that JSON cannot express and on nesting beyond `depth_limit`.
pub(super) fn tojson(
    depth_limit: usize,
) -> impl Fn(&Value, Rest<ValueOrKwargs>) -> Result<String, Error> + Send + Sync + 'static {
    move |value, args| {
        let args = args.into_values();
        let (ensure_ascii, indent, separators, sort_keys, kwargs): Args = from_args(&args)?;
        let argument = |positional: Option<Value>, name: &str| -> Result<Value, Error> {
            let named: Option<Value> = kwargs.get(name)?;
            Ok(positional.or(named).unwrap_or(Value::from(())))
        };
        let ensure_ascii = argument(ensure_ascii, "ensure_ascii")?.is_true();
        let indent = argument(indent, "indent")?;
        let separators = argument(separators, "separators")?;
        let sort_keys = argument(sort_keys, "sort_keys")?.is_true();
        kwargs.assert_all_used()?;
        let indent = match indent.kind() {
            ValueKind::None | ValueKind::Undefined => None,
            ValueKind::String => Some(indent.to_string()),
            _ => Some(" ".repeat(i64::try_from(indent)?.clamp(0, MAX_INDENT) as usize)),
        };
        let (item, key) = match separators.kind() {
            ValueKind::None | ValueKind::Undefined if indent.is_none() => {
                (", ".to_owned(), ": ".to_owned())
            }
            ValueKind::None | ValueKind::Undefined => (",".to_owned(), ": ".to_owned()),
            _ => (
                separators.get_item_by_index(0)?.to_string(),
                separators.get_item_by_index(1)?.to_string(),
            ),
        };
        let mut writer = Writer {
            out: String::new(),
            ensure_ascii,
            indent,
            item,
            key,
            sort_keys,
            depth_limit,
        };
        writer.value(value, 0)?;
        Ok(writer.out)
    }
}

/// The optional positional arguments of `tojson` in order, then its keyword arguments.
type Args = (
    Option<Value>,
    Option<Value>,
    Option<Value>,
    Option<Value>,
    Kwargs,
);

const MAX_INDENT: i64 = 64;

struct Writer {
    out: String,
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
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("Object of type {kind} is not JSON serializable"),
                ));
            }
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            let _ = write!(self.out, "{value}");
        } else {
            let float = f64::try_from(value.clone())?;
            self.out.push_str(&python_float(float, ("Infinity", "NaN")));
        }
        Ok(())
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut any = false;
        for item in value.try_iter()?.checked() {
            self.separate(any, depth + 1)?;
            any = true;
            self.value(&item?, depth + 1)?;
        }
        self.close(any, depth, ']')
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
        if self.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        for (index, key) in keys.iter().enumerate() {
            self.separate(index > 0, depth + 1)?;
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default())?,
                ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                    self.out.push('"');
                    self.value(key, depth + 1)?;
                    self.out.push('"');
                }
                kind => {
                    return Err(Error::new(
                        ErrorKind::BadSerialization,
                        format!("keys must be str, int, float, bool or None, not {kind}"),
                    ));
                }
            }
            self.out.push_str(&self.key);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.close(!keys.is_empty(), depth, '}')
    }

    fn separate(&mut self, not_first: bool, depth: usize) -> Result<(), Error> {
        meter::charge(self.item.len() + self.key.len())?;
        if not_first {
            self.out.push_str(&self.item);
        }
        self.new_line(depth)
    }

    fn close(&mut self, any: bool, depth: usize, bracket: char) -> Result<(), Error> {
        if any {
            self.new_line(depth)?;
        }
        self.out.push(bracket);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            meter::charge(depth.saturating_mul(indent.len()))?;
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        meter::charge(text.len())?;
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && (c > '~')) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
        Ok(())
    }
}

/// A float as Python's `repr` prints it: the shortest digits that read back, with an exponent from
/// 1e16 and below 1e-4. `names` are the words for infinity and not-a-number, which JSON and `repr`
/// spell differently.
pub(super) fn python_float(value: f64, names: (&str, &str)) -> String {
    if value.is_nan() {
        return names.1.to_owned();
    }
    if value.is_infinite() {
        return format!("{}{}", if value < 0.0 { "-" } else { "" }, names.0);
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}
