//! Methods of Python's `str`, `dict` and `list` that minijinja-contrib's `pycompat` lacks.
//!
//! Mutating methods stay unknown on purpose: transformers renders in an immutable sandbox, where
//! they are refused.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::meter;

/// The environment's callback for methods the engine does not know.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    meter::method(value, method, args)?;
    let own = match value.kind() {
        ValueKind::String => string(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq => sequence(value, method, args)?,
        ValueKind::Map => map(value, method, args)?,
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn string(s: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "partition" => {
            let (separator,) = from_args(args)?;
            partition(s, separator)?
        }
        "rpartition" => {
            let (separator,) = from_args(args)?;
            rpartition(s, separator)?
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(s.strip_prefix(prefix).unwrap_or(s))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(s.strip_suffix(suffix).unwrap_or(s))
        }
        "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            rsplit(s, separator, limit)?
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let found = if method == "index" {
                s.find(what)
            } else {
                s.rfind(what)
            };
            let byte = found.ok_or_else(|| invalid("substring not found"))?;
            Value::from(s[..byte].chars().count())
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = s.split_at(usize::from(s.starts_with(['+', '-'])));
            let zeros = padding(width, s)?;
            Value::from(format!("{sign}{}{digits}", "0".repeat(zeros)))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            justify(s, method, width, fill.unwrap_or(" "))?
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(s.to_lowercase())
        }
        "swapcase" => {
            let () = from_args(args)?;
            Value::from(s.chars().map(swap_case).collect::<String>())
        }
        _ => return Ok(None),
    }))
}

fn sequence(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            for (index, item) in value.try_iter()?.checked().enumerate() {
                if item? == *what {
                    return Ok(Some(Value::from(index)));
                }
            }
            Err(invalid("value is not in list"))
        }
        "copy" => Ok(Some(value.clone())),
        _ => Ok(None),
    }
}

/// The views of a mapping as lists: unlike pycompat's iterators they have a length, which
/// `loop.last` needs.
fn map(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if !matches!(method, "keys" | "values" | "items" | "copy") {
        return Ok(None);
    }
    let () = from_args(args)?;
    if method == "copy" {
        return Ok(Some(value.clone()));
    }
    let entry = |key: Result<Value, Error>| {
        let key = key?;
        Ok(match method {
            "keys" => key,
            "values" => value.get_item(&key)?,
            _ => {
                let item = value.get_item(&key)?;
                Value::from(Tuple::from([key, item]))
            }
        })
    };
    let entries: Vec<Value> = value
        .try_iter()?
        .checked()
        .map(entry)
        .collect::<Result<_, Error>>()?;
    Ok(Some(Value::from(entries)))
}

fn partition(s: &str, separator: &str) -> Result<Value, Error> {
    not_empty(separator)?;
    Ok(match s.split_once(separator) {
        Some((head, tail)) => triple(head, separator, tail),
        None => triple(s, "", ""),
    })
}

fn rpartition(s: &str, separator: &str) -> Result<Value, Error> {
    not_empty(separator)?;
    Ok(match s.rsplit_once(separator) {
        Some((head, tail)) => triple(head, separator, tail),
        None => triple("", "", s),
    })
}

fn triple(a: &str, b: &str, c: &str) -> Value {
    Value::from(Tuple::from([
        Value::from(a),
        Value::from(b),
        Value::from(c),
    ]))
}

fn rsplit(s: &str, separator: Option<&str>, limit: Option<i64>) -> Result<Value, Error> {
    let limit = usize::try_from(limit.unwrap_or(-1)).unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = match separator {
        Some(separator) => {
            not_empty(separator)?;
            s.rsplitn(limit.saturating_add(1), separator).collect()
        }
        None => rsplit_whitespace(s, limit),
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

/// The words of `s` from the right, at most `limit` of them, then what is left of it.
fn rsplit_whitespace(s: &str, limit: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = s.trim_end();
    while !rest.is_empty() {
        let start = match rest.rfind(char::is_whitespace) {
            Some(at) if parts.len() < limit => {
                at + rest[at..].chars().next().map_or(1, char::len_utf8)
            }
            _ => 0,
        };
        parts.push(&rest[start..]);
        rest = rest[..start].trim_end();
    }
    parts
}

fn justify(s: &str, method: &str, width: usize, fill: &str) -> Result<Value, Error> {
    let total = padding(width, s)?;
    let left = match method {
        "ljust" => 0,
        "rjust" => total,
        // CPython puts the odd one to the left when the width is odd.
        _ => total / 2 + (total & width & 1),
    };
    Ok(Value::from(format!(
        "{}{s}{}",
        fill.repeat(left),
        fill.repeat(total - left)
    )))
}

/// Characters missing to `width`, refused where a template asks for absurdly many.
fn padding(width: usize, s: &str) -> Result<usize, Error> {
    const WIDEST: usize = 1 << 16;
    if width > WIDEST {
        return Err(invalid("the padded string is too long"));
    }
    Ok(width.saturating_sub(s.chars().count()))
}

fn swap_case(c: char) -> char {
    if c.is_uppercase() {
        c.to_lowercase().next().unwrap_or(c)
    } else {
        c.to_uppercase().next().unwrap_or(c)
    }
}

fn not_empty(separator: &str) -> Result<(), Error> {
    if separator.is_empty() {
        Err(invalid("empty separator"))
    } else {
        Ok(())
    }
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
