//! `pprint.pformat` of Python.

use minijinja::{Error, Value};

use super::super::meter::{Text, charge};
use super::compare;
use super::repr::{DEEPEST, repr};
use super::value::{Py, entries, fail, iterate};

/// The width of `pprint`'s lines.
const WIDTH: usize = 80;

/// `pprint.pformat(value)`.
pub(in crate::chat) fn pretty(value: &Value) -> Result<String, Error> {
    let mut out = Text::default();
    pretty_at(&mut out, value, 0, 0, 0)?;
    Ok(out.into_string())
}

/// At a column, with `after` characters to come behind it on its last line.
fn pretty_at(
    out: &mut Text,
    value: &Value,
    column: usize,
    after: usize,
    depth: usize,
) -> Result<(), Error> {
    if depth > DEEPEST {
        return Err(fail("the value is nested too deeply to be printed"));
    }
    let flat = flat_repr(value, depth)?;
    let py = Py::of(value);
    let container = matches!(py, Py::List | Py::Tuple | Py::Dict | Py::Str(_));
    if !container || flat.chars().count() <= WIDTH.saturating_sub(column + after) {
        return out.push_str(&flat);
    }
    match py {
        Py::Str(text) => pretty_text(out, text, column, after, depth),
        Py::Dict => {
            out.push('{')?;
            let fields = sorted(entries(value)?)?;
            for (at, (key, item)) in fields.iter().enumerate() {
                let last = at + 1 == fields.len();
                let key = flat_repr(key, depth)?;
                out.push_str(&key)?;
                out.push_str(": ")?;
                let inner = column + 1 + key.chars().count() + 2;
                pretty_at(
                    out,
                    item,
                    inner,
                    if last { after + 1 } else { 1 },
                    depth + 1,
                )?;
                separate(out, last, column + 1)?;
            }
            out.push('}')
        }
        _ => {
            let items = iterate(value)?;
            let (start, end) = match (py, items.len()) {
                (Py::Tuple, 1) => ("(", ",)"),
                (Py::Tuple, _) => ("(", ")"),
                _ => ("[", "]"),
            };
            out.push_str(start)?;
            for (at, item) in items.iter().enumerate() {
                let last = at + 1 == items.len();
                let room = if last { after + end.len() } else { 1 };
                pretty_at(out, item, column + 1, room, depth + 1)?;
                separate(out, last, column + 1)?;
            }
            out.push_str(end)
        }
    }
}

fn separate(out: &mut Text, last: bool, column: usize) -> Result<(), Error> {
    if last {
        return Ok(());
    }
    out.push_str(",\n")?;
    out.repeat(" ", column)
}

/// On one line, mappings in the order of their keys.
fn flat_repr(value: &Value, depth: usize) -> Result<String, Error> {
    if depth > DEEPEST {
        return Err(fail("the value is nested too deeply to be printed"));
    }
    let (start, end, items) = match Py::of(value) {
        Py::Dict => {
            let fields = sorted(entries(value)?)?;
            let field = |(key, item): &(Value, Value)| -> Result<String, Error> {
                Ok(format!(
                    "{}: {}",
                    flat_repr(key, depth + 1)?,
                    flat_repr(item, depth + 1)?
                ))
            };
            (
                "{",
                "}",
                fields.iter().map(field).collect::<Result<Vec<_>, _>>()?,
            )
        }
        py @ (Py::List | Py::Tuple) => {
            let items = iterate(value)?;
            let (start, end) = match (py, items.len()) {
                (Py::Tuple, 1) => ("(", ",)"),
                (Py::Tuple, _) => ("(", ")"),
                _ => ("[", "]"),
            };
            let items = items.iter().map(|item| flat_repr(item, depth + 1));
            (start, end, items.collect::<Result<Vec<_>, _>>()?)
        }
        _ => return repr(value),
    };
    charge(items.iter().map(|item| item.len() + 2).sum())?;
    Ok(format!("{start}{}{end}", items.join(", ")))
}

/// By key; keys that have no order stand by their type's name, as `pprint` has it.
fn sorted(mut fields: Vec<(Value, Value)>) -> Result<Vec<(Value, Value)>, Error> {
    charge(fields.len().saturating_mul(16))?;
    fields.sort_by(|(a, _), (b, _)| match compare::order(a, b) {
        Ok(order) => order.unwrap_or(std::cmp::Ordering::Equal),
        Err(_) => Py::of(a).type_name().cmp(Py::of(b).type_name()),
    });
    Ok(fields)
}

/// A long text in pieces, each in quotes on a line of its own.
fn pretty_text(
    out: &mut Text,
    text: &str,
    column: usize,
    after: usize,
    depth: usize,
) -> Result<(), Error> {
    // Alone it gets brackets around its pieces.
    let (column, after) = match depth {
        0 => (column + 1, after + 1),
        _ => (column, after),
    };
    let room = WIDTH.saturating_sub(column);
    let mut pieces: Vec<String> = Vec::new();
    let lines: Vec<&str> = super::text::split_lines(text, true);
    for (at, line) in lines.iter().enumerate() {
        let last = at + 1 == lines.len();
        let room = if last {
            room.saturating_sub(after)
        } else {
            room
        };
        let whole = repr(&Value::from(*line))?;
        if whole.chars().count() <= room {
            pieces.push(whole);
            continue;
        }
        push_words(&mut pieces, line, room, WIDTH.saturating_sub(column))?;
    }
    if let [only] = pieces.as_slice() {
        return out.push_str(only);
    }
    let brackets = depth == 0;
    if brackets {
        out.push('(')?;
    }
    for (at, piece) in pieces.iter().enumerate() {
        if at > 0 {
            out.push('\n')?;
            out.repeat(" ", column)?;
        }
        out.push_str(piece)?;
    }
    if brackets {
        out.push(')')?;
    }
    Ok(())
}

/// Words with the blanks behind them, as many to a piece as fit.
fn push_words(
    pieces: &mut Vec<String>,
    line: &str,
    last_room: usize,
    room: usize,
) -> Result<(), Error> {
    let words = words_with_blanks(line);
    let mut current = String::new();
    for (at, word) in words.iter().enumerate() {
        let candidate = format!("{current}{word}");
        let room = if at + 1 == words.len() {
            last_room
        } else {
            room
        };
        charge(candidate.len())?;
        if repr(&Value::from(candidate.as_str()))?.chars().count() > room {
            if !current.is_empty() {
                pieces.push(repr(&Value::from(current.as_str()))?);
            }
            (*word).clone_into(&mut current);
        } else {
            current = candidate;
        }
    }
    if !current.is_empty() {
        pieces.push(repr(&Value::from(current))?);
    }
    Ok(())
}

fn words_with_blanks(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut start = 0;
    let mut blank = false;
    for (at, c) in line.char_indices() {
        if blank && !c.is_whitespace() {
            words.push(&line[start..at]);
            start = at;
        }
        blank = c.is_whitespace();
    }
    words.push(&line[start..]);
    words
}
