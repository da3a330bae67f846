//! Filters and functions of Jinja2 that minijinja lacks or has with fewer features.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, Value};

/// Adds them to an environment.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("wordcount", word_count);
    environment.add_filter("urlencode", url_encode);
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);
    environment.add_function("namespace", namespace);
    environment.add_function("cycler", |items: Rest<Value>| {
        minijinja_contrib::globals::cycler(items.0)
    });
    environment.add_test("sequence", is_sequence);
}

/// `int(default=0, base=10)`: the default for what is not a number, where minijinja fails.
fn int(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (default, base, kwargs): (Option<Value>, Option<u32>, Kwargs) = from_args(&args)?;
    let default = default.or(kwargs.get("default")?).unwrap_or(Value::from(0));
    let base = base.or(kwargs.get("base")?).unwrap_or(10);
    kwargs.assert_all_used()?;
    if let Some(text) = value.as_str() {
        return Ok(
            parse_int(text, base).map_or_else(|| truncate(parse_float(text), default), Value::from)
        );
    }
    match value.kind() {
        ValueKind::Bool => Ok(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Ok(value.clone()),
        ValueKind::Number => Ok(truncate(f64::try_from(value.clone()).ok(), default)),
        _ => Ok(default),
    }
}

/// `float(default=0.0)`: the default for what is not a number, where minijinja fails.
fn float(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (default, kwargs): (Option<Value>, Kwargs) = from_args(&args)?;
    let default = default
        .or(kwargs.get("default")?)
        .unwrap_or(Value::from(0.0));
    kwargs.assert_all_used()?;
    let number = match (value.as_str(), value.kind()) {
        (Some(text), _) => parse_float(text),
        (None, ValueKind::Bool) => Some(f64::from(u8::from(value.is_true()))),
        (None, ValueKind::Number) => f64::try_from(value.clone()).ok(),
        _ => None,
    };
    Ok(number.map_or(default, Value::from))
}

fn parse_int(text: &str, base: u32) -> Option<i64> {
    let text = text.trim();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = match base {
        2 => digits.trim_start_matches("0b"),
        8 => digits.trim_start_matches("0o"),
        16 => digits.trim_start_matches("0x"),
        10 => digits,
        _ => return None,
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    i64::from_str_radix(&format!("{sign}{}", digits.replace('_', "")), base).ok()
}

fn parse_float(text: &str) -> Option<f64> {
    text.trim().replace('_', "").parse().ok()
}

fn truncate(number: Option<f64>, default: Value) -> Value {
    match number {
        Some(number) if number.abs() < 9e15 => Value::from(number.trunc() as i64),
        _ => default,
    }
}

/// The number of words (`\w+`).
fn word_count(text: &str) -> usize {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .count()
}

/// Percent-encodes a string for the path of an URL.
fn url_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Escapes for HTML with MarkupSafe's choice of entities; minijinja's differs and escapes slashes
/// too.
fn escape(value: &Value) -> Value {
    if value.is_safe() {
        return value.clone();
    }
    let text = value.to_string();
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    Value::from_safe_string(out)
}

/// `namespace(mapping, name=value, …)`; minijinja takes only one of both.
fn namespace(args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut fields = Vec::new();
    for map in args.into_values() {
        if map.kind() != ValueKind::Map {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "namespace takes mappings and keyword arguments",
            ));
        }
        for key in map.try_iter()?.checked() {
            let key = key?;
            let field = map.get_item(&key)?;
            fields.push((key, field));
        }
    }
    let fields = Value::from_pairs(fields);
    let (fields,): (Option<ValueOrKwargs>,) = from_args(std::slice::from_ref(&fields))?;
    minijinja::functions::namespace(fields)
}

/// Whatever has a length and can be subscripted, so strings and mappings as well
/// (`jinja2/tests.py`).
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Undefined | String | Seq | Map | Iterable)
}
