//! Operations of converted templates: filters whose names no template can spell.

use std::cmp::Ordering;

use minijinja::value::{Kwargs, Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use crate::chat::python::args::{Args, text};
use crate::chat::python::functions::set_attribute;
use crate::chat::python::macros::Macro;
use crate::chat::python::value::{Py, charge_nested, dict, entries, fail, iterate, list_of};
use crate::chat::python::{compare, items, operators};

pub(super) const ADD: &str = "%add";
pub(super) const SUBTRACT: &str = "%subtract";
pub(super) const MULTIPLY: &str = "%multiply";
pub(super) const DIVIDE: &str = "%divide";
pub(super) const FLOOR_DIVIDE: &str = "%floor_divide";
pub(super) const REMAINDER: &str = "%remainder";
pub(super) const POWER: &str = "%power";
pub(super) const NEGATE: &str = "%negate";
pub(super) const CONCATENATE: &str = "%concatenate";
pub(super) const EQUAL: &str = "%equal";
pub(super) const UNEQUAL: &str = "%unequal";
pub(super) const LESS: &str = "%less";
pub(super) const AT_MOST: &str = "%at_most";
pub(super) const MORE: &str = "%more";
pub(super) const AT_LEAST: &str = "%at_least";
pub(super) const IN: &str = "%in";
pub(super) const NOT_IN: &str = "%not_in";
/// A chain of comparisons whose operands are all computed.
pub(super) const CHAIN: &str = "%chain";
pub(super) const ATTRIBUTE: &str = "%attribute";
pub(super) const ITEM: &str = "%item";
pub(super) const SLICE: &str = "%slice";
/// A slice of a constant; undefined if the constant cannot be sliced.
pub(super) const CONSTANT_SLICE: &str = "%constant_slice";
/// A dictionary of keys and values. The filter's own value is ignored.
pub(super) const DICT: &str = "%dict";
/// A list or tuple that was just made.
pub(super) const MADE: &str = "%made";
/// The items that a loop visits, as a list. With an argument, items that are texts are taken
/// apart too.
pub(super) const ITERATE: &str = "%iterate";
/// A value that several names take apart, as a list.
pub(super) const UNPACKED: &str = "%unpacked";
/// A mapping as keyword arguments.
pub(super) const NAMED: &str = "%named";
pub(super) const SET_ATTRIBUTE: &str = "%set_attribute";
pub(super) const MACRO: &str = "%macro";
pub(super) const CYCLE: &str = "%cycle";
/// The result of a filter block, which must be a text.
pub(super) const TEXT: &str = "%text";
pub(super) const REFUSE: &str = "%refuse";

/// Adds all operations to an environment.
pub(in crate::chat) fn add_to(environment: &mut Environment<'static>) {
    for &(name, operator) in BINARY {
        environment.add_filter(name, move |a: &Value, b: &Value| operator(a, b));
    }
    for &(name, holds) in COMPARISONS {
        environment.add_filter(name, move |a: &Value, b: &Value| holds(a, b));
    }
    environment.add_filter(NEGATE, |value: &Value| operators::negate(value));
    environment.add_filter(CONCATENATE, |values: Rest<Value>| {
        operators::concatenate(&values)
    });
    environment.add_filter(CHAIN, |values: Rest<Value>| chain(&values));
    environment.add_filter(ATTRIBUTE, |value: &Value, name: &str| {
        items::attribute(value, name)
    });
    environment.add_filter(SLICE, |value: &Value, a: &Value, b: &Value, c: &Value| {
        items::slice(value, [a, b, c])
    });
    environment.add_filter(
        CONSTANT_SLICE,
        |value: &Value, a: &Value, b: &Value, c: &Value| match Py::of(value) {
            Py::None | Py::Bool(_) | Py::Int(_) | Py::Float(_) | Py::Dict => Ok(Value::UNDEFINED),
            _ => items::slice(value, [a, b, c]),
        },
    );
    environment.add_filter(DICT, |fields: Rest<Value>| {
        let fields = fields.get(1..).unwrap_or_default();
        let pairs = fields.chunks_exact(2);
        dict(
            pairs
                .map(|pair| (pair[0].clone(), pair[1].clone()))
                .collect(),
        )
    });
    environment.add_filter(MADE, |value: Value| charge_nested(&value).map(|()| value));
    environment.add_filter(ITERATE, |value: &Value, apart: Option<bool>| {
        iterated(value, apart.is_some())
    });
    environment.add_filter(UNPACKED, |value: &Value| {
        list_of(Py::of(value), iterate(value)?)
    });
    environment.add_filter(NAMED, |value: &Value| named(value));
    environment.add_filter(
        SET_ATTRIBUTE,
        |namespace: &Value, name: &str, value: Value| {
            set_attribute(namespace, name, value).map(|()| "")
        },
    );
    environment.add_filter(MACRO, |body: Value, signature: &Value| {
        Macro::value(body, signature)
    });
    environment.add_filter(
        CYCLE,
        |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            let (value, rest) = args.split_first().ok_or_else(|| fail("nothing to cycle"))?;
            cycled(state, value, rest)
        },
    );
    environment.add_filter(TEXT, |value: Value| {
        text(&value)?;
        Ok::<_, Error>(value)
    });
    environment.add_filter(REFUSE, |message: &str| Err::<Value, Error>(fail(message)));
}

type Binary = fn(&Value, &Value) -> Result<Value, Error>;

const BINARY: &[(&str, Binary)] = &[
    (ADD, operators::add),
    (SUBTRACT, operators::subtract),
    (MULTIPLY, operators::multiply),
    (DIVIDE, operators::divide),
    (FLOOR_DIVIDE, operators::floor_divide),
    (REMAINDER, operators::remainder),
    (POWER, operators::power),
    (ITEM, items::item),
];

type Comparison = fn(&Value, &Value) -> Result<bool, Error>;

const COMPARISONS: &[(&str, Comparison)] = &[
    (EQUAL, compare::equal),
    (UNEQUAL, |a, b| Ok(!compare::equal(a, b)?)),
    (LESS, |a, b| ordered(a, b, Ordering::is_lt)),
    (AT_MOST, |a, b| ordered(a, b, Ordering::is_le)),
    (MORE, |a, b| ordered(a, b, Ordering::is_gt)),
    (AT_LEAST, |a, b| ordered(a, b, Ordering::is_ge)),
    (IN, |a, b| compare::contains(b, a)),
    (NOT_IN, |a, b| Ok(!compare::contains(b, a)?)),
];

fn ordered(a: &Value, b: &Value, holds: fn(Ordering) -> bool) -> Result<bool, Error> {
    Ok(compare::order(a, b)?.is_some_and(holds))
}

fn chain(values: &[Value]) -> Result<Value, Error> {
    let (mut left, rest) = values
        .split_first()
        .ok_or_else(|| fail("nothing to compare"))?;
    for pair in rest.chunks_exact(2) {
        let known = COMPARISONS
            .iter()
            .find(|(name, _)| pair[0].as_str() == Some(name));
        let (_, holds) = known.ok_or_else(|| fail("an unknown comparison"))?;
        if !holds(left, &pair[1])? {
            return Ok(Value::from(false));
        }
        left = &pair[1];
    }
    Ok(Value::from(true))
}

/// Returns the items as a list. A list stays as it is, since nothing changes lists.
fn iterated(value: &Value, apart: bool) -> Result<Value, Error> {
    let whole = |item: &Value| !matches!(Py::of(item), Py::Str(_) | Py::Dict);
    let sequence = Py::of(value).is_sequence();
    if sequence && (!apart || value.try_iter()?.all(|item| whole(&item))) {
        return Ok(value.clone());
    }
    let items = iterate(value)?.into_iter().map(|item| match whole(&item) {
        false if apart => list_of(Py::of(&item), iterate(&item)?),
        _ => Ok(item),
    });
    Ok(Value::from(items.collect::<Result<Vec<_>, Error>>()?))
}

fn named(value: &Value) -> Result<Value, Error> {
    if Py::of(value) != Py::Dict {
        return Err(fail("the argument after ** must be a mapping"));
    }
    let mut fields = Vec::new();
    for (name, value) in entries(value)? {
        let name = name.as_str().map(str::to_owned);
        fields.push((name.ok_or_else(|| fail("keywords must be strings"))?, value));
    }
    Ok(Value::from(fields.into_iter().collect::<Kwargs>()))
}

/// Computes `loop.cycle(…)`. The engine's own version (minijinja 3.0.5) divides by the number of
/// its arguments, which may be zero.
fn cycled(state: &mut State<'_, '_>, value: &Value, args: &[Value]) -> Result<Value, Error> {
    if Py::of(value) != Py::Loop {
        return value.call_method(state, "cycle", args);
    }
    let args = Args::new(args)?;
    let at = value.get_attr("index0")?.as_usize().unwrap_or(0);
    match args.positional.len() {
        0 => Err(fail("no items for cycling given")),
        count => Ok(args.positional[at % count].clone()),
    }
}
