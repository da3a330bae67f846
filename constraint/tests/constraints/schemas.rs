use lockstep_types::constraint::{Constraint, ConstraintKind};
use serde_json::{Value, json};

use crate::support::{accepts, compact, regex, schema};

/// A schema, its instances, and texts that are none.
type Row = (Value, Vec<&'static str>, Vec<&'static str>);

fn check(table: Vec<Row>) {
    for (own, valid, invalid) in table {
        let constraint = compact(&own);
        for text in valid {
            assert!(accepts(&constraint, text), "{own} has {text}");
        }
        for text in invalid {
            assert!(!accepts(&constraint, text), "{own} has not {text}");
        }
    }
}

#[test]
fn plain_values_are_those_of_their_schema() {
    check(vec![
        (json!(true), vec!["1", "[]", "\"x\""], vec!["", "x", "{"]),
        (json!({"type": "null"}), vec!["null"], vec!["nul", "0"]),
        (
            json!({"type": "boolean"}),
            vec!["true", "false"],
            vec!["True", "1"],
        ),
        (
            json!({"type": "integer"}),
            vec!["0", "-7", "120"],
            vec!["01", "1.5", "+1", "\"1\""],
        ),
        (
            json!({"type": "number"}),
            vec!["0", "1.5", "-2e3"],
            vec![".5", "1.", "NaN"],
        ),
        (
            json!({"type": "integer", "minimum": 3, "maximum": 12}),
            vec!["3", "9", "12"],
            vec!["2", "13", "-5"],
        ),
        (
            json!({"type": "number", "exclusiveMinimum": 0}),
            vec!["0.1", "5"],
            vec!["0", "-1"],
        ),
        (
            json!({"type": "integer", "multipleOf": 5}),
            vec!["0", "15", "-10"],
            vec!["7", "51"],
        ),
        (
            json!({"type": "string"}),
            vec!["\"\"", "\"a b\"", "\"\\n\\\"\"", "\"äöü🦀\""],
            vec!["a", "\"", "\"a\nb\"", "\"\\x\""],
        ),
        (
            json!({"type": "string", "minLength": 2, "maxLength": 3}),
            vec!["\"ab\"", "\"äöü\""],
            vec!["\"a\"", "\"abcd\""],
        ),
        (
            json!({"type": "string", "pattern": "^[a-c]+$"}),
            vec!["\"abc\""],
            vec!["\"abd\"", "\"\""],
        ),
        (
            json!({"type": "string", "format": "date"}),
            vec!["\"2026-02-28\""],
            vec!["\"2026-13-01\"", "\"today\""],
        ),
        (
            json!({"type": "string", "format": "uuid"}),
            vec!["\"123e4567-e89b-12d3-a456-426614174000\""],
            vec!["\"123\""],
        ),
        (
            json!({"enum": ["red", 4, null]}),
            vec!["\"red\"", "4", "null"],
            vec!["\"blue\"", "5"],
        ),
        (
            json!({"const": {"a": 1}}),
            vec!["{\"a\":1}"],
            vec!["{\"a\":2}", "{}"],
        ),
        (
            json!({"type": ["string", "null"]}),
            vec!["\"x\"", "null"],
            vec!["1"],
        ),
    ]);
}

#[test]
fn containers_are_those_of_their_schema() {
    let person = json!({"type": "object", "properties": {"name": {"type": "string"},
        "age": {"type": "integer"}}, "required": ["name", "age"], "additionalProperties": false});
    let tree = json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object",
        "properties": {"left": {"$ref": "#/$defs/node"}}, "additionalProperties": false}}});
    check(vec![
        (
            json!({"type": "array"}),
            vec!["[]", "[1,\"a\",[]]"],
            vec!["[1,]", "[1"],
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}}),
            vec!["[]", "[1,2]"],
            vec!["[\"a\"]", "[1 2]"],
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}),
            vec!["[1]", "[1,2]"],
            vec!["[]", "[1,2,3]"],
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "integer"}], "items": false}),
            vec!["[]", "[1]"],
            vec!["[1,2]", "[null]"],
        ),
        (
            json!({"type": "object"}),
            vec!["{}", "{\"a\":[]}"],
            vec!["[]", "{a:1}"],
        ),
        (
            person,
            vec!["{\"name\":\"Ada\",\"age\":36}"],
            vec![
                "{\"name\":\"Ada\"}",
                "{\"age\":36,\"name\":\"Ada\"}",
                "{\"name\":\"Ada\",\"age\":36,\"x\":1}",
                "{\"name\":1,\"age\":36}",
            ],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer"}}}),
            vec!["{}", "{\"a\":1}", "{\"b\":\"x\"}"],
            vec!["{\"a\":\"x\"}"],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            vec!["{\"b\":1}"],
            vec!["{\"b\":\"x\"}"],
        ),
        (
            json!({"type": "object", "patternProperties": {"^x": {"type": "integer"}},
            "additionalProperties": false}),
            vec!["{\"xa\":1}"],
            vec!["{\"ya\":1}"],
        ),
        (
            json!({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}),
            vec!["1", "true"],
            vec!["\"a\""],
        ),
        (
            json!({"oneOf": [{"type": "integer"}, {"type": "string"}]}),
            vec!["1", "\"a\""],
            vec!["null"],
        ),
        (
            json!({"allOf": [{"type": "integer"}, {"minimum": 5}]}),
            vec!["5"],
            vec!["4"],
        ),
        (
            tree,
            vec!["{}", "{\"left\":{\"left\":{}}}"],
            vec!["{\"left\":1}", "{\"right\":{}}"],
        ),
        (
            json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "t",
            "description": "d", "type": "integer", "default": 4, "foo": 1}),
            vec!["4"],
            vec!["\"\""],
        ),
    ]);
}

#[test]
fn blanks_are_bounded() {
    let list = json!({"type": "array", "items": {"type": "integer"}});
    for (text, flexible) in [
        ("[1, 2]", true),
        ("[\n  1,\n  2\n]", true),
        ("[1,  2]", false),
        ("[1,\n\n2]", false),
        (" [1]", false),
        ("[1,\t2]", false),
    ] {
        assert_eq!(accepts(&schema(&list), text), flexible, "{text:?}");
        assert!(!accepts(&compact(&list), text), "{text:?}");
    }
    assert!(accepts(&compact(&list), "[1,2]") && accepts(&schema(&list), "[1,2]"));
}

#[test]
fn expressions_and_choices_are_matched_as_a_whole() {
    for (pattern, text, good) in [
        ("[ab]+c", "abac", true),
        ("[ab]+c", "ab", false),
        ("[ab]+c", "abacx", false),
        (r"^\d{2}/\d{2}$", "12/34", true),
        (r"^\d{2}/\d{2}$", "12/3", false),
        (r"[\d-]+", "1-2", true),
        (r"\d", "۳", false),
        ("a\nb", "a\nb", true),
        ("(a|aa)+b", "aaab", true),
        ("ä|🦀", "🦀", true),
    ] {
        assert_eq!(accepts(&regex(pattern), text), good, "{pattern} {text}");
    }
    let words = [
        "yes",
        "yes, please",
        "a/b\n\"c\"",
        "[x]*",
        "schön",
        "東京 🦀",
    ];
    let choice = Constraint::new(ConstraintKind::Choice, json!(words).to_string());
    for word in words {
        assert!(accepts(&choice, word), "{word}");
    }
    for other in ["ye", "yes,", "no", "x", "yesyes", "schon", "sch", "東京"] {
        assert!(!accepts(&choice, other), "{other}");
    }
    let grammar = Constraint::new(ConstraintKind::Lark, "start: \"a\" start \"b\" | \"x\"");
    assert!(accepts(&grammar, "aaxbb") && !accepts(&grammar, "aaxb"));
}
