//! Explains parse errors in words for people who write JSON, not Rust.

use std::ops::Range;

use crate::error::ApiError;

/// Returns the error for a body that could not be parsed. `path` is the error's place
/// in the body, `.` for the top.
pub(super) fn explain(body: &[u8], path: &str, error: &serde_json::Error) -> ApiError {
    let text = error.to_string();
    // serde_json appends a position; the field's name says more.
    let text = text.split(" at line ").next().unwrap_or(&text);
    if !error.is_data() {
        return syntax(body, text, error);
    }
    if let Some(field) = text
        .strip_prefix("missing field `")
        .and_then(|rest| rest.strip_suffix('`'))
    {
        let param = if path == "." {
            field.to_owned()
        } else {
            format!("{path}.{field}")
        };
        return ApiError {
            code: Some("missing_required_parameter"),
            ..ApiError::invalid(&param, format!("Missing required parameter: '{param}'."))
        };
    }
    if let Some(expected) = text
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split_once("`, expected "))
        .map(|(_, expected)| expected.replace('`', "'"))
    {
        return ApiError {
            code: Some("unknown_parameter"),
            ..ApiError::invalid(
                path,
                format!("Unknown parameter: '{path}'. Expected {expected}."),
            )
        };
    }
    let (is_type, problem) = match text.strip_prefix("invalid type: ") {
        Some(rest) => (true, mismatch(rest)),
        None => (
            false,
            text.strip_prefix("invalid value: ")
                .and_then(mismatch_of_value),
        ),
    };
    let problem = problem.unwrap_or_else(|| text.to_owned());
    if path == "." {
        return ApiError::bad_request(format!("Invalid request body: {problem}."));
    }
    let what = if is_type { "type" } else { "value" };
    ApiError {
        code: is_type.then_some("invalid_type"),
        ..ApiError::invalid(path, format!("Invalid {what} for '{path}': {problem}."))
    }
}

/// Rewrites ``integer `5`, expected a string`` in plain words.
fn mismatch(text: &str) -> Option<String> {
    let (got, expected) = text.rsplit_once(", expected ")?;
    Some(format!(
        "expected {}, but got {} instead",
        wanted(expected),
        given(got)
    ))
}

fn mismatch_of_value(text: &str) -> Option<String> {
    let (got, expected) = text.rsplit_once(", expected ")?;
    let got = quoted(got).unwrap_or(got);
    Some(format!(
        "expected {}, but got {got} instead",
        wanted(expected)
    ))
}

/// Translates a type that serde expects into JSON's word for it. The project's own
/// visitors use such words already.
fn wanted(expected: &str) -> &str {
    match expected {
        "i8" | "i16" | "i32" | "i64" | "isize" => "an integer",
        "u8" | "u16" | "u32" | "u64" | "usize" => "an integer of at least 0",
        "f32" | "f64" => "a number",
        "a sequence" => "an array",
        "a map" => "an object",
        _ if expected.starts_with("struct ") => "an object",
        _ => expected,
    }
}

/// Describes the value that was sent. A string may hold anything, and be long: its kind
/// is enough.
fn given(got: &str) -> String {
    let number = quoted(got);
    match (got.split([' ', '`']).next(), number) {
        (Some("string"), _) => "a string".to_owned(),
        (Some("integer" | "floating"), Some(number)) => format!("the number {number}"),
        (Some("boolean"), _) => "a boolean".to_owned(),
        (Some("sequence"), _) => "an array".to_owned(),
        (Some("map"), _) => "an object".to_owned(),
        (Some("null" | "unit"), _) => "null".to_owned(),
        _ => got.to_owned(),
    }
}

/// Returns the text between backticks.
fn quoted(text: &str) -> Option<&str> {
    text.split('`').nth(1)
}

fn syntax(body: &[u8], text: &str, error: &serde_json::Error) -> ApiError {
    let (line, column) = (error.line(), error.column());
    let message = match surrogate(body, offset(body, line, column), text) {
        Some(at) => format!(
            "Invalid Unicode escape '{}': it is one half of a surrogate pair without the other \
             half (line {line}, column {column}). Send both halves, or the character itself.",
            String::from_utf8_lossy(&body[at])
        ),
        None => format!("{text} (line {line}, column {column})."),
    };
    ApiError::bad_request(format!(
        "We could not parse the JSON body of your request: {message}"
    ))
}

/// Returns the offset of an error in the body. Lines count from 1, columns are bytes.
fn offset(body: &[u8], line: usize, column: usize) -> usize {
    let lines = body.split_inclusive(|byte| *byte == b'\n');
    let before: usize = lines.take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    (before + column).min(body.len())
}

/// Returns the escape at fault, if it is half of a surrogate pair. That is the last
/// escape before the error, or the escape before the last one if the last one is not
/// its other half.
fn surrogate(body: &[u8], end: usize, text: &str) -> Option<Range<usize>> {
    if !text.contains("hex escape") {
        return None;
    }
    let half = |at: usize| {
        let digits = std::str::from_utf8(body.get(at + 2..at + 6)?).ok()?;
        let unit = u16::from_str_radix(digits, 16).ok()?;
        (0xd800..0xe000).contains(&unit).then_some(at..at + 6)
    };
    let escapes = body[..end].windows(2).enumerate().rev();
    escapes
        .filter(|(_, pair)| *pair == b"\\u")
        .take(2)
        .find_map(|(at, _)| half(at))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::super::parse;
    use crate::http::json::{Object, OneOrMany, Seed};

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only its parsing is looked at")]
    struct Sample {
        count: Option<i64>,
        list: Option<Vec<u32>>,
        share: Option<f64>,
        flag: Option<bool>,
        text: Option<String>,
        one: Option<OneOrMany<String>>,
        inner: Option<Object<Inner>>,
        inners: Option<OneOrMany<Object<Inner>>>,
        seed: Option<Seed>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only its parsing is looked at")]
    #[serde(deny_unknown_fields)]
    struct Inner {
        flag: Option<bool>,
    }

    fn message(body: &str) -> String {
        parse::<Sample>(body.as_bytes()).expect_err(body).message
    }

    const MISMATCHES: &[(&str, &str)] = &[
        (
            r#"{"count": "x, expected y"}"#,
            "type for 'count': expected an integer, but got a string",
        ),
        (
            r#"{"count": 1.5}"#,
            "type for 'count': expected an integer, but got the number 1.5",
        ),
        (
            r#"{"count": [1]}"#,
            "type for 'count': expected an integer, but got an array",
        ),
        (
            r#"{"list": [1, -1]}"#,
            "value for 'list[1]': expected an integer of at least 0, but got -1",
        ),
        (
            r#"{"list": {"a": 1}}"#,
            "type for 'list': expected an array, but got an object",
        ),
        (
            r#"{"share": "x"}"#,
            "type for 'share': expected a number, but got a string",
        ),
        (
            r#"{"share": true}"#,
            "type for 'share': expected a number, but got a boolean",
        ),
        (
            r#"{"flag": 1}"#,
            "type for 'flag': expected a boolean, but got the number 1",
        ),
        (
            r#"{"text": {}}"#,
            "type for 'text': expected a string, but got an object",
        ),
        (
            r#"{"one": [null]}"#,
            "type for 'one[0]': expected a string, but got null",
        ),
        (
            r#"{"inner": [true]}"#,
            "type for 'inner': expected an object, but got an array",
        ),
        (
            r#"{"inner": {"flag": "x"}}"#,
            "type for 'inner.flag': expected a boolean, but got a string",
        ),
        (
            r#"{"inners": [[true]]}"#,
            "type for 'inners[0]': expected an object, but got an array",
        ),
        (
            r#"{"inners": 5}"#,
            "type for 'inners': expected an object, but got the number 5",
        ),
        (
            r#"{"seed": 1.5}"#,
            "type for 'seed': expected an integer of 64 bits, but got the number 1.5",
        ),
        ("[5]", "request body: expected an object, but got an array"),
        (
            "\"x\"",
            "request body: expected an object, but got a string",
        ),
        ("null", "request body: expected an object, but got null"),
    ];

    #[test]
    fn mismatches_are_said_in_the_words_of_json() {
        for (body, problem) in MISMATCHES {
            assert_eq!(
                message(body),
                format!("Invalid {problem} instead."),
                "{body}"
            );
        }
    }

    #[test]
    fn unknown_fields_are_named() {
        let error = parse::<Sample>(br#"{"inner": {"flg": true}}"#).expect_err("misspelt");
        assert_eq!(error.param.as_deref(), Some("inner.flg"));
        assert_eq!(error.code, Some("unknown_parameter"));
        assert_eq!(
            error.message,
            "Unknown parameter: 'inner.flg'. Expected 'flag'."
        );
    }

    #[test]
    fn half_a_surrogate_pair_is_shown() {
        for (body, escape) in [
            (r#"{"text": "\ud800"}"#, r"\ud800"),
            (r#"{"text": "a\udc00b"}"#, r"\udc00"),
            ("{\n\"text\": \"\\uD834\\u0041\"}", r"\uD834"),
            (r#"{"text": "\ud83dx"}"#, r"\ud83d"),
        ] {
            let message = message(body);
            let start = format!("Invalid Unicode escape '{escape}': it is one half");
            assert!(message.contains(&start), "{body}: {message}");
        }
        assert!(!message(r#"{"text": "\u12"}"#).contains("Unicode"));
        assert!(parse::<Sample>(br#"{"text": "\ud83d\ude00"}"#).is_ok());
    }
}
