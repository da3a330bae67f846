//! Methods that split texts and join them.

use minijinja::value::Tuple;
use minijinja::{Error, Value};

use super::super::super::meter::{ELEMENT, Text, charge, charge_reading};
use super::super::args::{self, Args, flag, required, whole};
use super::super::html;
use super::super::text::{self, is_space};
use super::super::value::{Py, fail, iterate};

fn pieces(parts: Vec<&str>) -> Result<Value, Error> {
    charge(parts.len().saturating_mul(ELEMENT))?;
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Computes `split` and `rsplit`.
pub(super) fn split(text: &str, name: &str, args: Args) -> Result<Value, Error> {
    let [separator, limit] = args.bind(["sep", "maxsplit"])?;
    let separator = separator.filter(|separator| !separator.is_none());
    let limit = whole(limit.as_ref(), -1)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let right = name == "rsplit";
    charge(text.len())?;
    let mut parts = match separator {
        Some(separator) => {
            let separator = not_empty(args::text(&separator)?)?;
            let count = text.matches(separator).count().min(limit);
            charge(count.saturating_mul(ELEMENT))?;
            match right {
                true => text.rsplitn(count + 1, separator).collect(),
                false => text.splitn(count + 1, separator).collect(),
            }
        }
        None if right => words_from_right(text, limit)?,
        None => words(text, limit)?,
    };
    if right {
        parts.reverse();
    }
    pieces(parts)
}

/// Returns at most `limit` words from the left, then the rest of the text.
fn words(text: &str, limit: usize) -> Result<Vec<&str>, Error> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        charge(ELEMENT)?;
        let end = match rest.find(is_space) {
            Some(end) if parts.len() < limit => end,
            _ => rest.len(),
        };
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    Ok(parts)
}

/// Returns at most `limit` words from the right, the last word first, then the rest.
fn words_from_right(text: &str, limit: usize) -> Result<Vec<&str>, Error> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        charge(ELEMENT)?;
        let blank = rest.char_indices().rfind(|(_, c)| is_space(*c));
        let start = match blank {
            Some((at, c)) if parts.len() < limit => at + c.len_utf8(),
            _ => 0,
        };
        parts.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(is_space);
    }
    Ok(parts)
}

/// Computes `splitlines`.
pub(super) fn lines(text: &str, args: Args) -> Result<Value, Error> {
    let [keep_ends] = args.bind(["keepends"])?;
    charge(text.len())?;
    let lines = text::lines(text, flag(keep_ends.as_ref()));
    charge(lines.clone().count().saturating_mul(ELEMENT))?;
    Ok(lines.map(Value::from).collect())
}

/// Computes `partition` and `rpartition`.
pub(super) fn partition(text: &str, name: &str, args: Args) -> Result<Value, Error> {
    let [separator] = args.unnamed()?;
    let separator = required(separator)?;
    let separator = not_empty(args::text(&separator)?)?;
    charge(text.len())?;
    let parts = match name {
        "partition" => match text.split_once(separator) {
            Some((head, tail)) => [head, separator, tail],
            None => [text, "", ""],
        },
        _ => match text.rsplit_once(separator) {
            Some((head, tail)) => [head, separator, tail],
            None => ["", "", text],
        },
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn not_empty(separator: &str) -> Result<&str, Error> {
    match separator {
        "" => Err(fail("empty separator")),
        separator => Ok(separator),
    }
}

/// Computes `join`, which joins only texts. A safe separator escapes the items.
pub(super) fn join(text: &str, args: Args, safe: bool) -> Result<String, Error> {
    let [items] = args.unnamed()?;
    let mut joined = Text::default();
    for (at, item) in iterate(&required(items)?)?.iter().enumerate() {
        if at > 0 {
            joined.push_str(text)?;
        }
        match Py::of(item) {
            _ if safe => joined.push_str(&html::escaped(item)?)?,
            Py::Str(item) => joined.push_str(item)?,
            other => {
                return Err(fail(format!(
                    "sequence item {at}: expected str instance, {} found",
                    other.type_name()
                )));
            }
        }
    }
    Ok(joined.into_string())
}

/// Replaces at most `limit` occurrences of `from`; a negative `limit` replaces all.
pub(in crate::chat) fn replaced(
    text: &str,
    from: &str,
    to: &str,
    limit: i128,
) -> Result<String, Error> {
    let mut left = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut out = Text::default();
    charge_reading(text.len())?;
    if from.is_empty() {
        for c in text.chars() {
            if left > 0 {
                out.push_str(to)?;
                left -= 1;
            }
            out.push(c)?;
        }
        if left > 0 {
            out.push_str(to)?;
        }
        return Ok(out.into_string());
    }
    let mut rest = text;
    while left > 0 {
        let Some((before, after)) = rest.split_once(from) else {
            break;
        };
        out.push_str(before)?;
        out.push_str(to)?;
        rest = after;
        left -= 1;
    }
    out.push_str(rest)?;
    Ok(out.into_string())
}
