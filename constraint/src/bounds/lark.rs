//! Bounds on grammars, and on the schemas and expressions inside them.

use serde_json::Value;

use super::{regex, schema};
use crate::ConstraintError;

/// Checks a grammar, and returns it with `prepare` applied to each schema inside.
///
/// # Errors
/// [`ConstraintError::Refused`], with the line.
pub(crate) fn lark(text: &str, prepare: impl Fn(&mut Value)) -> Result<String, ConstraintError> {
    if text.contains("::=") {
        return Err(ConstraintError::refused(
            "it is in the notation of GBNF or EBNF ('::=')",
        ));
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let at = |message: String| {
            let line = text[..text.len() - rest.len()].matches('\n').count() + 1;
            ConstraintError::refused(format!("line {line}: {message}"))
        };
        let taken = match first {
            '"' => quoted(rest, '"'),
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' => {
                let taken = quoted(rest, '/');
                let pattern = rest.get(1..taken - 1).unwrap_or_default();
                regex(pattern).map_err(at)?;
                taken
            }
            '%' if rest.starts_with("%llguidance") => {
                return Err(at("'%llguidance' is not supported; leave it out".to_owned()));
            }
            '%' if rest.starts_with("%json") => {
                let tail = &rest["%json".len()..];
                let (checked, length) =
                    inner_schema(tail, &prepare).map_err(|error| match error {
                        // A schema's own place is worth more than its line.
                        error @ ConstraintError::Refused {
                            pointer: Some(_), ..
                        } => error,
                        error => at(error.to_string()),
                    })?;
                out.push_str("%json ");
                out.push_str(&checked);
                // What follows must not be read as a part of a number.
                out.push(' ');
                rest = &tail[length..];
                continue;
            }
            first => first.len_utf8(),
        };
        let (piece, behind) = rest.split_at(taken);
        out.push_str(piece);
        rest = behind;
    }
    Ok(out)
}

/// Returns the length of what begins with a delimiter and ends with the next one that no
/// backslash precedes.
fn quoted(text: &str, delimiter: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == delimiter && !escaped {
            return at + delimiter.len_utf8();
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

/// Checks the schema with which a text begins, and returns it, and its length in the text.
fn inner_schema(
    text: &str,
    prepare: impl Fn(&mut Value),
) -> Result<(String, usize), ConstraintError> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next();
    let value = value.and_then(Result::ok);
    let value = value.ok_or_else(|| ConstraintError::refused("'%json' has no JSON behind it"))?;
    let length = values.byte_offset();
    let mut checked = schema(&value.to_string())?;
    prepare(&mut checked);
    Ok((checked.to_string(), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<String, String> {
        let mark = |schema: &mut Value| schema["x"] = 1.into();
        lark(text, mark).map_err(|error| error.to_string())
    }

    #[test]
    fn schemas_are_found_where_they_are_schemas() {
        for (text, expected) in [
            ("start: %json {} \"a\"", "start: %json {\"x\":1}  \"a\""),
            (
                "start: \"%json {}\" /%json/ # %json 5\n",
                "start: \"%json {}\" /%json/ # %json 5\n",
            ),
            ("a: /x\\/%json/ // %json 5", "a: /x\\/%json/ // %json 5"),
            ("a: \"\\\"\" %json true", "a: \"\\\"\" %json {\"x\":1} "),
        ] {
            assert_eq!(checked(text).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn faults_have_their_line_or_their_schemas_place() {
        for (text, expected) in [
            ("a: \"x\"\nb: %json 5", "line 2: a schema must be an object"),
            ("b: %json", "line 1: '%json' has no JSON"),
            ("\n\nb: /(/", "line 3: the regular expression is wrong"),
            ("%llguidance {}", "line 1: '%llguidance' is not supported"),
            ("b: %json {\"not\": {}}", "at \"#\": the keyword 'not'"),
            ("root ::= \"a\"", "it is in the notation of GBNF"),
            ("b: /x", "line 1: "),
        ] {
            let error = checked(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
