//! Formatting of numbers.

use minijinja::{Error, Value};

use super::error::fail;

/// Returns a whole number as a value.
pub(in crate::chat) fn int(value: i128) -> Value {
    i64::try_from(value).map_or_else(|_| Value::from(value), Value::from)
}

/// Maximum width and number of digits of a format. The standard library prints at most 65,535
/// decimals, and `g` prints up to three zeros before the digits that it is asked for.
const WIDEST: usize = 65_500;

/// Parses a width or a number of digits; more than [`WIDEST`] is an error.
pub(in crate::chat) fn width(digits: &str) -> Result<usize, Error> {
    match digits.parse() {
        Ok(width) if width <= WIDEST => Ok(width),
        _ => Err(fail(format!(
            "a format cannot ask for a width beyond {WIDEST}"
        ))),
    }
}

/// Formats a float without its sign, by a conversion of C: `e`, `f`, `g` and their capitals.
pub(in crate::chat) fn float(
    value: f64,
    conversion: char,
    precision: Option<usize>,
    alternate: bool,
) -> String {
    let value = value.abs();
    let precision = precision.unwrap_or(6);
    let digits = if !value.is_finite() {
        if value.is_nan() { "nan" } else { "inf" }.to_owned()
    } else {
        match conversion.to_ascii_lowercase() {
            'e' => exponent(value, precision, alternate),
            'g' => general(value, precision, alternate),
            _ => format!("{value:.precision$}{}", point(precision, alternate)),
        }
    };
    match conversion.is_ascii_uppercase() {
        true => digits.to_uppercase(),
        false => digits,
    }
}

fn point(precision: usize, alternate: bool) -> &'static str {
    if alternate && precision == 0 { "." } else { "" }
}

fn exponent(value: f64, precision: usize, alternate: bool) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    let point = point(precision, alternate);
    format!("{mantissa}{point}e{sign}{:02}", exponent.unsigned_abs())
}

fn general(value: f64, precision: usize, alternate: bool) -> String {
    let precision = precision.max(1);
    let text = format!("{value:.*e}", precision - 1);
    let place: i64 = text
        .rsplit('e')
        .next()
        .and_then(|e| e.parse().ok())
        .unwrap_or(0);
    let digits = precision as i64;
    let text = match (-4..digits).contains(&place) {
        true => {
            let decimals = usize::try_from(digits - 1 - place).unwrap_or(0);
            format!("{value:.decimals$}{}", point(decimals, alternate))
        }
        false => exponent(value, precision - 1, alternate),
    };
    match alternate {
        true => text,
        false => without_zeros(&text),
    }
}

/// Removes zeros at the end of the decimals.
fn without_zeros(text: &str) -> String {
    let (digits, exponent) = text.split_at(text.find('e').unwrap_or(text.len()));
    let digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    };
    format!("{digits}{exponent}")
}

/// Formats a whole number without its sign. Returns its digits, and the prefix for `#`.
pub(in crate::chat) fn whole(value: i128, conversion: char) -> (String, &'static str) {
    let value = value.unsigned_abs();
    match conversion {
        'x' => (format!("{value:x}"), "0x"),
        'X' => (format!("{value:X}"), "0X"),
        'o' => (format!("{value:o}"), "0o"),
        'b' => (format!("{value:b}"), "0b"),
        _ => (value.to_string(), ""),
    }
}

/// Puts a separator between groups of digits, from the right. Zeros are put before the digits
/// while the text is shorter than `least`. The part after a point stays as it is.
pub(in crate::chat) fn grouped(
    digits: &str,
    separator: char,
    group: usize,
    least: usize,
) -> String {
    let is_digit = |c: char| match group {
        3 => c.is_ascii_digit(),
        _ => c.is_ascii_hexdigit(),
    };
    let end = digits.find(|c| !is_digit(c)).unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(end);
    let mut reversed = String::with_capacity(least.max(digits.len() * 2));
    let mut known = whole.chars().rev();
    let mut count = 0;
    // No separator may come first, so one more digit may follow a separator.
    while let Some(digit) = known
        .next()
        .or_else(|| (!whole.is_empty() && reversed.len() + rest.len() < least).then_some('0'))
    {
        if count > 0 && count % group == 0 {
            reversed.push(separator);
        }
        reversed.push(digit);
        count += 1;
    }
    let whole: String = reversed.chars().rev().collect();
    whole + rest
}

/// Formats a float like Python's `repr`: the shortest digits that read back, with an exponent
/// from 1e16 and below 1e-4. `names` are the words for infinity and not-a-number, which differ
/// between JSON and `repr`.
pub(in crate::chat) fn python_float(value: f64, names: (&str, &str)) -> String {
    if value.is_nan() {
        return names.1.to_owned();
    }
    if value.is_infinite() {
        return format!("{}{}", if value < 0.0 { "-" } else { "" }, names.0);
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}
