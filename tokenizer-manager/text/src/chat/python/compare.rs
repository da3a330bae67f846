//! Comparisons as in Python.

use std::cmp::Ordering;

use minijinja::{Error, Value};

use super::super::meter::{charge, charge_reading};
use super::value::{Number, Py, entries, fail, hashable, iterate, length, look_up, undefined};

/// Maximum nesting of values that are compared.
const DEEPEST: usize = 512;

/// Returns true if two values are equal.
pub(in crate::chat) fn equal(a: &Value, b: &Value) -> Result<bool, Error> {
    equal_at(a, b, 0)
}

fn equal_at(a: &Value, b: &Value, depth: usize) -> Result<bool, Error> {
    charge(1)?;
    if depth > DEEPEST {
        return Err(fail("the values are nested too deeply to be compared"));
    }
    let all = |x: &[Value], y: &[Value]| -> Result<bool, Error> {
        if x.len() != y.len() {
            return Ok(false);
        }
        for (x, y) in x.iter().zip(y) {
            if !equal_at(x, y, depth + 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    Ok(match (Py::of(a), Py::of(b)) {
        (Py::Undefined, Py::Undefined) | (Py::None, Py::None) => true,
        (Py::Str(x), Py::Str(y)) => {
            charge_reading(x.len().min(y.len()))?;
            x == y
        }
        (Py::List, Py::List) | (Py::Tuple, Py::Tuple) => {
            length(a)? == length(b)? && all(&iterate(a)?, &iterate(b)?)?
        }
        (Py::Range(x), Py::Range(y)) => x.elements() == y.elements(),
        (Py::Dict, Py::Dict) => {
            if length(a)? != length(b)? {
                return Ok(false);
            }
            for (key, item) in entries(a)? {
                match look_up(b, &key) {
                    Some(other) if equal_at(&item, &other, depth + 1)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Py::View(x), Py::View(y)) if x.kind == y.kind => {
            for item in &x.items {
                if !contains(b, item)? {
                    return Ok(false);
                }
            }
            x.items.len() == y.items.len()
        }
        (x, y) => match x.number().zip(y.number()) {
            Some((x, y)) => numbers(x, y) == Some(Ordering::Equal),
            None => same(a, b),
        },
    })
}

/// Returns true if both are one object.
pub(in crate::chat) fn same(a: &Value, b: &Value) -> bool {
    match (Py::of(a), Py::of(b)) {
        (Py::Undefined, Py::Undefined) => false,
        (Py::None, Py::None) => true,
        _ => minijinja::tests::is_sameas(a, b),
    }
}

fn numbers(a: Number, b: Number) -> Option<Ordering> {
    let mixed = |x: i128, y: f64| match y.abs() < 1e38 {
        // The whole part decides, or else the fraction.
        true => Some(
            x.cmp(&(y.floor() as i128))
                .then(0.0f64.partial_cmp(&(y - y.floor()))?),
        ),
        false => (x as f64).partial_cmp(&y),
    };
    match (a, b) {
        (Number::Int(x), Number::Int(y)) => Some(x.cmp(&y)),
        (Number::Float(x), Number::Float(y)) => x.partial_cmp(&y),
        (Number::Int(x), Number::Float(y)) => mixed(x, y),
        (Number::Float(x), Number::Int(y)) => mixed(y, x).map(Ordering::reverse),
    }
}

/// Returns the order of two values; `None` if one is not a number (NaN). Fails if Python has no
/// order of their types.
pub(in crate::chat) fn order(a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    order_at(a, b, 0)
}

fn order_at(a: &Value, b: &Value, depth: usize) -> Result<Option<Ordering>, Error> {
    charge(1)?;
    if depth > DEEPEST {
        return Err(fail("the values are nested too deeply to be compared"));
    }
    match (Py::of(a), Py::of(b)) {
        (Py::Str(x), Py::Str(y)) => {
            charge_reading(x.len().min(y.len()))?;
            Ok(Some(x.cmp(y)))
        }
        (x, y) if x.is_sequence() && x == y => {
            let (x, y) = (iterate(a)?, iterate(b)?);
            for (x, y) in x.iter().zip(&y) {
                if !equal_at(x, y, depth + 1)? {
                    return order_at(x, y, depth + 1);
                }
            }
            Ok(Some(x.len().cmp(&y.len())))
        }
        (x, y) => match x.number().zip(y.number()) {
            Some((x, y)) => Ok(numbers(x, y)),
            None if x == Py::Undefined || y == Py::Undefined => Err(undefined()),
            None => Err(fail(format!(
                "'<' not supported between instances of '{}' and '{}'",
                x.type_name(),
                y.type_name()
            ))),
        },
    }
}

/// Returns the order for sorting; values without an order count as equal.
pub(in crate::chat) fn sorted_before(a: &Value, b: &Value) -> Result<Ordering, Error> {
    Ok(order(a, b)?.unwrap_or(Ordering::Equal))
}

/// Returns true if `container` holds `value` (`value in container`).
pub(in crate::chat) fn contains(container: &Value, value: &Value) -> Result<bool, Error> {
    match (Py::of(container), Py::of(value)) {
        (Py::Undefined, _) => Ok(false),
        (Py::Str(text), Py::Str(part)) => {
            charge_reading(text.len())?;
            Ok(text.contains(part))
        }
        (Py::Str(_), other) => Err(fail(format!(
            "'in <string>' requires string as left operand, not {}",
            other.type_name()
        ))),
        (Py::Dict, _) => {
            hashable(value)?;
            Ok(look_up(container, value).is_some())
        }
        (Py::Range(range), other) => Ok(match other.number() {
            Some(Number::Int(wanted)) => range.contains(wanted),
            Some(Number::Float(wanted)) if wanted.fract() == 0.0 && wanted.abs() < 1e38 => {
                range.contains(wanted as i128)
            }
            _ => false,
        }),
        (Py::Generator(generator), _) => {
            while let Some(item) = generator.next() {
                if equal(&item, value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Py::List | Py::Tuple | Py::View(_), _) => {
            for item in iterate(container)? {
                if same(&item, value) || equal(&item, value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (other, _) => Err(fail(format!(
            "argument of type '{}' is not iterable",
            other.type_name()
        ))),
    }
}
