//! Methods that search a text.

use minijinja::{Error, Value};

use super::super::super::meter::charge_reading;
use super::super::args::{self, Args, required, whole};
use super::super::value::{Py, fail, iterate, size};

/// Returns a position among `length` elements; negative positions count from the end.
pub(in crate::chat) fn bound(at: i128, length: usize) -> usize {
    let length = length as i128;
    let at = if at < 0 { at + length } else { at };
    usize::try_from(at.clamp(0, length)).unwrap_or(0)
}

/// Returns the part of a text between two arguments, and the number of characters before it.
/// `None` if the part starts after the end of the text, or ends before its start.
fn part<'a>(
    text: &'a str,
    start: Option<&Value>,
    stop: Option<&Value>,
) -> Result<Option<(&'a str, usize)>, Error> {
    let given = |value: Option<&Value>, default| match value {
        Some(value) if value.is_none() => Ok(default),
        value => whole(value, default),
    };
    let (start, stop) = (given(start, 0)?, given(stop, i128::MAX)?);
    if start == 0 && stop == i128::MAX {
        return Ok(Some((text, 0)));
    }
    charge_reading(text.len())?;
    let length = text.chars().count();
    if start > length as i128 {
        return Ok(None);
    }
    let (start, stop) = (bound(start, length), bound(stop, length));
    if start > stop {
        return Ok(None);
    }
    Ok(Some((between(text, start, stop), start)))
}

/// Returns the characters `start` to `stop` of a text.
fn between(text: &str, start: usize, stop: usize) -> &str {
    let at = |index: usize| {
        text.char_indices()
            .nth(index)
            .map_or(text.len(), |(at, _)| at)
    };
    &text[at(start)..at(stop)]
}

/// Computes `find`, `rfind`, `index` and `rindex`.
pub(super) fn find(text: &str, name: &str, args: Args) -> Result<Value, Error> {
    let [wanted, start, stop] = args.unnamed()?;
    let wanted = required(wanted)?;
    let wanted = args::text(&wanted)?;
    charge_reading(text.len())?;
    let found = part(text, start.as_ref(), stop.as_ref())?.and_then(|(part, before)| {
        let at = match name.starts_with('r') {
            true => part.rfind(wanted),
            false => part.find(wanted),
        }?;
        Some(before + part[..at].chars().count())
    });
    match found {
        Some(at) => Ok(size(at)),
        None if name.ends_with("index") => Err(fail("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

/// Computes `count`.
pub(super) fn count(text: &str, args: Args) -> Result<Value, Error> {
    let [wanted, start, stop] = args.unnamed()?;
    let wanted = required(wanted)?;
    let wanted = args::text(&wanted)?;
    charge_reading(text.len())?;
    let count = match part(text, start.as_ref(), stop.as_ref())? {
        Some((part, _)) if wanted.is_empty() => part.chars().count() + 1,
        Some((part, _)) => part.matches(wanted).count(),
        None => 0,
    };
    Ok(size(count))
}

/// Computes `startswith` and `endswith`, with one text or a tuple of several.
pub(super) fn starts_or_ends(text: &str, name: &str, args: Args) -> Result<Value, Error> {
    let [wanted, start, stop] = args.unnamed()?;
    let wanted = required(wanted)?;
    let part = part(text, start.as_ref(), stop.as_ref())?;
    let all = match Py::of(&wanted) {
        Py::Tuple => iterate(&wanted)?,
        _ => vec![wanted.clone()],
    };
    for wanted in &all {
        let wanted = args::text(wanted)?;
        let matches = part.is_some_and(|(part, _)| match name {
            "startswith" => part.starts_with(wanted),
            _ => part.ends_with(wanted),
        });
        if matches {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}
