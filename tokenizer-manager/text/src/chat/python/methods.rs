//! Methods of Python's `str`, `dict`, `list` and numbers.
//!
//! Methods that change their object are refused: transformers renders in an immutable sandbox.

mod find;
mod split;
mod text;

pub(in crate::chat) use split::replaced;
pub(in crate::chat) use text::justified;

use minijinja::value::Tuple;
use minijinja::{Error, ErrorKind, State, Value};

use super::args::{Args, required, whole};
use super::compare;
use super::names;
use super::objects::{View, ViewKind};
use super::value::{Number, Py, entries, fail, hashable, iterate, list_of, look_up, size};

/// Calls a method. This is the environment's callback; the engine has no methods of its own.
pub(in crate::chat) fn call(
    _: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(name) = names::readable(value, name) else {
        return match Py::of(value) {
            Py::Undefined => Err(super::value::undefined()),
            _ if names::changes(value, name) => Err(fail(format!(
                "{name}() is refused: chat templates change no value"
            ))),
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        };
    };
    let args = Args::new(args)?;
    match Py::of(value) {
        Py::Str(text) => text::call(value, text, name, args),
        Py::Dict => dict(value, name, args),
        Py::List | Py::Tuple | Py::Range(_) => sequence(value, name, args),
        py => number(py, name, args),
    }
}

fn dict(value: &Value, name: &str, args: Args) -> Result<Value, Error> {
    match name {
        "get" => {
            let [key, default] = args.unnamed()?;
            let key = required(key)?;
            hashable(&key)?;
            let found = look_up(value, &key);
            Ok(found.or(default).unwrap_or(Value::from(())))
        }
        "fromkeys" => from_keys(args),
        "keys" | "values" | "items" | "copy" => {
            let [] = args.unnamed()?;
            match name {
                "copy" => Ok(value.clone()),
                "keys" => view(value, ViewKind::Keys),
                "values" => view(value, ViewKind::Values),
                _ => view(value, ViewKind::Items),
            }
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// Computes `dict.fromkeys(keys, value)`.
pub(in crate::chat) fn from_keys(args: Args) -> Result<Value, Error> {
    let [keys, item] = args.unnamed()?;
    let item = item.unwrap_or(Value::from(()));
    let keys = iterate(&required(keys)?)?.into_iter();
    super::value::dict(keys.map(|key| (key, item.clone())).collect())
}

/// Returns a view of a mapping.
pub(in crate::chat) fn view(map: &Value, kind: ViewKind) -> Result<Value, Error> {
    let items = entries(map)?.into_iter().map(|(key, item)| match kind {
        ViewKind::Keys => key,
        ViewKind::Values => item,
        ViewKind::Items => Value::from(Tuple::from([key, item])),
    });
    let items = items.collect();
    // Pairs of the mapping's entries nest only one level deeper than the mapping.
    Ok(Value::from_object(View { kind, items }))
}

fn sequence(value: &Value, name: &str, args: Args) -> Result<Value, Error> {
    match name {
        "copy" => {
            let [] = args.unnamed()?;
            list_of(Py::of(value), iterate(value)?)
        }
        "count" => {
            let [wanted] = args.unnamed()?;
            let wanted = required(wanted)?;
            let mut count = 0usize;
            for item in iterate(value)? {
                count += usize::from(compare::equal(&item, &wanted)?);
            }
            Ok(size(count))
        }
        "index" => {
            let [wanted, start, stop] = args.unnamed()?;
            let wanted = required(wanted)?;
            let items = iterate(value)?;
            let start = find::bound(whole(start.as_ref(), 0)?, items.len());
            let stop = find::bound(whole(stop.as_ref(), i128::MAX)?, items.len());
            for (at, item) in items.iter().enumerate().take(stop).skip(start) {
                if compare::equal(item, &wanted)? {
                    return Ok(size(at));
                }
            }
            Err(fail("the value is not in the list"))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn number(py: Py<'_>, name: &str, args: Args) -> Result<Value, Error> {
    let [] = args.unnamed()?;
    match (name, py.number()) {
        ("bit_length", Some(Number::Int(value))) => Ok(Value::from(
            i128::BITS - value.unsigned_abs().leading_zeros(),
        )),
        ("is_integer", Some(Number::Float(value))) => Ok(Value::from(value.fract() == 0.0)),
        _ => Err(fail(format!("{name}() is not supported in chat templates"))),
    }
}
