use lockstep_constraint::{Cancel, ConstraintError, Vocabulary};
use lockstep_types::constraint::{Constraint, ConstraintKind};
use serde_json::{Value, json};

use crate::support::{COMPILER, TOKENIZER, WIDTH, check, compact, regex, schema};

fn refusal(constraint: &Constraint) -> (Option<String>, Option<String>, String) {
    match check(constraint) {
        Err(ConstraintError::Refused {
            keyword,
            pointer,
            message,
        }) => (keyword, pointer, message),
        other => panic!("{constraint:?}: {other:?}"),
    }
}

/// Checks that a constraint is refused in these words, and never with the words of a fault.
fn told(constraint: &Constraint, why: &str) {
    let (_, _, message) = refusal(constraint);
    assert!(message.contains(why), "{constraint:?}: {message}");
    assert!(!message.contains("panic"), "{message}");
}

/// The keyword at fault and its place are named.
#[test]
fn what_is_not_obeyed_is_refused_by_name() {
    let inside = |own: Value| json!({"type": "object", "properties": {"a/b": own}});
    for (own, keyword, pointer) in [
        (json!({"not": {}}), "not", "#"),
        (json!({"x-guidance": {"lenient": true}}), "x-guidance", "#"),
        (
            inside(json!({"uniqueItems": true})),
            "uniqueItems",
            "#/properties/a~1b",
        ),
        (inside(json!({"if": {}})), "if", "#/properties/a~1b"),
        (
            inside(json!({"type": "string", "format": "color"})),
            "format",
            "#/properties/a~1b",
        ),
        (
            inside(json!({"pattern": "(a"})),
            "pattern",
            "#/properties/a~1b",
        ),
        (
            inside(json!({"multipleOf": 999_983})),
            "multipleOf",
            "#/properties/a~1b",
        ),
        (
            inside(json!({"$ref": "#/$defs/x"})),
            "$ref",
            "#/properties/a~1b",
        ),
        (json!({"$ref": "https://example.com/s.json"}), "$ref", "#"),
        (
            json!({"$defs": {"d": {"contains": {}}}, "items": {"$ref": "#/$defs/d"}}),
            "contains",
            "#/$defs/d",
        ),
        (
            json!({"anyOf": [{}, {"dependentRequired": {}}]}),
            "dependentRequired",
            "#/anyOf/1",
        ),
    ] {
        let (found, place, message) = refusal(&schema(&own));
        assert_eq!(
            (found.as_deref(), place.as_deref()),
            (Some(keyword), Some(pointer)),
            "{own}"
        );
        let words = ["is not supported", "is not one of", "is wrong at byte"];
        let words = [&words[..], &["must be positive", "there is no '"]].concat();
        assert!(words.iter().any(|why| message.contains(why)), "{message}");
    }
}

/// A schema that has no finite instance, or no instance at all.
#[test]
fn languages_without_words_are_refused() {
    let itself = json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}}});
    let list = json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1});
    let both = json!({"allOf": [{"type": "string"}, {"type": "integer"}]});
    let endless = "it has no instance that ends";
    for (own, why) in [
        (itself, endless),
        (list, endless),
        (json!({"$ref": "#"}), endless),
        (both, "incompatible types"),
        (json!(false), "'false' has no instance"),
    ] {
        told(&schema(&own), why);
    }
    // There is a way around.
    for own in [
        json!({"type": "array", "items": {"$ref": "#"}}),
        json!({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"},
            "minItems": 1}]}),
    ] {
        assert_eq!(check(&compact(&own)), Ok(()), "{own}");
    }
    told(&regex(r"[^\s\S]"), "it has no word");
}

#[test]
fn hostile_constraints_are_refused_before_they_compile() {
    let many = |count: usize| -> Value {
        let each = (0..count).map(|at| (format!("p{at}"), json!({"type": "integer"})));
        json!({"type": "object", "properties": each.collect::<serde_json::Map<_, _>>()})
    };
    let deep = (0..70).fold(json!({}), |inner, _| json!({"items": inner}));
    let values: Vec<String> = (0..3000).map(|at| at.to_string()).collect();
    for (own, why) in [
        (many(1000), "the object has 1000 of them"),
        (deep, "nests them deeper than 64"),
        (json!({"enum": values}), "it enumerates 3000 values"),
        (
            json!({"description": "x".repeat(70_000)}),
            "bytes; the limit is 65536",
        ),
    ] {
        told(&schema(&own), why);
    }
    assert_eq!(check(&schema(&many(200))), Ok(()));
    for (pattern, why) in [
        ("((a{0,100}){0,100}){0,100}", "repeats 1000000 times"),
        ("foo[", "is wrong at byte 3"),
        ("", "the regular expression is empty"),
        ("a{5000}", "repeats 5000 times"),
    ] {
        told(&regex(pattern), why);
    }
    let empty = "a list of at least one text, none of them empty";
    for (kind, text, why) in [
        (ConstraintKind::JsonSchema, "{", "it is no JSON"),
        (
            ConstraintKind::JsonSchema,
            "3",
            "a schema must be an object",
        ),
        (ConstraintKind::Choice, "[]", empty),
        (ConstraintKind::Choice, "[\"\"]", empty),
        (ConstraintKind::Choice, "{}", "a list of texts"),
        (ConstraintKind::Lark, "start: nothing", "nothing"),
        (ConstraintKind::Lark, "root ::= \"a\"", "GBNF or EBNF"),
        (
            ConstraintKind::Lark,
            "start: %json {\"multipleOf\": 999983}",
            "digits of at most 1000",
        ),
        (ConstraintKind::Lark, "start: start \"a\"", "it has no word"),
    ] {
        told(&Constraint::new(kind, text), why);
    }
}

/// Values of other types are told of by name, however odd they are.
#[test]
fn keywords_have_their_types() {
    let umlauts = "ä".repeat(60);
    for (own, keyword) in [
        (json!({"$ref": [format!("x{umlauts}")]}), "$ref"),
        (json!({"pattern": 5}), "pattern"),
        (json!({"format": {}}), "format"),
        (json!({"required": [1]}), "required"),
        (json!({"minimum": umlauts}), "minimum"),
        (json!({"maxItems": -1}), "maxItems"),
        (json!({"minLength": 1e30}), "minLength"),
        (json!({"type": "text"}), "type"),
        (json!({"properties": []}), "properties"),
        (json!({"allOf": {}}), "allOf"),
        (json!({"multipleOf": 4_000_000_000u64}), "multipleOf"),
        (
            json!({"allOf": [{"multipleOf": 991}, {"multipleOf": 997}]}),
            "multipleOf",
        ),
        (json!({"$ref": "#/d/a~1b", "d": {"a/b": {}}}), "$ref"),
        (json!({"$ref": "#/", "": {}}), "$ref"),
    ] {
        let (found, place, message) = refusal(&schema(&own));
        assert_eq!(found.as_deref(), Some(keyword), "{own}: {message}");
        assert!(place.is_some() && !message.contains("panic"), "{own}");
    }
}

/// A path of references as long as there is room for compiles or is refused, and ends nothing
/// else.
#[test]
fn long_paths_of_references_overflow_no_stack() {
    let count = 1200;
    let each = (0..count).map(|at| {
        let next = json!({"$ref": format!("#/d/{}", at + 1)});
        (at.to_string(), next)
    });
    let mut all: serde_json::Map<String, Value> = each.collect();
    all.insert(count.to_string(), json!({"type": "null"}));
    // In this order the checks find every path short.
    let parts = (0..=count)
        .rev()
        .map(|at| json!({"$ref": format!("#/d/{at}")}));
    let own = json!({"$ref": "#/d/0", "allOf": parts.collect::<Vec<_>>(), "d": all});
    let checked = check(&schema(&own));
    let length = checked.as_ref().err().map(ToString::to_string);
    assert!(
        length.is_none_or(|error| !error.contains("bytes")),
        "it was tried"
    );
    assert_eq!(check(&schema(&json!({"type": "integer"}))), Ok(()));
}

#[test]
fn a_cancelled_check_is_too_slow() {
    let cancel = Cancel::default();
    cancel.cancel();
    let one = schema(&json!({"type": "integer", "maximum": 77}));
    assert_eq!(COMPILER.check(&one, &cancel), Err(ConstraintError::Slow));
    assert_eq!(check(&one), Ok(()));
}

#[test]
fn a_model_without_end_tokens_has_no_constraints() {
    for ends in [&[][..], &[WIDTH as u32]] {
        let vocabulary = Vocabulary::new(&TOKENIZER, WIDTH, ends);
        assert_eq!(vocabulary.err(), Some(ConstraintError::NoEnd));
    }
}
