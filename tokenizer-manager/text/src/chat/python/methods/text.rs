//! Methods of `str`.

use minijinja::{Error, Value};

use super::super::super::meter::{Text, charge};
use super::super::args::{self, Args, count, required, whole};
use super::super::format;
use super::super::html::{self, like};
use super::super::text;
use super::super::value::fail;
use super::{find, split};

/// Calls a method. A text made from a safe text is safe.
pub(super) fn call(value: &Value, s: &str, name: &str, mut args: Args) -> Result<Value, Error> {
    if let ("replace", true, Some(new)) = (name, value.is_safe(), args.positional.get_mut(1)) {
        *new = Value::from(html::escaped(new)?);
    }
    let made = match name {
        "find" | "rfind" | "index" | "rindex" => return find::find(s, name, args),
        "count" => return find::count(s, args),
        "startswith" | "endswith" => return find::starts_or_ends(s, name, args),
        "split" | "rsplit" => return split::split(s, name, args),
        "splitlines" => return split::lines(s, args),
        "partition" | "rpartition" => return split::partition(s, name, args),
        "join" => split::join(s, args, value.is_safe())?,
        "format" | "format_map" if value.is_safe() => {
            return Err(fail("a safe text cannot be formatted by its method here"));
        }
        "format" => format::format(s, &args)?,
        "format_map" => {
            let [map] = args.unnamed()?;
            format::format_map(s, &required(map)?)?
        }
        "replace" => {
            let [from, to, limit] = args.bind(["old", "new", "count"])?;
            let (from, to) = (required(from)?, required(to)?);
            let limit = whole(limit.as_ref(), -1)?;
            split::replaced(s, args::text(&from)?, args::text(&to)?, limit)?
        }
        "strip" | "lstrip" | "rstrip" => {
            let [set] = args.unnamed()?;
            let set = set.filter(|set| !set.is_none());
            let set = set.as_ref().map(args::text).transpose()?;
            text::strip(s, set, name != "rstrip", name != "lstrip")?.to_owned()
        }
        "removeprefix" | "removesuffix" => {
            let [part] = args.unnamed()?;
            let part = required(part)?;
            let part = args::text(&part)?;
            charge(s.len())?;
            let cut = match name {
                "removeprefix" => s.strip_prefix(part),
                _ => s.strip_suffix(part),
            };
            cut.unwrap_or(s).to_owned()
        }
        "zfill" | "ljust" | "rjust" | "center" | "expandtabs" => filled(s, name, args)?,
        "encode" | "maketrans" | "translate" => {
            return Err(fail(format!(
                "str.{name}() is not supported in chat templates"
            )));
        }
        _ => {
            let [] = args.unnamed()?;
            charge(s.len())?;
            match changed(s, name) {
                Some(made) => made,
                None => return Ok(Value::from(is(s, name))),
            }
        }
    };
    Ok(like(value, made))
}

/// Computes the methods that fill a text with blanks or other characters.
fn filled(s: &str, name: &str, args: Args) -> Result<String, Error> {
    match name {
        "zfill" => {
            let [width] = args.unnamed()?;
            zero_filled(s, count(Some(&required(width)?), 0)?)
        }
        "ljust" | "rjust" | "center" => {
            let [width, fill] = args.unnamed()?;
            let width = count(Some(&required(width)?), 0)?;
            let fill = fill.unwrap_or(Value::from(" "));
            let fill = args::text(&fill)?;
            if fill.chars().count() != 1 {
                return Err(fail(
                    "the fill character must be exactly one character long",
                ));
            }
            justified(s, name, width, fill)
        }
        _ => {
            let [size] = args.bind(["tabsize"])?;
            expanded(s, count(size.as_ref(), 8)?)
        }
    }
}

/// Computes the methods without arguments that return a text.
fn changed(s: &str, name: &str) -> Option<String> {
    Some(match name {
        "upper" => s.to_uppercase(),
        "lower" => s.to_lowercase(),
        "casefold" => text::case_folded(s),
        "capitalize" => text::capitalized(s),
        "title" => text::titled(s),
        "swapcase" => text::swapped(s),
        _ => return None,
    })
}

/// Computes the methods without arguments that test a text's characters.
fn is(s: &str, name: &str) -> bool {
    let all = |what: fn(char) -> bool| !s.is_empty() && s.chars().all(what);
    let name_part = |c: char| c == '_' || text::is_letter(c) || text::is_decimal(c);
    match name {
        "isalnum" => all(|c| text::is_letter(c) || c.is_numeric()),
        "isalpha" => all(text::is_letter),
        "isascii" => s.is_ascii(),
        "isdecimal" => all(text::is_decimal),
        "isdigit" => all(text::is_digit),
        "isnumeric" => all(char::is_numeric),
        "isprintable" => s.chars().all(text::is_printable),
        "isspace" => all(text::is_space),
        "istitle" => text::is_titled(s),
        "isupper" => text::is_all(s, true),
        "islower" => text::is_all(s, false),
        "isidentifier" => {
            let starts = s.chars().next().is_some_and(|c| !text::is_decimal(c));
            starts && s.chars().all(name_part)
        }
        _ => false,
    }
}

fn zero_filled(s: &str, width: usize) -> Result<String, Error> {
    let (sign, digits) = s.split_at(usize::from(s.starts_with(['+', '-'])));
    let mut out = Text::default();
    out.push_str(sign)?;
    out.repeat("0", width.saturating_sub(s.chars().count()))?;
    out.push_str(digits)?;
    Ok(out.into_string())
}

/// Fills a text to a width, at the right, the left or both sides.
pub(in crate::chat) fn justified(
    s: &str,
    name: &str,
    width: usize,
    fill: &str,
) -> Result<String, Error> {
    let total = width.saturating_sub(s.chars().count());
    let left = match name {
        "ljust" => 0,
        "rjust" => total,
        // CPython puts an odd fill character on the left if the width is odd.
        _ => total / 2 + (total & width & 1),
    };
    let mut out = Text::default();
    out.repeat(fill, left)?;
    out.push_str(s)?;
    out.repeat(fill, total - left)?;
    Ok(out.into_string())
}

fn expanded(s: &str, size: usize) -> Result<String, Error> {
    let mut out = Text::default();
    let mut column = 0;
    for c in s.chars() {
        match c {
            '\t' if size > 0 => {
                let blanks = size - column % size;
                out.repeat(" ", blanks)?;
                column += blanks;
            }
            '\t' => {}
            c => {
                out.push(c)?;
                column = if matches!(c, '\n' | '\r') {
                    0
                } else {
                    column + 1
                };
            }
        }
    }
    Ok(out.into_string())
}
