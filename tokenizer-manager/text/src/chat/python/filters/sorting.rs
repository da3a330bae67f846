//! Filters that sort elements or group them.

use std::cmp::Ordering;
use std::collections::HashSet;

use minijinja::value::Tuple;
use minijinja::{Error, State, Value};

use super::super::super::meter::{ELEMENT, charge};
use super::super::args::{Args, flag, required, text};
use super::super::compare::{self, sorted_before};
use super::super::objects::{Generator, Group};
use super::super::value::{self, Py, entries, fail, hashable, iterate};
use super::attributes::Getter;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns a text in lower case unless case counts; other values stay as they are.
fn folded(key: Value, case_sensitive: bool) -> Result<Value> {
    match Py::of(&key) {
        Py::Str(text) if !case_sensitive => {
            charge(text.len())?;
            Ok(Value::from(text.to_lowercase()))
        }
        _ => Ok(key),
    }
}

/// Sorts elements by their keys. Equal elements keep their order, also with `reverse`. The
/// standard library's sort may panic on a contradictory order, such as that of NaN.
pub(super) fn ordered<T>(items: Vec<(Value, T)>, reverse: bool) -> Result<Vec<(Value, T)>> {
    charge(items.len().saturating_mul(ELEMENT))?;
    let mut runs: Vec<Vec<(Value, T)>> = items.into_iter().map(|item| vec![item]).collect();
    while runs.len() > 1 {
        let mut merged = Vec::with_capacity(runs.len() / 2 + 1);
        let mut pairs = runs.into_iter();
        while let Some(left) = pairs.next() {
            merged.push(match pairs.next() {
                Some(right) => merge(left, right, reverse)?,
                None => left,
            });
        }
        runs = merged;
    }
    Ok(runs.into_iter().flatten().collect())
}

fn merge<T>(
    left: Vec<(Value, T)>,
    right: Vec<(Value, T)>,
    reverse: bool,
) -> Result<Vec<(Value, T)>> {
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some((a, _)), Some((b, _))) = (left.peek(), right.peek()) {
        let right_first = match reverse {
            false => sorted_before(b, a)? == Ordering::Less,
            true => sorted_before(a, b)? == Ordering::Less,
        };
        merged.extend(if right_first {
            right.next()
        } else {
            left.next()
        });
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}

/// Sorts elements by their keys and drops the keys.
fn sorted(keyed: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<Value>> {
    let items = ordered(keyed, reverse)?.into_iter();
    Ok(items.map(|(_, item)| item).collect())
}

pub(super) fn sort(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [reverse, case_sensitive, attribute] =
        args.bind(["reverse", "case_sensitive", "attribute"])?;
    let case_sensitive = flag(case_sensitive.as_ref());
    let getters: Vec<Getter> = match attribute
        .as_ref()
        .map(|attribute| (Py::of(attribute), attribute))
    {
        Some((Py::Str(paths), _)) => {
            let paths = paths.split(',');
            paths
                .map(|path| Getter::new(Some(&Value::from(path))))
                .collect()
        }
        other => vec![Getter::new(other.map(|(_, attribute)| attribute))],
    };
    let keyed = iterate(value)?.into_iter().map(|item| {
        let keys = getters
            .iter()
            .map(|getter| folded(getter.get(item.clone())?, case_sensitive));
        Ok((Value::from(keys.collect::<Result<Vec<_>>>()?), item))
    });
    let sorted = sorted(keyed.collect::<Result<_>>()?, flag(reverse.as_ref()))?;
    value::list_of(Py::of(value), sorted)
}

pub(super) fn dictsort(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [case_sensitive, by, reverse] = args.bind(["case_sensitive", "by", "reverse"])?;
    let by_value = match by.as_ref().map(text).transpose()? {
        None | Some("key") => false,
        Some("value") => true,
        Some(_) => return Err(fail("you can only sort by either \"key\" or \"value\"")),
    };
    let case_sensitive = flag(case_sensitive.as_ref());
    if Py::of(value) != Py::Dict {
        return Err(fail("dictsort needs a mapping"));
    }
    let keyed = entries(value)?.into_iter().map(|(key, item)| {
        let by = if by_value { &item } else { &key };
        let by = folded(by.clone(), case_sensitive)?;
        Ok((by, Value::from(Tuple::from([key, item]))))
    });
    let sorted = sorted(keyed.collect::<Result<_>>()?, flag(reverse.as_ref()))?;
    value::list_of(Py::Dict, sorted)
}

/// Returns the first of the smallest elements, or of the largest, by `wanted`.
fn extreme(value: &Value, args: Args, wanted: Ordering) -> Result<Value> {
    let [case_sensitive, attribute] = args.bind(["case_sensitive", "attribute"])?;
    let getter = Getter::new(attribute.as_ref());
    let case_sensitive = flag(case_sensitive.as_ref());
    let mut best: Option<(Value, Value)> = None;
    for item in iterate(value)? {
        let key = folded(getter.get(item.clone())?, case_sensitive)?;
        let better = match &best {
            Some((known, _)) => compare::order(&key, known)? == Some(wanted),
            None => true,
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map(|(_, item)| item).unwrap_or_default())
}

pub(super) fn min(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    extreme(value, args, Ordering::Less)
}

pub(super) fn max(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    extreme(value, args, Ordering::Greater)
}

pub(super) fn unique(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [case_sensitive, attribute] = args.bind(["case_sensitive", "attribute"])?;
    let getter = Getter::new(attribute.as_ref());
    let mut seen = HashSet::new();
    let mut distinct = Vec::new();
    for item in iterate(value)? {
        let key = folded(getter.get(item.clone())?, flag(case_sensitive.as_ref()))?;
        hashable(&key)?;
        // The engine (minijinja 3.0.5) hashes booleans differently from the numbers that they
        // equal.
        let key = match Py::of(&key) {
            Py::Bool(key) => Value::from(i64::from(key)),
            _ => key,
        };
        charge(ELEMENT)?;
        if seen.insert(key) {
            distinct.push(item);
        }
    }
    Generator::value(distinct)
}

pub(super) fn groupby(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [attribute, default, case_sensitive] =
        args.bind(["attribute", "default", "case_sensitive"])?;
    let attribute = required(attribute)?;
    let getter = Getter::new(Some(&attribute)).or(default);
    let case_sensitive = flag(case_sensitive.as_ref());
    let key = |item: &Value| folded(getter.get(item.clone())?, case_sensitive);
    let keyed = iterate(value)?
        .into_iter()
        .map(|item| Ok((key(&item)?, item)));
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in ordered(keyed.collect::<Result<_>>()?, false)? {
        charge(ELEMENT)?;
        match groups.last_mut() {
            Some((known, items)) if compare::equal(known, &key)? => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let groups = groups.into_iter().map(|(key, items)| {
        // The group's key is the first element's, in its own case.
        let grouper = match items.first() {
            Some(first) if !case_sensitive => getter.get(first.clone())?,
            _ => key,
        };
        let list = value::list_of(Py::of(value), items)?;
        Ok(Value::from_object(Group { grouper, list }))
    });
    value::list(groups.collect::<Result<_>>()?)
}
