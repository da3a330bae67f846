//! Filters of numbers.

use minijinja::{Error, State, Value};

use super::super::super::meter::charge;
use super::super::args::{Args, text, whole};
use super::super::text::{decimal, is_space};
use super::super::value::{self, Number, Py, fail, undefined};

type Result<T, E = Error> = std::result::Result<T, E>;

pub(super) fn abs(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    match number(value)? {
        Number::Int(number) => Ok(value::int(number.saturating_abs())),
        Number::Float(number) => Ok(Value::from(number.abs())),
    }
}

fn number(value: &Value) -> Result<Number> {
    let py = Py::of(value);
    match py.number() {
        Some(number) => Ok(number),
        None if py == Py::Undefined => Err(undefined()),
        None => Err(fail(format!(
            "a number is needed, not '{}'",
            py.type_name()
        ))),
    }
}

pub(super) fn int(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [default, base] = args.bind(["default", "base"])?;
    let default = default.unwrap_or(Value::from(0));
    let base = whole(base.as_ref(), 10)?;
    match Py::of(value) {
        Py::Undefined => Err(undefined()),
        Py::Str(text) => {
            charge(text.len())?;
            match parse_int(text, base)? {
                Some(number) => Ok(value::int(number)),
                None => match parse_float(text) {
                    Some(number) if number.is_finite() => truncated(number),
                    _ => Ok(default),
                },
            }
        }
        py => match py.number() {
            Some(Number::Int(number)) => Ok(value::int(number)),
            Some(Number::Float(number)) if number.is_nan() => Ok(default),
            Some(Number::Float(number)) => truncated(number),
            None => Ok(default),
        },
    }
}

fn truncated(number: f64) -> Result<Value> {
    match number.abs() < 1e38 {
        true => Ok(value::int(number.trunc() as i128)),
        false => Err(fail("a whole number beyond 128 bits")),
    }
}

/// Parses `int(text, base)`; `None` if the text is no number.
fn parse_int(text: &str, base: i128) -> Result<Option<i128>> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = digits.get(..2).unwrap_or_default().to_ascii_lowercase();
    let (base, digits) = match (base, prefix.as_str()) {
        (0 | 2, "0b") => (2, &digits[2..]),
        (0 | 8, "0o") => (8, &digits[2..]),
        (0 | 16, "0x") => (16, &digits[2..]),
        (0, _) if digits.starts_with('0') && !digits.trim_matches(['0', '_']).is_empty() => {
            return Ok(None);
        }
        (0, _) => (10, digits),
        (2..=36, _) => (base as u32, digits),
        _ => return Ok(None),
    };
    let digits = digits
        .strip_prefix('_')
        .filter(|_| prefix.starts_with('0'))
        .unwrap_or(digits);
    let Some(digits) = plain_digits(digits) else {
        return Ok(None);
    };
    let digits: Option<Vec<u32>> = digits.chars().map(|c| digit(c, base)).collect();
    let Some(digits) = digits.filter(|digits| !digits.is_empty()) else {
        return Ok(None);
    };
    let mut number = 0i128;
    for digit in digits {
        let more = number.checked_mul(i128::from(base));
        let more = more.and_then(|number| number.checked_add(i128::from(digit)));
        number = more.ok_or_else(|| fail("a whole number beyond 128 bits"))?;
    }
    Ok(Some(if negative { -number } else { number }))
}

/// Removes underscores; `None` unless each stands between two digits.
fn plain_digits(digits: &str) -> Option<String> {
    let misplaced = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    (!misplaced).then(|| digits.replace('_', ""))
}

fn digit(c: char, base: u32) -> Option<u32> {
    match c.is_ascii() {
        true => c.to_digit(base),
        false => decimal(c).filter(|value| *value < base),
    }
}

pub(super) fn float(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [default] = args.bind(["default"])?;
    let default = default.unwrap_or(Value::from(0.0));
    let number = match Py::of(value) {
        Py::Undefined => return Err(undefined()),
        Py::Str(text) => {
            charge(text.len())?;
            parse_float(text)
        }
        py => py.number().map(Number::float),
    };
    Ok(number.map_or(default, Value::from))
}

/// Parses `float(text)`; `None` if the text is no number.
fn parse_float(text: &str) -> Option<f64> {
    let plain = |c: char| decimal(c).and_then(|value| char::from_digit(value, 10));
    let text = text.trim_matches(is_space).chars();
    let text: String = text.map(|c| plain(c).unwrap_or(c)).collect();
    let digit = |at: Option<usize>| {
        let byte = at.and_then(|at| text.as_bytes().get(at));
        byte.is_some_and(u8::is_ascii_digit)
    };
    let around = |at: usize| digit(at.checked_sub(1)) && digit(Some(at + 1));
    let placed = text.match_indices('_').all(|(at, _)| around(at));
    placed.then(|| text.replace('_', "").parse().ok()).flatten()
}

pub(super) fn round(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [precision, method] = args.bind(["precision", "method"])?;
    let precision = whole(precision.as_ref(), 0)?;
    let precision = i32::try_from(precision.clamp(-400, 400)).unwrap_or(0);
    let method = method.as_ref().map(text).transpose()?.unwrap_or("common");
    let number = number(value)?;
    let scale = 10f64.powi(precision);
    match (method, number) {
        ("common", Number::Int(number)) => rounded_int(number, precision).map(value::int),
        ("common", Number::Float(number)) => Ok(Value::from(rounded(number, precision))),
        ("ceil" | "floor", number) => {
            let scaled = number.float() * scale;
            if !scaled.is_finite() {
                return Err(fail("the number has no whole part"));
            }
            let whole = if method == "ceil" {
                scaled.ceil()
            } else {
                scaled.floor()
            };
            // Python's whole numbers have no negative zero.
            Ok(Value::from((whole + 0.0) / scale))
        }
        _ => Err(fail("the method must be common, ceil or floor")),
    }
}

fn rounded_int(number: i128, precision: i32) -> Result<i128> {
    if precision >= 0 {
        return Ok(number);
    }
    let Some(unit) = 10i128.checked_pow(precision.unsigned_abs()) else {
        return Ok(0);
    };
    let (quotient, rest) = (number.div_euclid(unit), number.rem_euclid(unit));
    let up = match (rest * 2).cmp(&unit) {
        std::cmp::Ordering::Equal => quotient % 2 != 0,
        order => order.is_gt(),
    };
    let rounded = (quotient + i128::from(up)).checked_mul(unit);
    rounded.ok_or_else(|| fail("a whole number beyond 128 bits"))
}

/// Rounds to `precision` decimals by the number's exact digits; of two equally near
/// numbers, to the even one.
fn rounded(number: f64, precision: i32) -> f64 {
    match usize::try_from(precision) {
        _ if !number.is_finite() => number,
        Ok(precision) => format!("{number:.precision$}").parse().unwrap_or(number),
        Err(_) => {
            let unit = 10f64.powi(-precision);
            (number / unit).round_ties_even() * unit
        }
    }
}
