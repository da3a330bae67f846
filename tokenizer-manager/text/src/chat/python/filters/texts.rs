//! Filters of texts.

use minijinja::{Error, State, Value};

use super::super::super::meter::{Text, charge};
use super::super::args::{self, Args, count, flag, required, whole};
use super::super::html::like;
use super::super::methods::{justified, replaced};
use super::super::operators;
use super::super::percent;
use super::super::repr;
use super::super::text::{capitalized, is_letter, lines, strip};
use super::super::value::{Py, dict, fail, length, size, undefined};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns a text as it is, and any other value as it is printed.
fn soft(value: &Value) -> Result<Value> {
    match Py::of(value) {
        Py::Str(_) => Ok(value.clone()),
        _ => repr::string(value).map(Value::from),
    }
}

/// Applies a function to a text. The result is safe if the text is.
fn made(value: &Value, args: Args, make: fn(&str) -> String) -> Result<Value> {
    let [] = args.bind([])?;
    let value = soft(value)?;
    let text = args::text(&value)?;
    charge(text.len())?;
    Ok(like(&value, make(text)))
}

pub(super) fn string(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    soft(value)
}

pub(super) fn upper(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    made(value, args, str::to_uppercase)
}

pub(super) fn lower(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    made(value, args, str::to_lowercase)
}

pub(super) fn capitalize(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    made(value, args, capitalized)
}

pub(super) fn title(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let title = made(value, args, |text| {
        let separates = |c: char| "-({[<".contains(c) || super::super::text::is_space(c);
        let mut out = String::with_capacity(text.len());
        for word in text.split_inclusive(separates) {
            let mut chars = word.chars();
            let first = chars.next().into_iter();
            out.extend(first.flat_map(char::to_uppercase));
            out.push_str(&chars.as_str().to_lowercase());
        }
        out
    })?;
    // `title` joins words, so its result is not marked as safe.
    repr::string(&title).map(Value::from)
}

pub(super) fn trim(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [set] = args.bind(["chars"])?;
    let set = set.filter(|set| !set.is_none());
    let set = set.as_ref().map(args::text).transpose()?;
    let value = soft(value)?;
    let text = args::text(&value)?;
    Ok(like(&value, strip(text, set, true, true)?.to_owned()))
}

pub(super) fn default(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [default, boolean] = args.bind(["default_value", "boolean"])?;
    match value.is_undefined() || (flag(boolean.as_ref()) && !value.is_true()) {
        true => Ok(default.unwrap_or(Value::from(""))),
        false => Ok(value.clone()),
    }
}

pub(super) fn replace(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [old, new, count] = args.bind(["old", "new", "count"])?;
    let (old, new) = (
        repr::string(&required(old)?)?,
        repr::string(&required(new)?)?,
    );
    let limit = whole(count.as_ref().filter(|count| !count.is_none()), -1)?;
    let text = repr::string(value)?;
    replaced(&text, &old, &new, limit).map(Value::from)
}

pub(super) fn center(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [width] = args.bind(["width"])?;
    let value = soft(value)?;
    let width = count(width.as_ref(), 80)?;
    let centered = justified(args::text(&value)?, "center", width, " ")?;
    Ok(like(&value, centered))
}

pub(super) fn indent(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [width, first, blank] = args.bind(["width", "first", "blank"])?;
    let text = match Py::of(value) {
        Py::Undefined => return Err(undefined()),
        _ => args::text(value)?,
    };
    let (unit, times) = match width.as_ref().map(|width| (Py::of(width), width)) {
        Some((Py::Str(unit), _)) => (unit, 1),
        Some((_, width)) => (" ", count(Some(width), 4)?),
        None => (" ", 4),
    };
    let (first, blank) = (flag(first.as_ref()), flag(blank.as_ref()));
    charge(text.len())?;
    let with_end = format!("{text}\n");
    let mut out = Text::default();
    for (at, line) in lines(&with_end, false).enumerate() {
        if at > 0 {
            out.push('\n')?;
        }
        let indented = match at {
            0 => first,
            _ => blank || !line.is_empty(),
        };
        if indented {
            out.repeat(unit, times)?;
        }
        out.push_str(line)?;
    }
    Ok(like(value, out.into_string()))
}

pub(super) fn truncate(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [length_, kill_words, end, leeway] = args.bind(["length", "killwords", "end", "leeway"])?;
    let end = end.unwrap_or(Value::from("..."));
    let end_length = length(&end)? as i128;
    let limit = whole(length_.as_ref(), 255)?;
    let leeway = whole(leeway.as_ref().filter(|leeway| !leeway.is_none()), 5)?;
    if limit < end_length || leeway < 0 {
        return Err(fail(format!(
            "truncate needs a length of {end_length} or more, and no negative leeway"
        )));
    }
    if length(value)? as i128 <= limit + leeway {
        return Ok(value.clone());
    }
    let text = args::text(value)?;
    charge(text.len())?;
    let kept: String = text.chars().take((limit - end_length) as usize).collect();
    let kept = match flag(kill_words.as_ref()) {
        true => kept.as_str(),
        false => kept
            .rsplit_once(' ')
            .map_or(kept.as_str(), |(before, _)| before),
    };
    operators::add(&like(value, kept.to_owned()), &end)
}

pub(super) fn wordcount(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    let text = repr::string(value)?;
    charge(text.len())?;
    let in_word = |c: char| c == '_' || is_letter(c) || c.is_numeric();
    let words = text.split(|c| !in_word(c)).filter(|word| !word.is_empty());
    Ok(size(words.count()))
}

pub(super) fn format(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    if !args.positional.is_empty() && !args.named.is_empty() {
        return Err(fail(
            "can't handle positional and keyword arguments at the same time",
        ));
    }
    let value = soft(value)?;
    if args.named.is_empty() {
        return percent::format_all(&value, args.positional);
    }
    let named = args.named.into_iter();
    percent::format_value(
        &value,
        &dict(
            named
                .map(|(name, value)| (Value::from(name), value))
                .collect(),
        )?,
    )
}
