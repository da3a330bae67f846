//! Numbers of a JSON file as whole millionths.

use serde_json::{Number, Value};

/// Millionths in 1.
pub(super) const ONE: i64 = 1_000_000;

/// A number in exact millionths. `None` if it is no number, has more than six decimals, or is
/// beyond 32 bits.
pub(super) fn millionths(value: &Value) -> Option<i64> {
    let number = value.as_number()?;
    let millionths = match number.as_i64() {
        Some(whole) => whole.checked_mul(ONE)?,
        None => parse(number)?,
    };
    i32::try_from(millionths).ok().map(i64::from)
}

/// Parses the shortest decimal of the same binary fraction. With up to 15 digits, that is the
/// decimal in the file.
fn parse(number: &Number) -> Option<i64> {
    let text = format!("{}", number.as_f64()?);
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
    if decimals.len() > 6 {
        return None;
    }
    format!("{whole}{decimals:0<6}").parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<i64> {
        millionths(&serde_json::from_str(text).expect("JSON"))
    }

    proptest! {
        #[test]
        fn six_decimals_are_kept_whatever_the_binary_fraction(millionths: i32) {
            let sign = if millionths < 0 { "-" } else { "" };
            let (whole, rest) = (
                i64::from(millionths).abs() / ONE,
                i64::from(millionths).abs() % ONE,
            );
            let text = format!("{sign}{whole}.{rest:06}");
            prop_assert_eq!(read(&text), Some(i64::from(millionths)), "{}", text);
        }
    }

    #[test]
    fn other_spellings_and_what_is_none() {
        for (text, millionths) in [
            ("0", Some(0)),
            ("-0.0", Some(0)),
            ("7", Some(7_000_000)),
            ("1.67", Some(1_670_000)),
            ("-25e-2", Some(-250_000)),
            ("2147.483647", Some(i64::from(i32::MAX))),
            ("2147.483648", None),
            ("0.1234567", None),
            ("1e300", None),
            ("18446744073709551615", None),
            ("\"0.2\"", None),
            ("true", None),
            ("null", None),
        ] {
            assert_eq!(read(text), millionths, "{text}");
        }
    }
}
