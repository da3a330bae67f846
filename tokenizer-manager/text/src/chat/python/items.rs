//! Attributes, subscripts and slices, looked up as in Jinja2's environment.

use minijinja::{Error, Value};

use super::super::meter::{ELEMENT, charge, charge_reading};
use super::html::like;
use super::names;
use super::objects::{Bound, Range};
use super::value::{
    Number, Py, charge_nested, fail, hashable, int, length, look_up, sequence_of, size, undefined,
};

/// Computes `value.name`: an attribute, or else an item of that name.
pub(in crate::chat) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    let found = own_attribute(value, name)?;
    let found = found.or_else(|| match Py::of(value) {
        // Python finds the method, and the sandbox hides it.
        Py::Dict if names::changes(value, name) => None,
        Py::Dict => look_up(value, &Value::from(name)),
        _ => None,
    });
    Ok(found.unwrap_or_default())
}

/// Returns an attribute, never an item.
pub(in crate::chat) fn own_attribute(value: &Value, name: &str) -> Result<Option<Value>, Error> {
    let py = Py::of(value);
    if py == Py::Undefined {
        return Err(undefined());
    }
    if let Some(method) = names::readable(value, name) {
        let object = value.clone();
        let bound = Value::from_object(Bound { object, method });
        charge_nested(&bound)?;
        return Ok(Some(bound));
    }
    Ok(match (py, name) {
        (_, "real") if py.number().is_some() => match py.number() {
            Some(Number::Int(value)) => Some(int(value)),
            _ => Some(value.clone()),
        },
        (Py::Dict | Py::List, _) => None,
        _ if name.starts_with('_') => None,
        _ => value
            .as_object()
            .and_then(|object| object.get_value(&Value::from(name))),
    })
}

/// Computes `value[key]`: an item, or else an attribute of that name.
pub(in crate::chat) fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    let py = Py::of(value);
    let found = match (py, Py::of(key)) {
        (Py::Undefined, _) => return Err(undefined()),
        (Py::Dict, _) => match hashable(key) {
            Ok(()) => look_up(value, key),
            Err(_) => None,
        },
        (Py::Str(_) | Py::List | Py::Tuple | Py::Range(_), key) => match key.int() {
            Some(at) => at_index(value, py, at)?,
            None => None,
        },
        _ => None,
    };
    match (found, key.as_str()) {
        (Some(found), _) => Ok(found),
        (None, Some(name)) => Ok(own_attribute(value, name)?.unwrap_or_default()),
        (None, None) => Ok(Value::UNDEFINED),
    }
}

fn at_index(value: &Value, py: Py<'_>, at: i128) -> Result<Option<Value>, Error> {
    let at = match at < 0 {
        true => at.saturating_add(length(value)? as i128),
        false => at,
    };
    let Ok(at) = usize::try_from(at) else {
        return Ok(None);
    };
    Ok(match py {
        Py::Str(text) => {
            charge_reading(text.len())?;
            let c = text.chars().nth(at);
            c.map(|c| like(value, c.to_string()))
        }
        Py::Range(range) => range.at(at).map(int),
        _ => value
            .as_object()
            .and_then(|object| object.get_value(&Value::from(at))),
    })
}

/// Computes `value[start:stop:step]`.
pub(in crate::chat) fn slice(value: &Value, bounds: [&Value; 3]) -> Result<Value, Error> {
    let py = Py::of(value);
    match py {
        Py::Undefined => return Err(undefined()),
        Py::Str(_) | Py::List | Py::Tuple | Py::Range(_) => {}
        _ => {
            let name = py.type_name();
            return Err(fail(format!("'{name}' object cannot be sliced")));
        }
    }
    let mut given = [None; 3];
    for (given, bound) in given.iter_mut().zip(bounds) {
        match Py::of(bound) {
            Py::None => {}
            bound => match bound.int() {
                Some(bound) => *given = Some(bound),
                None => return Err(fail("slice indices must be integers or None")),
            },
        }
    }
    let [start, stop, step] = given;
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(fail("slice step cannot be zero"));
    }
    let range = places(length(value)?, start, stop, step);
    match py {
        Py::Str(text) => Ok(like(value, characters(text, &range)?)),
        Py::Range(all) => {
            // A place beyond 128 bits has no element.
            let place = |at: i128| all.start.saturating_add(all.step.saturating_mul(at));
            Ok(Value::from_object(Range {
                start: place(range.start),
                stop: place(range.stop),
                step: all.step.saturating_mul(step),
            }))
        }
        _ => {
            charge(range.len().saturating_mul(ELEMENT))?;
            let object = value.as_object();
            let chosen = indices(&range).filter_map(|at| object?.get_value(&size(at)));
            sequence_of(py, chosen.collect())
        }
    }
}

fn indices(range: &Range) -> impl Iterator<Item = usize> + use<> {
    range.iter().filter_map(|at| usize::try_from(at).ok())
}

fn characters(text: &str, range: &Range) -> Result<String, Error> {
    let start = usize::try_from(range.start).unwrap_or(0);
    if text.is_ascii() {
        charge(range.len())?;
        return Ok(match range.step {
            1 => text[start..start + range.len()].to_owned(),
            _ => indices(range)
                .map(|at| char::from(text.as_bytes()[at]))
                .collect(),
        });
    }
    if range.step == 1 {
        charge(text.len())?;
        return Ok(text.chars().skip(start).take(range.len()).collect());
    }
    charge(text.len().saturating_mul(size_of::<char>()))?;
    let chars: Vec<char> = text.chars().collect();
    Ok(indices(range).filter_map(|at| chars.get(at)).collect())
}

/// Returns the places that a slice of `length` elements takes (`slice.indices`).
fn places(length: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> Range {
    let length = length as i128;
    let (lowest, highest) = match step > 0 {
        true => (0, length),
        false => (-1, length - 1),
    };
    let place = |bound: i128| {
        let bound = match bound < 0 {
            true => bound.saturating_add(length),
            false => bound,
        };
        bound.clamp(lowest, highest)
    };
    let (first, last) = match step > 0 {
        true => (lowest, highest),
        false => (highest, lowest),
    };
    Range {
        start: start.map_or(first, place),
        stop: stop.map_or(last, place),
        step,
    }
}
