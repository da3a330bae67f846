//! `str.format`.

use minijinja::{Error, Value};

use super::super::meter::Text;
use super::args::Args;
use super::items;
use super::number;
use super::repr;
use super::value::{Number, Py, fail, look_up};

/// Computes `format.format(…)`.
pub(in crate::chat) fn format(format: &str, args: &Args) -> Result<String, Error> {
    let named = |name: &str| {
        let found = args.named.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    };
    run(format, &args.positional, &named)
}

/// Computes `format.format_map(map)`.
pub(in crate::chat) fn format_map(format: &str, map: &Value) -> Result<String, Error> {
    run(format, &[], &|name| look_up(map, &Value::from(name)))
}

fn run(
    format: &str,
    positional: &[Value],
    named: &dyn Fn(&str) -> Option<Value>,
) -> Result<String, Error> {
    let mut fields = Fields {
        positional,
        named,
        next: Some(0),
    };
    let mut out = Text::default();
    fields.expand(&mut out, format, 2)?;
    Ok(out.into_string())
}

struct Fields<'a> {
    positional: &'a [Value],
    named: &'a dyn Fn(&str) -> Option<Value>,
    /// Number of the next field that has no number; `None` if the fields number themselves.
    next: Option<usize>,
}

impl Fields<'_> {
    fn expand(&mut self, out: &mut Text, format: &str, depth: usize) -> Result<(), Error> {
        let mut rest = format;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at])?;
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if rest.starts_with(brace) && depth == 2 {
                out.push_str(brace)?;
                rest = &rest[1..];
                continue;
            }
            if brace == "}" {
                return Err(fail("single '}' encountered in format string"));
            }
            let end = field_end(rest).ok_or_else(|| fail("expected '}' before end of string"))?;
            self.field(out, &rest[..end], depth)?;
            rest = &rest[end + 1..];
        }
        out.push_str(rest)
    }

    fn field(&mut self, out: &mut Text, field: &str, depth: usize) -> Result<(), Error> {
        if depth == 0 {
            return Err(fail("a format is nested too deeply"));
        }
        let (name, rest) = field.split_at(name_end(field));
        let value = self.value(name)?;
        let (conversion, spec) = match rest.strip_prefix('!') {
            Some(rest) => {
                let mut chars = rest.chars();
                let conversion = chars.next();
                match chars.as_str() {
                    "" => (conversion, ""),
                    spec => {
                        let spec = spec.strip_prefix(':');
                        (
                            conversion,
                            spec.ok_or_else(|| fail("expected ':' after conversion"))?,
                        )
                    }
                }
            }
            None => (None, rest.strip_prefix(':').unwrap_or("")),
        };
        let value = match conversion {
            None => value,
            Some('s') => Value::from(repr::string(&value)?),
            Some('r') => Value::from(repr::repr(&value)?),
            Some('a') => Value::from(repr::ascii(&value)?),
            Some(other) => return Err(fail(format!("unknown conversion specifier {other:?}"))),
        };
        let mut expanded = Text::default();
        self.expand(&mut expanded, spec, depth - 1)?;
        Spec::parse(expanded.as_str())?.format(out, &value)
    }

    /// Returns the value that a field's name stands for.
    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let mut value = match (first, first.parse::<usize>()) {
            ("", _) => {
                let next = self.next.ok_or_else(mixed)?;
                self.next = Some(next + 1);
                self.positional.get(next).cloned()
            }
            (_, Ok(at)) => {
                if self.next.is_some_and(|next| next > 0) {
                    return Err(mixed());
                }
                self.next = None;
                self.positional.get(at).cloned()
            }
            (name, Err(_)) => (self.named)(name),
        }
        .ok_or_else(|| fail(format!("the format names {name:?}, which is not there")))?;
        while !rest.is_empty() {
            if let Some(attribute) = rest.strip_prefix('.') {
                let end = attribute.find(['.', '[']).unwrap_or(attribute.len());
                let (name, after) = attribute.split_at(end);
                value = items::attribute(&value, named(name)?)?;
                rest = after;
            } else {
                let key = rest
                    .strip_prefix('[')
                    .ok_or_else(|| fail("only '.' or '[' may follow ']' in a format"))?;
                let (key, after) = key
                    .split_once(']')
                    .ok_or_else(|| fail("missing ']' in format string"))?;
                let key = named(key)?
                    .parse::<u64>()
                    .map_or_else(|_| Value::from(key), Value::from);
                value = items::item(&value, &key)?;
                rest = after;
            }
        }
        Ok(value)
    }
}

fn named(name: &str) -> Result<&str, Error> {
    match name {
        "" => Err(fail("empty attribute in format string")),
        name => Ok(name),
    }
}

fn mixed() -> Error {
    fail("cannot switch between automatic and manual field numbering")
}

/// Returns the end of a field's name: its conversion, its format or the field's end. A bracket
/// may hold either sign.
fn name_end(field: &str) -> usize {
    let mut inside = false;
    let end = field.find(|c| {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        !inside && matches!(c, '!' | ':')
    });
    end.unwrap_or(field.len())
}

/// Returns the end of a field, which may hold other fields.
fn field_end(format: &str) -> Option<usize> {
    let mut depth = 0;
    format.char_indices().find_map(|(at, c)| {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
        None
    })
}

/// The format of a field: `[[fill]align][sign][#][0][width][,][.precision][type]`.
#[derive(Debug, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    width: usize,
    group: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
    given: bool,
}

impl Spec {
    fn parse(text: &str) -> Result<Self, Error> {
        let mut spec = Self {
            given: !text.is_empty(),
            ..Self::default()
        };
        let mut chars = text.chars().peekable();
        let is_align = |c: &char| "<>=^".contains(*c);
        if text.chars().nth(1).is_some_and(|c| is_align(&c)) {
            spec.fill = chars.next();
        }
        spec.align = chars.next_if(is_align);
        spec.sign = chars.next_if(|c| "+- ".contains(*c));
        spec.alternate = chars.next_if_eq(&'#').is_some();
        if chars.next_if_eq(&'0').is_some() {
            spec.fill = spec.fill.or(Some('0'));
            spec.align = spec.align.or(Some('0'));
        }
        let digits = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>| {
            let mut digits = String::new();
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            digits
        };
        match digits(&mut chars).as_str() {
            "" => {}
            width => spec.width = number::width(width)?,
        }
        spec.group = chars.next_if(|c| ",_".contains(*c));
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(number::width(&digits(&mut chars))?);
        }
        spec.kind = chars.next();
        match chars.next() {
            None => Ok(spec),
            Some(_) => Err(fail(format!("invalid format specifier {text:?}"))),
        }
    }

    fn format(&self, out: &mut Text, value: &Value) -> Result<(), Error> {
        let py = Py::of(value);
        if !self.given {
            return repr::push_str(out, value);
        }
        match (py, py.number()) {
            (Py::Str(text), _) => self.text(out, text),
            (_, Some(Number::Int(value))) => match self.kind {
                Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => {
                    self.float(out, Number::Int(value).float())
                }
                _ => self.whole(out, value),
            },
            (_, Some(Number::Float(value))) => self.float(out, value),
            _ => Err(fail(format!(
                "unsupported format string passed to {}.__format__",
                py.type_name()
            ))),
        }
    }

    fn unknown(&self, kind: &str) -> Error {
        let code = self.kind.unwrap_or_default();
        fail(format!(
            "unknown format code '{code}' for object of type '{kind}'"
        ))
    }

    fn text(&self, out: &mut Text, text: &str) -> Result<(), Error> {
        let numeric = self.sign.is_some() || self.alternate || self.align == Some('=');
        if !matches!(self.kind, None | Some('s')) || numeric || self.group.is_some() {
            return Err(self.unknown("str"));
        }
        let cut: String = match self.precision {
            Some(precision) => text.chars().take(precision).collect(),
            None => text.to_owned(),
        };
        let align = self.align.filter(|align| *align != '0');
        self.pad(out, "", &cut, align.unwrap_or('<'))
    }

    fn whole(&self, out: &mut Text, value: i128) -> Result<(), Error> {
        if self.precision.is_some() {
            return Err(fail("precision not allowed in integer format specifier"));
        }
        let kind = self.kind.unwrap_or('d');
        if kind == 'c' {
            let c = u32::try_from(value).ok().and_then(char::from_u32);
            let c = c.ok_or_else(|| fail("%c arg not in range(0x110000)"))?;
            return self.pad(out, "", &c.to_string(), self.align.unwrap_or('<'));
        }
        if !"dnbox".contains(kind.to_ascii_lowercase()) || "DNBO".contains(kind) {
            return Err(self.unknown("int"));
        }
        let (digits, prefix) = number::whole(value, kind);
        let prefix = if self.alternate { prefix } else { "" };
        let group = if "boxX".contains(kind) { 4 } else { 3 };
        self.signed(out, value < 0, prefix, &digits, group)
    }

    fn float(&self, out: &mut Text, value: f64) -> Result<(), Error> {
        let negative = value.is_sign_negative() && !value.is_nan();
        let digits = match self.kind {
            None => match self.precision {
                None => repr::string(&Value::from(value.abs()))?,
                Some(precision) => {
                    let digits = number::float(value, 'g', Some(precision), self.alternate);
                    match digits.contains(['.', 'e', 'n', 'i']) {
                        true => digits,
                        false => digits + ".0",
                    }
                }
            },
            Some('%') => number::float(value * 100.0, 'f', self.precision, self.alternate) + "%",
            Some('n') => number::float(value, 'g', self.precision, self.alternate),
            Some(kind @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G')) => {
                number::float(value, kind, self.precision, self.alternate)
            }
            _ => return Err(self.unknown("float")),
        };
        self.signed(out, negative, "", &digits, 3)
    }

    fn signed(
        &self,
        out: &mut Text,
        negative: bool,
        prefix: &str,
        digits: &str,
        group: usize,
    ) -> Result<(), Error> {
        let sign = match (negative, self.sign) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(' ')) => " ",
            _ => "",
        };
        let align = self.align.unwrap_or('>');
        let prefix = format!("{sign}{prefix}");
        let Some(separator) = self.group else {
            return self.pad(out, &prefix, digits, align);
        };
        if separator == ',' && group != 3 {
            return Err(fail("cannot specify ',' with this format"));
        }
        // Zeros that fill the field are digits, so they are grouped too.
        let least = match (align, self.fill) {
            ('=' | '0', Some('0')) => self.width.saturating_sub(prefix.len()),
            _ => 0,
        };
        let digits = number::grouped(digits, separator, group, least);
        self.pad(out, &prefix, &digits, align)
    }

    fn pad(&self, out: &mut Text, prefix: &str, text: &str, align: char) -> Result<(), Error> {
        let length = prefix.chars().count() + text.chars().count();
        let total = self.width.saturating_sub(length);
        let fill = self.fill.unwrap_or(' ').to_string();
        let (before, between, after) = match align {
            '<' => (0, 0, total),
            '^' => (total / 2, 0, total - total / 2),
            '=' | '0' => (0, total, 0),
            _ => (total, 0, 0),
        };
        out.repeat(&fill, before)?;
        out.push_str(prefix)?;
        out.repeat(&fill, between)?;
        out.push_str(text)?;
        out.repeat(&fill, after)
    }
}
