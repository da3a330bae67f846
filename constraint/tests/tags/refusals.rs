//! Refusals, with their places.

use lockstep_constraint::{ConstraintError, tag_schemas};
use serde_json::{Value, json};

use crate::support::{TOKENIZER, check, tag, whole};

fn refusal(tag: &Value) -> String {
    match check(&whole(tag)) {
        Err(error @ ConstraintError::Refused { .. }) => error.to_string(),
        other => panic!("{tag}: {other:?}"),
    }
}

fn text() -> Value {
    json!({"type": "any_text"})
}

fn number() -> Value {
    json!({"type": "json_schema", "json_schema": {"type": "integer"}})
}

fn tagged(content: &Value) -> Value {
    json!({"type": "tag", "begin": "<", "content": content, "end": ">"})
}

fn with(mut format: Value, key: &str, value: Value) -> Value {
    format[key] = value;
    format
}

/// Checks rows of formats and of the begin of their refusal, which is empty for what is obeyed.
fn judge(rows: Vec<(Value, &str)>) {
    for (format, expected) in rows {
        if expected.is_empty() {
            assert_eq!(check(&tag(&format)), Ok(()), "{format}");
            continue;
        }
        let refusal = refusal(&json!({"format": format}));
        assert!(refusal.starts_with(expected), "{format}: {refusal}");
    }
}

#[test]
fn what_is_not_obeyed_is_refused_by_name_and_place() {
    judge(vec![
        (json!(5), "at \"#/format\": expected an object"),
        (json!({}), "at \"#/format\": expected 'type'"),
        (
            json!({"type": "token", "token": 5}),
            "at \"#/format/type\": the format 'token' is not",
        ),
        (
            json!({"type": "const_string"}),
            "at \"#/format\": expected 'value'",
        ),
        (
            json!({"type": "const_string", "value": "a", "x": 1}),
            "at \"#/format/x\": unknown key: a format 'const_string'",
        ),
        (
            with(number(), "any_order", json!(true)),
            "at \"#/format/any_order\": 'any_order' is",
        ),
        (
            with(number(), "style", json!("cohere_xml")),
            "at \"#/format/style\": it must be",
        ),
        (
            with(number(), "max_whitespace_cnt", json!(-1)),
            "at \"#/format/max_whitespace_cnt\"",
        ),
        (
            with(text(), "max_tokens", json!(5)),
            "at \"#/format/max_tokens\": 'max_tokens' is not",
        ),
        (
            with(text(), "max_chars", json!(5000)),
            "at \"#/format/max_chars\": expected a number",
        ),
        (
            with(text(), "excludes", json!([""])),
            "at \"#/format/excludes\": expected a list",
        ),
        (with(text(), "excludes", json!(["a"])), ""),
        (
            json!({"type": "sequence", "elements": []}),
            "at \"#/format/elements\": expected a list",
        ),
        (
            json!({"type": "or", "elements": [text(), 5]}),
            "at \"#/format/elements/1\": expected an object",
        ),
        (
            json!({"type": "repeat", "min": 3, "max": 2, "content": number()}),
            "at \"#/format\": expected 'min' and 'max'",
        ),
        (
            with(tagged(&text()), "end", json!([])),
            "at \"#/format/end\": expected a text",
        ),
        (
            with(tagged(&text()), "end", json!({"type": "token", "token": 5})),
            "at \"#/format/end\": expected a text",
        ),
        (
            tagged(&json!({"type": "regex", "pattern": "(a"})),
            "at \"#/format/content\": the regular expression is wrong",
        ),
        (
            tagged(&json!({"type": "grammar", "grammar": "start: \"a\""})),
            "at \"#/format/content\": it must be in EBNF",
        ),
        (
            tagged(&json!({"type": "grammar", "grammar": "root ::= b"})),
            "at \"#/format/content\": line 1: there is no rule 'b'",
        ),
        (
            tagged(&json!({"type": "json_schema", "json_schema": {"items": {"not": {}}}})),
            "at \"#/format/content/json_schema/items\": the keyword 'not' is not supported",
        ),
        (
            json!({"type": "qwen_xml_parameter", "json_schema": {"anyOf": []}}),
            "at \"#/format/json_schema\": ",
        ),
        (
            json!({"type": "qwen_xml_parameter", "json_schema": {"properties": {"a": {"type":
                "string", "pattern": "a"}}}}),
            "at \"#/format/json_schema\": the keyword 'pattern' can't be followed there",
        ),
    ]);
}

#[test]
fn places_in_which_nothing_is_told_apart_are_refused() {
    let triggered = json!({"type": "triggered_tags", "triggers": ["<f"], "tags": [
        {"begin": "<f>", "content": number(), "end": "</f>"}]});
    judge(vec![
        (
            json!({"type": "sequence", "elements": [text(), number()]}),
            "at \"#/format/elements/0\": free text must be followed by a fixed text",
        ),
        (
            json!({"type": "star", "content": text()}),
            "at \"#/format/content\": free text must be followed by a fixed text",
        ),
        (
            with(tagged(&text()), "end", json!(["</a>", "</a>b"])),
            "at \"#/format/content\": free text there ends with '</a>', so never with '</a>b'",
        ),
        (
            with(triggered.clone(), "triggers", json!(["<f", "f>"])),
            "at \"#/format/triggers/1\": no tag begins with the trigger 'f>'",
        ),
        (
            with(triggered.clone(), "triggers", json!(["<f", "<"])),
            "at \"#/format/triggers/0\": the trigger '<f' contains the trigger '<'",
        ),
        (
            with(triggered.clone(), "triggers", json!([])),
            "at \"#/format/triggers\": expected a list of 1 to 256 texts",
        ),
        (
            with(triggered.clone(), "at_least_one", json!("yes")),
            "at \"#/format/at_least_one\": it must be true or false",
        ),
        (
            with(
                triggered.clone(),
                "tags",
                json!([{"begin": "x", "content": number(),
                "end": ""}, triggered["tags"][0]]),
            ),
            "at \"#/format/tags/0/begin\": the tag begins with none of the triggers",
        ),
        (
            with(triggered.clone(), "tags", json!([{"type": "any_text"}])),
            "at \"#/format/tags/0/type\": expected a format of the type \"tag\"",
        ),
    ]);
}

#[test]
fn forms_are_not_mixed() {
    let structure = json!({"begin": "<f>", "schema": {}, "end": "</f>"});
    for (tag, expected) in [
        (json!([]), "at \"#\": expected an object"),
        (
            json!({"type": "text"}),
            "at \"#/type\": it must be \"structural_tag\"",
        ),
        (
            json!({"type": "structural_tag"}),
            "at \"#\": expected 'format', or 'structures'",
        ),
        (
            json!({"format": number(), "triggers": ["<f>"]}),
            "at \"#/triggers\": unknown key: a structural tag has 'format', or",
        ),
        (
            json!({"structures": [structure]}),
            "at \"#\": expected 'triggers'",
        ),
        (
            json!({"structures": [{"begin": "<f>", "end": "x"}], "triggers": ["<f>"]}),
            "at \"#/structures/0\": expected 'schema'",
        ),
        (
            json!({"structures": [{"begin": "<f>", "schema": "{", "end": "x"}],
                "triggers": ["<f>"]}),
            "at \"#/structures/0/schema\": it is no JSON",
        ),
        (
            json!({"structures": [{"begin": "<f>", "schema": {"not": {}}, "end": "x"}],
                "triggers": ["<f>"]}),
            "at \"#/structures/0/schema\": the keyword 'not'",
        ),
    ] {
        let refusal = refusal(&tag);
        assert!(refusal.starts_with(expected), "{tag}: {refusal}");
    }
}

/// A token that ends outputs comes nowhere else.
#[test]
fn end_tokens_are_no_part_of_a_text() {
    let end = TOKENIZER.id_to_token(crate::support::ENDS[0]).unwrap();
    let format = json!({"type": "tag", "begin": "<", "content": number(), "end": end});
    let refusal = refusal(&json!({"format": format}));
    assert!(
        refusal.contains("the token that ends outputs of this model"),
        "{refusal}"
    );
}

#[test]
fn hostile_tags_are_refused_before_they_compile() {
    let deep = (0..40).fold(
        number(),
        |inner, _| json!({"type": "optional", "content": inner}),
    );
    let many = vec![json!({"type": "const_string", "value": "a"}); 1001];
    let optional: Vec<Value> = (0..30)
        .map(|at| {
            let one = |text: String| json!({"type": "const_string", "value": text});
            json!({"type": "or", "elements": [
                {"type": "optional", "content": one(format!("a{at}"))},
                {"type": "optional", "content": one(format!("b{at}"))}]})
        })
        .collect();
    let ends: Vec<String> = (0..20)
        .map(|at| format!("{at:02}{}", "|".repeat(3000)))
        .collect();
    let long = json!({"type": "tag", "begin": "<", "content": text(), "end": ends});
    let specials = json!({"type": "const_string", "value": "<|call|>".repeat(40)});
    for (format, expected) in [
        (deep, "nest deeper than 32"),
        (
            json!({"type": "or", "elements": many}),
            "there are more than 1000 formats",
        ),
        (
            json!({"type": "const_string", "value": "a".repeat(70_000)}),
            "bytes; the limit is 65536",
        ),
        (
            long,
            "its translation to Lark grows to more than 1048576 bytes",
        ),
        (specials, "more than 32 special tokens"),
    ] {
        let refusal = refusal(&json!({"format": format}));
        assert!(
            refusal.contains(expected) && refusal.len() < 500,
            "{refusal}"
        );
    }
    let triggers: Vec<String> = (0..100)
        .map(|at| format!("<{at:03}{}", "|".repeat(60)))
        .collect();
    let tags = triggers
        .iter()
        .map(|begin| json!({"begin": begin, "content": number(), "end": ""}));
    let wide = json!({"type": "triggered_tags", "triggers": triggers,
        "tags": tags.collect::<Vec<_>>()});
    assert_eq!(check(&tag(&wide)), Ok(()));
    // Ways are told apart once, however many lead there.
    assert_eq!(
        check(&tag(&json!({"type": "sequence", "elements": optional}))),
        Ok(())
    );
}

#[test]
fn schemas_are_found_with_their_paths() {
    let tag = json!({"format": {"type": "sequence", "elements": [
        {"type": "optional", "content": number()},
        {"type": "triggered_tags", "triggers": ["<"], "tags": [
            {"begin": "<", "content": {"type": "qwen_xml_parameter", "json_schema": {}}, "end": ""}]},
    ]}});
    let found = tag_schemas(&tag.to_string()).unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|one| (one.path.join("."), one.schema.as_str()))
        .collect();
    let expected = [
        (
            "format.elements.0.content.json_schema".to_owned(),
            "{\"type\":\"integer\"}",
        ),
        (
            "format.elements.1.tags.0.content.json_schema".to_owned(),
            "{}",
        ),
    ];
    assert_eq!(found, expected);
}
