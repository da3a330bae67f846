//! Charges as filters, and charges before filters whose result may be larger than what they get.

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::instructions::{ASSIGNED, COMPARED, CONCAT, EXISTING, MADE, NESTED, REPEATED};
use super::{ELEMENT, charge, charge_made, charge_nested, charge_printed, existing, write};

/// Adds them to an environment that has the filters they stand before.
pub(in crate::chat) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter(CONCAT, |left: &Value, right: &Value| {
        let mut joined = String::new();
        write(&mut joined, format_args!("{left}"))?;
        write(&mut joined, format_args!("{right}"))?;
        Ok::<_, Error>(joined)
    });
    environment.add_filter(MADE, |value: Value| charge_made(&value).map(|()| value));
    environment.add_filter(EXISTING, |value: Value| {
        let value = existing(value)?;
        charge_made(&value)?;
        charge_nested_unless_namespace(&value)?;
        Ok::<_, Error>(value)
    });
    environment.add_filter(NESTED, |value: Value| charge_nested(&value).map(|()| value));
    environment.add_filter(ASSIGNED, |value: Value, namespace: Value| {
        charge_nested(&value)?;
        Ok::<_, Error>(vec![namespace, value])
    });
    environment.add_filter(REPEATED, |left: Value, right: Value| {
        for (value, times) in [(&left, &right), (&right, &left)] {
            if let (Some(length), Some(times)) = (length(value), times.as_usize()) {
                charge(length.saturating_mul(times))?;
            }
        }
        Ok::<_, Error>(vec![right, left])
    });
    environment.add_filter(COMPARED, |left: Value, right: Value| {
        for value in [&left, &right] {
            match value.as_str() {
                Some(text) => charge(text.len() / TEXT_AT_ONCE)?,
                None => charge_nested_unless_namespace(value)?,
            }
        }
        Ok::<_, Error>(vec![right, left])
    });
    environment.add_filter("string", |value: Value| match value.kind() {
        ValueKind::String => Ok(value),
        _ => printed(format_args!("{value}")),
    });
    environment.add_filter("pprint", |value: &Value| {
        printed(format_args!("{value:#?}"))
    });
    macro_rules! before {
        ($($name:literal: $filter:path, $hidden:literal, $cost:expr;)*) => {$(
            environment.add_filter($hidden, $filter);
            environment.add_filter($name, |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                let args = args.into_values();
                let cost: fn(&[Value]) -> Result<(), Error> = $cost;
                cost(&args)?;
                state.apply_filter($hidden, &args)
            });
        )*};
    }
    before! {
        "indent": filters::indent, "%indent", indented;
        "replace": filters::replace, "%replace", replaced;
        "join": filters::join, "%join", joined;
        "format": filters::format, "%format", formatted;
        "batch": filters::batch, "%batch", in_lists;
        "slice": filters::slice, "%slice", in_lists;
        "list": filters::list, "%list", elements;
        "sort": filters::sort, "%sort", elements;
        "unique": filters::unique, "%unique", elements;
        "split": filters::split, "%split", pieces;
        "lines": filters::lines, "%lines", pieces;
    }
}

/// Charges a method of a text before it runs.
pub(in crate::chat) fn method(value: &Value, name: &str, args: &[Value]) -> Result<(), Error> {
    let all = || {
        std::iter::once(value)
            .chain(args)
            .cloned()
            .collect::<Vec<_>>()
    };
    match name {
        "replace" => replaced(&all()),
        "join" => joined(&[args.first().cloned().unwrap_or_default(), value.clone()]),
        "format" => formatted(&all()),
        "split" | "rsplit" | "splitlines" => pieces(&all()),
        _ => charge(length(value).unwrap_or(0) / TEXT_AT_ONCE),
    }
}

/// Bytes of a text that are looked at for the price of one that is made.
const TEXT_AT_ONCE: usize = 16;

/// Namespaces come out of functions and filters, and are compared.
fn charge_nested_unless_namespace(value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => charge_nested(value),
        _ => Ok(()),
    }
}

fn printed(text: std::fmt::Arguments<'_>) -> Result<Value, Error> {
    let mut out = String::new();
    write(&mut out, text)?;
    Ok(Value::from(out))
}

/// Bytes of a text or of a list's elements.
fn length(value: &Value) -> Option<usize> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => Some(text.len()),
        (None, ValueKind::Seq | ValueKind::Iterable) => {
            Some(value.len().unwrap_or(0).saturating_mul(ELEMENT))
        }
        _ => None,
    }
}

fn text(args: &[Value], at: usize) -> &str {
    args.get(at).and_then(Value::as_str).unwrap_or_default()
}

/// The largest whole number among all arguments, named ones too.
fn largest(args: &[Value]) -> usize {
    let named = args.iter().filter(|value| value.kind() == ValueKind::Map);
    let named = named.flat_map(|map| {
        let keys = map.try_iter().into_iter().flatten();
        keys.filter_map(|key| map.get_item(&key).ok())
    });
    let numbers = args.iter().cloned().chain(named);
    numbers
        .filter_map(|value| value.as_usize())
        .max()
        .unwrap_or(0)
}

fn indented(args: &[Value]) -> Result<(), Error> {
    let text = text(args, 0);
    let lines = text.matches('\n').count() + 1;
    let widths = args
        .iter()
        .skip(1)
        .filter_map(|value| value.as_str().map(str::len));
    let width = widths.max().unwrap_or(0).max(largest(&args[1..])).max(4);
    charge(text.len().saturating_add(lines.saturating_mul(width)))
}

fn replaced(args: &[Value]) -> Result<(), Error> {
    let (value, from, to) = (text(args, 0), text(args, 1), text(args, 2));
    let count = match from {
        "" => value.len() + 1,
        from => value.matches(from).count(),
    };
    charge(value.len().saturating_add(count.saturating_mul(to.len())))
}

fn joined(args: &[Value]) -> Result<(), Error> {
    let Some(list) = args.first() else {
        return Ok(());
    };
    let separators = args
        .iter()
        .skip(1)
        .filter_map(|value| value.as_str().map(str::len));
    let separator = separators.max().unwrap_or(0);
    if let Some(text) = list.as_str() {
        return charge(text.len().saturating_mul(ELEMENT + separator));
    }
    for element in list.try_iter().into_iter().flatten() {
        charge(separator)?;
        charge_printed(&element)?;
    }
    Ok(())
}

/// A format can ask for any width, by a number in it or by an argument.
fn formatted(args: &[Value]) -> Result<(), Error> {
    let format = text(args, 0);
    for digits in format.split(|c: char| !c.is_ascii_digit()) {
        if !digits.is_empty() && !digits.parse().is_ok_and(|width: usize| width <= WIDEST) {
            return Err(too_wide());
        }
    }
    if format.contains('*') && largest(args) > WIDEST {
        return Err(too_wide());
    }
    let places = format.matches(['%', '{']).count();
    charge(format.len())?;
    // A place names its argument; the largest may be named by all of them.
    for value in args.iter().skip(1) {
        for _ in 0..places.max(1) {
            charge_printed(value)?;
        }
    }
    Ok(())
}

const WIDEST: usize = 1 << 16;

fn too_wide() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("a format cannot ask for a width beyond {WIDEST}"),
    )
}

fn in_lists(args: &[Value]) -> Result<(), Error> {
    elements(args)?;
    charge(largest(&args[1..]).saturating_mul(ELEMENT))
}

/// A list of what is given, of the characters of a text.
fn elements(args: &[Value]) -> Result<(), Error> {
    let Some(value) = args.first() else {
        return Ok(());
    };
    match value.as_str() {
        Some(text) => charge(text.len().saturating_mul(ELEMENT)),
        None => charge(length(value).unwrap_or(0)),
    }
}

fn pieces(args: &[Value]) -> Result<(), Error> {
    let value = text(args, 0);
    let pieces = match args.get(1).and_then(Value::as_str) {
        Some("") => value.len(),
        Some(separator) => value.matches(separator).count(),
        None => value.matches(char::is_whitespace).count(),
    };
    charge(value.len().saturating_add(pieces.saturating_mul(ELEMENT)))
}
