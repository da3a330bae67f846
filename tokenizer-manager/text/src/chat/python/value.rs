//! Values with Python's types.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};

use super::super::meter::{ELEMENT, charge, charge_reading, exceeded};
pub(in crate::chat) use super::error::{fail, undefined};
pub(in crate::chat) use super::number::int;
use super::objects::{Generator, Group, Range, View};

/// The Python type of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::chat) enum Py<'a> {
    Undefined,
    None,
    Bool(bool),
    /// A whole number of at most 128 bits; Python's own have no limit.
    Int(i128),
    Float(f64),
    Str(&'a str),
    List,
    Tuple,
    Dict,
    Range(&'a Range),
    View(&'a View),
    Generator(&'a Generator),
    /// The variable `loop`.
    Loop,
    /// A namespace, a macro or a function.
    Other,
}

impl<'a> Py<'a> {
    pub(in crate::chat) fn of(value: &'a Value) -> Self {
        match value.kind() {
            ValueKind::Undefined => Self::Undefined,
            ValueKind::None => Self::None,
            ValueKind::Bool => Self::Bool(value.is_true()),
            ValueKind::Number if value.is_integer() => {
                i128::try_from(value.clone()).map_or(Self::Float(f64::INFINITY), Self::Int)
            }
            ValueKind::Number => Self::Float(f64::try_from(value.clone()).unwrap_or(f64::NAN)),
            ValueKind::String => Self::Str(value.as_str().unwrap_or_default()),
            ValueKind::Seq if value.is_tuple() => Self::Tuple,
            ValueKind::Seq if value.downcast_object_ref::<Group>().is_some() => Self::Tuple,
            ValueKind::Seq => value.downcast_object_ref().map_or(Self::List, Self::Range),
            ValueKind::Iterable => match (value.downcast_object_ref(), value.downcast_object_ref())
            {
                (Some(view), _) => Self::View(view),
                (_, Some(generator)) => Self::Generator(generator),
                _ => Self::Other,
            },
            ValueKind::Map => mapping(value),
            _ => Self::Other,
        }
    }

    /// Returns the name of the type.
    pub(in crate::chat) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::List => "list",
            Self::Tuple => "tuple",
            Self::Dict => "dict",
            Self::Range(_) => "range",
            Self::View(view) => view.kind.type_name(),
            Self::Generator(_) => "generator",
            Self::Loop => "LoopContext",
            Self::Other => "object",
        }
    }

    /// Returns the number; `None` if the value is no number. A boolean is a number.
    pub(in crate::chat) fn number(&self) -> Option<Number> {
        match *self {
            Self::Bool(value) => Some(Number::Int(i128::from(value))),
            Self::Int(value) => Some(Number::Int(value)),
            Self::Float(value) => Some(Number::Float(value)),
            _ => None,
        }
    }

    /// Returns the whole number; `None` if the value is none. A boolean is a whole number.
    pub(in crate::chat) fn int(&self) -> Option<i128> {
        match self.number() {
            Some(Number::Int(value)) => Some(value),
            _ => None,
        }
    }

    pub(in crate::chat) fn is_sequence(&self) -> bool {
        matches!(self, Self::List | Self::Tuple)
    }
}

/// A number as in Python.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::chat) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(in crate::chat) fn float(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

/// Returns the type of a mapping; the engine's loops and macros look like one.
fn mapping(value: &Value) -> Py<'_> {
    match value.as_object().map(|object| object.type_name()) {
        Some(name) if name.ends_with("::Loop") => Py::Loop,
        Some(name) if !name.ends_with("::Macro") => Py::Dict,
        _ => Py::Other,
    }
}

/// Maximum nesting of lists. Printing or dropping deeper lists might overflow the stack.
const DEEPEST: usize = 256;

/// Charges every element of a new value, at every depth, and refuses a value that nests too
/// deeply. Namespaces and generators are kept until the rendering ends and count as one element.
/// A generator gives its elements only once. The engine's loop object is refused as an element,
/// because it holds the items of its iteration and does not show them to this check.
pub(in crate::chat) fn charge_nested(value: &Value) -> Result<(), Error> {
    nested(value, 0)
}

fn nested(value: &Value, depth: usize) -> Result<(), Error> {
    let Some(object) = value.as_object() else {
        return Ok(());
    };
    if depth > DEEPEST {
        return Err(exceeded(format!("{DEEPEST} values inside each other")));
    }
    let py = Py::of(value);
    if py == Py::Loop {
        return Err(fail("a loop cannot be an element of another value"));
    }
    charge(1)?;
    if object.enumerator_len().is_none() {
        return Ok(());
    }
    for element in value.try_iter()?.checked() {
        charge(1)?;
        let element = element?;
        match py {
            Py::Dict => nested(&value.get_item(&element)?, depth + 1)?,
            _ => nested(&element, depth + 1)?,
        }
    }
    Ok(())
}

pub(in crate::chat) fn size(value: usize) -> Value {
    Value::from(value as u64)
}

/// Makes a list of existing values and charges the list's own memory.
pub(in crate::chat) fn list(items: Vec<Value>) -> Result<Value, Error> {
    charge(items.len().saturating_mul(ELEMENT))?;
    let made = Value::from(items);
    charge_nested(&made).map(|()| made)
}

pub(in crate::chat) fn tuple(items: Vec<Value>) -> Result<Value, Error> {
    charge(items.len().saturating_mul(ELEMENT))?;
    let made = Value::from(Tuple::from(items));
    charge_nested(&made).map(|()| made)
}

/// Makes a list of elements of `model`, in any order and number. The list nests no deeper than
/// `model`, so its nesting is not checked. Elements of a generator were in no list before, so
/// they are checked.
pub(in crate::chat) fn list_of(model: Py<'_>, items: Vec<Value>) -> Result<Value, Error> {
    match model {
        Py::Generator(_) => list(items),
        _ => {
            charge(items.len().saturating_mul(ELEMENT))?;
            Ok(Value::from(items))
        }
    }
}

/// Makes a list like [`list_of`], or a tuple if `model` is one.
pub(in crate::chat) fn sequence_of(model: Py<'_>, items: Vec<Value>) -> Result<Value, Error> {
    match model {
        Py::Tuple => {
            charge(items.len().saturating_mul(ELEMENT))?;
            Ok(Value::from(Tuple::from(items)))
        }
        _ => list_of(model, items),
    }
}

/// Returns the items of Python's iteration. Fails if the value cannot be iterated.
pub(in crate::chat) fn iterate(value: &Value) -> Result<Vec<Value>, Error> {
    let py = Py::of(value);
    let items: Vec<Value> = match py {
        Py::Undefined => Vec::new(),
        Py::Str(text) => {
            charge(text.len().saturating_mul(ELEMENT))?;
            return Ok(text.chars().map(Value::from).collect());
        }
        Py::View(view) => {
            charge(view.items.len().saturating_mul(ELEMENT))?;
            return Ok(view.items.clone());
        }
        Py::Generator(generator) => return Ok(generator.rest()),
        Py::Range(range) => {
            charge(range.len().saturating_mul(ELEMENT))?;
            return Ok(range.iter().map(int).collect());
        }
        Py::List | Py::Tuple | Py::Dict => {
            charge(value.len().unwrap_or(0).saturating_mul(ELEMENT))?;
            value.try_iter()?.checked().collect::<Result<_, _>>()?
        }
        _ => return Err(fail(format!("'{}' object is not iterable", py.type_name()))),
    };
    Ok(items)
}

/// Computes Python's `len`.
pub(in crate::chat) fn length(value: &Value) -> Result<usize, Error> {
    match Py::of(value) {
        Py::Undefined => Ok(0),
        Py::Str(text) => {
            charge_reading(text.len())?;
            Ok(text.chars().count())
        }
        Py::Range(range) => Ok(range.len()),
        Py::View(view) => Ok(view.items.len()),
        Py::List | Py::Tuple | Py::Dict => Ok(value.len().unwrap_or(0)),
        other => Err(fail(format!(
            "object of type '{}' has no len()",
            other.type_name()
        ))),
    }
}

/// Returns the entries of a mapping.
pub(in crate::chat) fn entries(map: &Value) -> Result<Vec<(Value, Value)>, Error> {
    charge(map.len().unwrap_or(0).saturating_mul(2 * ELEMENT))?;
    map.try_iter()?
        .checked()
        .map(|key| {
            let key = key?;
            let item = map.get_item(&key)?;
            Ok((key, item))
        })
        .collect()
}

/// Makes a mapping of entries. Of entries with equal keys the last one stays.
pub(in crate::chat) fn dict(entries: Vec<(Value, Value)>) -> Result<Value, Error> {
    charge(entries.len().saturating_mul(2 * ELEMENT))?;
    let mut distinct: Vec<(Value, Value)> = Vec::with_capacity(entries.len());
    let mut booleans = false;
    for (key, item) in entries {
        hashable(&key)?;
        booleans |= matches!(Py::of(&key), Py::Bool(_));
        distinct.push((key, item));
    }
    if booleans {
        distinct = merge_booleans(distinct)?;
    }
    let made = Value::from_pairs(distinct);
    charge_nested(&made).map(|()| made)
}

/// Merges the keys `True` and `1`, and `False` and `0`, which are equal in Python. The engine
/// (minijinja 3.0.5) hashes them differently.
fn merge_booleans(entries: Vec<(Value, Value)>) -> Result<Vec<(Value, Value)>, Error> {
    let mut merged: Vec<(Value, Value)> = Vec::with_capacity(entries.len());
    for (key, item) in entries {
        charge(merged.len())?;
        match merged.iter_mut().find(|(known, _)| *known == key) {
            Some(known) => known.1 = item,
            None => merged.push((key, item)),
        }
    }
    Ok(merged)
}

/// Fails if a value cannot be a key.
pub(in crate::chat) fn hashable(key: &Value) -> Result<(), Error> {
    match Py::of(key) {
        py @ (Py::List | Py::Dict | Py::View(_)) => {
            Err(fail(format!("unhashable type: '{}'", py.type_name())))
        }
        Py::Tuple => iterate(key)?.iter().try_for_each(hashable),
        _ => Ok(()),
    }
}

/// Returns the value of a mapping under a key.
pub(in crate::chat) fn look_up(map: &Value, key: &Value) -> Option<Value> {
    let object = map.as_object()?;
    let other = match Py::of(key) {
        Py::Bool(key) => Some(Value::from(i64::from(key))),
        py => match py.number().map(Number::float) {
            Some(0.0) => Some(Value::from(false)),
            Some(1.0) => Some(Value::from(true)),
            _ => None,
        },
    };
    let found = object.get_value(key);
    found.or_else(|| other.and_then(|key| object.get_value(&key)))
}
