//! Bounds on grammars, and on the schemas and expressions inside them.

use serde_json::Value;

use super::{regex, schema};
use crate::ConstraintError;

/// Checks a grammar, and returns it with `prepare` applied to each schema inside.
///
/// # Errors
/// [`ConstraintError::Refused`], with the line.
pub(crate) fn lark(text: &str, prepare: impl Fn(&mut Value)) -> Result<String, ConstraintError> {
    if is_gbnf(text) {
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
            '/' if !rest.starts_with("//") => {
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
            _ => piece(rest),
        };
        let (taken, behind) = rest.split_at(taken);
        out.push_str(taken);
        rest = behind;
    }
    Ok(out)
}

/// Returns a grammar as an expression of another one, on the lines that it has.
///
/// # Errors
/// [`ConstraintError::Refused`] for a brace that is closed before it is opened, or the other way
/// round: the grammar would end there.
pub(crate) fn nested(text: &str) -> Result<String, ConstraintError> {
    let (mut rest, mut open) = (text, 0u32);
    while let Some(first) = rest.chars().next() {
        let next = match first {
            '{' => open.checked_add(1),
            '}' => open.checked_sub(1),
            _ => Some(open),
        };
        let Some(next) = next else {
            break;
        };
        open = next;
        rest = &rest[piece(rest)..];
    }
    match open == 0 && rest.is_empty() {
        // A comment ends with its line.
        true => Ok(format!("%lark {{ {text}\n}}")),
        false => Err(ConstraintError::refused(
            "its braces '{' and '}' are not in pairs",
        )),
    }
}

/// True if a grammar is in the notation of GBNF or EBNF: `::=` stands in it as a sign, not inside a
/// text, a comment, a regular expression or a schema. A schema's texts are quoted as the grammar's
/// are. In GBNF a rule's name and comments alone stand before the first `::=`, so it is found there
/// too.
pub(crate) fn is_gbnf(text: &str) -> bool {
    let mut rest = text;
    while !rest.is_empty() && !rest.starts_with("::=") {
        rest = &rest[piece(rest)..];
    }
    !rest.is_empty()
}

/// Returns the length of the quoted text, comment, regular expression or else character with which
/// a text begins.
fn piece(text: &str) -> usize {
    match text.chars().next() {
        Some('"') => quoted(text, '"'),
        Some('#') => line(text),
        Some('/') if text.starts_with("//") => line(text),
        Some('/') => quoted(text, '/'),
        first => first.map_or(0, char::len_utf8),
    }
}

fn line(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
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
    fn gbnf_is_known_by_a_sign_outside_of_texts() {
        for (text, expected) in [
            ("root ::= \"a\"", true),
            ("root::=[\"/#]", true),
            ("\n\troot\n::=", true),
            ("# a \" quote and a / of a comment\nroot ::= 'a'", true),
            ("# a: b\nroot ::= \"a\"", true),
            ("\"a\" root ::= \"b\"", true),
            ("start: /a/ ::= /b/", true),
            ("start: %json {\"const\": \"::\"} ::=", true),
            ("é ::= \"a\"", true),
            ("", false),
            ("start: \"::=\"", false),
            ("start: \"a\\\"::=\"", false),
            ("start: \"a\\\\\" \"::=\"", false),
            ("start: \"x\" # root ::= \"a\"\nb: \"y\"", false),
            ("// root ::= \"a\"\nstart: \"a\"", false),
            ("start: /a ::= b/", false),
            ("start: /\\/ ::= \"/", false),
            ("start: %json {\"const\": \"a ::= \\\"b\\\"\"}", false),
            (
                "start: %json {\"a ::= b\": {\"pattern\": \"/#::=\"}}",
                false,
            ),
            ("start: :: = \"a\"", false),
            ("start: \"a ::= b", false),
            ("start: é : : =", false),
        ] {
            assert_eq!(is_gbnf(text), expected, "{text}");
            let refused = checked(text).is_err_and(|error| error.contains("GBNF"));
            assert_eq!(refused, expected, "{text}");
        }
    }

    #[test]
    fn nested_grammars_are_whole() {
        for (text, good) in [
            ("start: \"a\"", true),
            ("start: \"a\" # }", true),
            ("start: /a}/ \"}\" // }", true),
            ("start: /a{2}/ %json {\"const\": \"}\"} x{2,3}", true),
            ("start: %lark { start: \"a\" }", true),
            ("start: \"a\" }", false),
            ("start: \"a\" } x: {", false),
            ("start: x{2", false),
        ] {
            let expected = format!("%lark {{ {text}\n}}");
            let expected = good.then_some(expected);
            assert_eq!(nested(text).ok(), expected, "{text}");
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
