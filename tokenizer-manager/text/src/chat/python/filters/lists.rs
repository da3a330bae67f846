//! Filters of lists.

use minijinja::{Error, State, Value};

use super::super::super::meter::{ELEMENT, Text, charge};
use super::super::args::{Args, required, whole};
use super::super::html::like;
use super::super::methods;
use super::super::objects::{Generator, ViewKind};
use super::super::operators;
use super::super::repr;
use super::super::value::{self, Py, fail, iterate, size};
use super::attributes::Getter;

type Result<T, E = Error> = std::result::Result<T, E>;

pub(super) fn list(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    value::list_of(Py::of(value), iterate(value)?)
}

pub(super) fn length(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    value::length(value).map(size)
}

pub(super) fn first(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    let first = match Py::of(value) {
        Py::Generator(generator) => generator.next(),
        Py::Str(text) => text.chars().next().map(|c| like(value, c.to_string())),
        Py::List | Py::Tuple | Py::Dict => value.try_iter()?.next(),
        _ => iterate(value)?.into_iter().next(),
    };
    Ok(first.unwrap_or_default())
}

pub(super) fn last(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    match Py::of(value) {
        Py::Generator(_) => Err(fail("'generator' object is not reversible")),
        Py::Str(text) => {
            let last = text.chars().next_back();
            Ok(last.map_or_else(Value::default, |c| like(value, c.to_string())))
        }
        Py::List | Py::Tuple | Py::Range(_) => super::super::items::item(value, &Value::from(-1)),
        _ => Ok(iterate(value)?.pop().unwrap_or_default()),
    }
}

pub(super) fn reverse(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    let py = Py::of(value);
    if let Py::Str(text) = py {
        charge(text.len())?;
        return Ok(like(value, text.chars().rev().collect()));
    }
    let mut items = iterate(value)?;
    items.reverse();
    match py {
        // A value that cannot be read from its end becomes a list first.
        Py::Generator(_) => value::list(items),
        _ => Generator::value(items),
    }
}

pub(super) fn items(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    match Py::of(value) {
        Py::Undefined => Generator::value(Vec::new()),
        Py::Dict => Generator::value(iterate(&methods::view(value, ViewKind::Items)?)?),
        _ => Err(fail("can only get item pairs from a mapping")),
    }
}

pub(super) fn sum(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [attribute, start] = args.bind(["attribute", "start"])?;
    let getter = Getter::new(attribute.as_ref());
    let mut sum = start.unwrap_or(Value::from(0));
    if matches!(Py::of(&sum), Py::Str(_)) {
        return Err(fail("sum() can't sum strings"));
    }
    for item in iterate(value)? {
        sum = operators::add(&sum, &getter.get(item)?)?;
    }
    Ok(sum)
}

pub(super) fn join(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [separator, attribute] = args.bind(["d", "attribute"])?;
    let getter = Getter::new(attribute.as_ref());
    let separator = separator.map_or(Ok(String::new()), |separator| repr::string(&separator))?;
    let mut joined = Text::default();
    for (at, item) in iterate(value)?.into_iter().enumerate() {
        if at > 0 {
            joined.push_str(&separator)?;
        }
        repr::push_str(&mut joined, &getter.get(item)?)?;
    }
    Ok(Value::from(joined.into_string()))
}

pub(super) fn batch(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [count, fill] = args.bind(["linecount", "fill_with"])?;
    let count = whole(Some(&required(count)?), 0)?;
    let py = Py::of(value);
    let mut batches = Vec::new();
    let mut batch: Vec<Value> = Vec::new();
    for item in iterate(value)? {
        charge(ELEMENT)?;
        if batch.len() as i128 == count {
            batches.push(value::list_of(py, std::mem::take(&mut batch))?);
        }
        batch.push(item);
    }
    if !batch.is_empty() {
        let missing = usize::try_from(count - batch.len() as i128).unwrap_or(0);
        if let Some(fill) = fill.filter(|fill| !fill.is_none()) {
            charge(missing.saturating_mul(ELEMENT))?;
            batch.extend(std::iter::repeat_n(fill, missing));
        }
        batches.push(value::list(batch)?);
    }
    Generator::value(batches)
}

pub(super) fn slice(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [slices, fill] = args.bind(["slices", "fill_with"])?;
    let slices = whole(Some(&required(slices)?), 0)?;
    let fill = fill.filter(|fill| !fill.is_none());
    let items = iterate(value)?;
    if slices == 0 {
        return Err(fail("division by zero"));
    }
    let slices = usize::try_from(slices).unwrap_or(0);
    charge(slices.saturating_mul(2 * ELEMENT))?;
    let (each, more) = match slices {
        0 => (0, 0),
        slices => (items.len() / slices, items.len() % slices),
    };
    let mut start = 0;
    let mut parts = Vec::with_capacity(slices);
    for at in 0..slices {
        let end = start + each + usize::from(at < more);
        let mut part = items.get(start..end).unwrap_or_default().to_vec();
        if let Some(fill) = fill.as_ref().filter(|_| at >= more) {
            part.push(fill.clone());
        }
        parts.push(value::list(part)?);
        start = end;
    }
    Generator::value(parts)
}
