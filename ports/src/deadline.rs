//! `grpc-timeout`, the time limit that a client sets for a call (gRPC over HTTP/2,
//! "Requests").

use std::time::Duration;

use hyper::HeaderMap;

/// Returns the time limit in a call's head. `None` without one, or if the header is not
/// a number of at most eight digits and a unit.
pub(crate) fn grpc_timeout(head: &HeaderMap) -> Option<Duration> {
    let text = head.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_unit() {
        let rows = [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("4m", Some(Duration::from_millis(4))),
            ("5u", Some(Duration::from_micros(5))),
            ("6n", Some(Duration::from_nanos(6))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("100000000S", None),
            ("1", None),
            ("", None),
            ("S", None),
            ("-1S", None),
            ("+1S", None),
            ("1s", None),
            ("1é", None),
        ];
        for (text, expected) in rows {
            let mut head = HeaderMap::new();
            let value = hyper::header::HeaderValue::from_bytes(text.as_bytes());
            head.insert("grpc-timeout", value.expect("a value"));
            assert_eq!(grpc_timeout(&head), expected, "{text:?}");
        }
        assert_eq!(grpc_timeout(&HeaderMap::new()), None);
    }
}
