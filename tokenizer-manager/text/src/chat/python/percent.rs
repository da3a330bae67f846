//! printf-style formatting: the operator `%` with a text on its left.

use minijinja::{Error, Value};

use super::super::meter::Text;
use super::html;
use super::number;
use super::repr;
use super::value::{Number, Py, fail, iterate, look_up, tuple, undefined};

/// Computes `format % values`.
pub(in crate::chat) fn format_value(format: &Value, values: &Value) -> Result<Value, Error> {
    let text = format.as_str().unwrap_or_default();
    let values = Values::new(values, format.is_safe())?;
    Ok(html::like(
        format,
        Formatter {
            values,
            out: Text::default(),
        }
        .run(text)?,
    ))
}

/// Computes `format % (value, …)`.
pub(in crate::chat) fn format_all(format: &Value, values: Vec<Value>) -> Result<Value, Error> {
    format_value(format, &tuple(values)?)
}

/// Source of the values for directives.
struct Values {
    all: Vec<Value>,
    next: usize,
    map: Option<Value>,
    /// True if values may be left over.
    lenient: bool,
    /// True if inserted values are escaped.
    escape: bool,
}

impl Values {
    fn new(values: &Value, escape: bool) -> Result<Self, Error> {
        let py = Py::of(values);
        let (all, map) = match py {
            Py::Tuple => (iterate(values)?, None),
            Py::Dict => (vec![values.clone()], Some(values.clone())),
            _ => (vec![values.clone()], None),
        };
        // Values that have subscripts may be left over.
        let lenient = matches!(py, Py::Dict | Py::List | Py::Range(_) | Py::Undefined);
        Ok(Self {
            all,
            next: 0,
            map,
            lenient,
            escape,
        })
    }

    fn next(&mut self) -> Result<Value, Error> {
        let value = self.all.get(self.next).cloned();
        self.next += 1;
        value.ok_or_else(|| fail("not enough arguments for format string"))
    }

    fn named(&self, name: &str) -> Result<Value, Error> {
        let map = self
            .map
            .as_ref()
            .ok_or_else(|| fail("format requires a mapping"))?;
        look_up(map, &Value::from(name))
            .ok_or_else(|| fail(format!("the format names {name:?}, which is not there")))
    }
}

struct Formatter {
    values: Values,
    out: Text,
}

/// One directive between `%` and its conversion.
#[derive(Default)]
struct Directive {
    alternate: bool,
    zero: bool,
    left: bool,
    space: bool,
    plus: bool,
    width: usize,
    precision: Option<usize>,
    value: Option<Value>,
}

impl Formatter {
    fn run(mut self, format: &str) -> Result<String, Error> {
        let mut rest = format;
        let mut named = false;
        while let Some(at) = rest.find('%') {
            self.out.push_str(&rest[..at])?;
            rest = &rest[at + 1..];
            let (directive, after) = self.directive(rest)?;
            named |= directive.value.is_some();
            let mut chars = after.chars();
            let conversion = chars.next().ok_or_else(|| fail("incomplete format"))?;
            self.convert(directive, conversion)?;
            rest = chars.as_str();
        }
        self.out.push_str(rest)?;
        if self.values.next < self.values.all.len() && !self.values.lenient && !named {
            return Err(fail("not all arguments converted during string formatting"));
        }
        Ok(self.out.into_string())
    }

    /// Parses the part before a conversion, and returns the rest of the format.
    fn directive<'f>(&mut self, format: &'f str) -> Result<(Directive, &'f str), Error> {
        let mut directive = Directive::default();
        let mut rest = format;
        if let Some(named) = rest.strip_prefix('(') {
            let mut depth = 1;
            let end = named.find(|c: char| {
                depth += match c {
                    '(' => 1,
                    ')' => -1,
                    _ => 0,
                };
                depth == 0
            });
            let end = end.ok_or_else(|| fail("incomplete format key"))?;
            directive.value = Some(self.values.named(&named[..end])?);
            rest = &named[end + 1..];
        }
        while let Some(flag) = rest.chars().next() {
            match flag {
                '#' => directive.alternate = true,
                '0' => directive.zero = true,
                '-' => directive.left = true,
                ' ' => directive.space = true,
                '+' => directive.plus = true,
                _ => break,
            }
            rest = &rest[1..];
        }
        let (width, after) = self.amount(rest)?;
        if let Some(width) = width {
            directive.left |= width < 0;
            directive.width = number::width(&width.unsigned_abs().to_string())?;
        }
        rest = after;
        if let Some(digits) = rest.strip_prefix('.') {
            let (precision, after) = self.amount(digits)?;
            let precision = precision.unwrap_or(0).max(0);
            directive.precision = Some(number::width(&precision.to_string())?);
            rest = after;
        }
        Ok((
            directive,
            rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest),
        ))
    }

    /// Parses a number in the format, or takes the next value for `*`.
    fn amount<'f>(&mut self, format: &'f str) -> Result<(Option<i128>, &'f str), Error> {
        if let Some(rest) = format.strip_prefix('*') {
            let value = self.values.next()?;
            let number = Py::of(&value).int().ok_or_else(|| fail("* wants int"))?;
            return Ok((Some(number), rest));
        }
        let end = format
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(format.len());
        let (digits, rest) = format.split_at(end);
        match digits {
            "" => Ok((None, rest)),
            digits => Ok((Some(number::width(digits)? as i128), rest)),
        }
    }

    fn convert(&mut self, mut directive: Directive, conversion: char) -> Result<(), Error> {
        if conversion == '%' {
            return self.out.push('%');
        }
        if !"sradiufFeEgGxXoc".contains(conversion) {
            return Err(fail(format!("unsupported format character '{conversion}'")));
        }
        let value = match directive.value.take() {
            Some(value) => value,
            None => self.values.next()?,
        };
        match conversion {
            's' | 'r' | 'a' | 'c' => {
                let text = self.text(&value, conversion)?;
                let text = match directive.precision {
                    Some(precision) if conversion != 'c' => text.chars().take(precision).collect(),
                    _ => text,
                };
                self.pad(&directive, "", &text, false)
            }
            'f' | 'F' | 'e' | 'E' | 'g' | 'G' => {
                let number = number_of(&value)?.float();
                let alternate = directive.alternate;
                let digits = number::float(number, conversion, directive.precision, alternate);
                let sign = sign(&directive, number.is_sign_negative() && !number.is_nan());
                self.pad(&directive, sign, &digits, true)
            }
            _ => {
                let number = whole(&value, conversion)?;
                let (mut digits, prefix) = number::whole(number, conversion);
                let least = directive.precision.unwrap_or(0);
                if digits.len() < least {
                    digits = "0".repeat(least - digits.len()) + &digits;
                }
                let sign = sign(&directive, number < 0);
                let prefix = if directive.alternate { prefix } else { "" };
                self.pad(&directive, &format!("{sign}{prefix}"), &digits, true)
            }
        }
    }

    fn text(&self, value: &Value, conversion: char) -> Result<String, Error> {
        let text = match (conversion, Py::of(value)) {
            ('c', Py::Str(text)) if text.chars().count() == 1 => text.to_owned(),
            ('c', py) => {
                let code = py.int().and_then(|code| u32::try_from(code).ok());
                let c = code.and_then(char::from_u32);
                c.ok_or_else(|| fail("%c requires int or char"))?
                    .to_string()
            }
            ('s', _) if self.values.escape => return html::escaped(value),
            ('s', _) => repr::string(value)?,
            ('a', _) => repr::ascii(value)?,
            _ => repr::repr(value)?,
        };
        match self.values.escape {
            true => html::escaped(&Value::from(text)),
            false => Ok(text),
        }
    }

    fn pad(
        &mut self,
        directive: &Directive,
        prefix: &str,
        text: &str,
        numeric: bool,
    ) -> Result<(), Error> {
        let length = prefix.chars().count() + text.chars().count();
        let blanks = directive.width.saturating_sub(length);
        let zero = directive.zero && numeric && !directive.left;
        if !zero && !directive.left {
            self.out.repeat(" ", blanks)?;
        }
        self.out.push_str(prefix)?;
        if zero {
            self.out.repeat("0", blanks)?;
        }
        self.out.push_str(text)?;
        if directive.left {
            self.out.repeat(" ", blanks)?;
        }
        Ok(())
    }
}

fn sign(directive: &Directive, negative: bool) -> &'static str {
    match (negative, directive.plus, directive.space) {
        (true, ..) => "-",
        (false, true, _) => "+",
        (false, false, true) => " ",
        _ => "",
    }
}

fn number_of(value: &Value) -> Result<Number, Error> {
    let py = Py::of(value);
    match py {
        Py::Undefined => Err(undefined()),
        _ => py
            .number()
            .ok_or_else(|| fail(format!("a number is required, not {}", py.type_name()))),
    }
}

fn whole(value: &Value, conversion: char) -> Result<i128, Error> {
    match number_of(value)? {
        Number::Int(value) => Ok(value),
        Number::Float(value) if "diu".contains(conversion) && value.abs() < 1e38 => {
            Ok(value.trunc() as i128)
        }
        Number::Float(_) => Err(fail(format!(
            "%{conversion} format: an integer is required, not float"
        ))),
    }
}
