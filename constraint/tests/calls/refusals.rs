//! Arguments that a format can't write, and schemas inside grammars.

use lockstep_text::{Beside, GrammarError, ToolFormat};
use serde_json::{Value, json};

use crate::support::{Tool, grammar, model};

fn tool(schema: Value, strict: bool) -> Vec<Tool> {
    let other = Tool {
        name: "ping".to_owned(),
        schema: None,
        strict: true,
        loose: false,
    };
    vec![
        other,
        Tool {
            name: "look".to_owned(),
            schema: Some(schema),
            strict,
            loose: false,
        },
    ]
}

#[test]
fn what_a_format_can_not_write_is_refused_for_strict_tools_alone() {
    let of = |property: Value| json!({"type": "object", "properties": {"a": property}});
    for (schema, keyword, in_python) in [
        (
            of(json!({"type": "string", "pattern": "a+"})),
            Some("pattern"),
            true,
        ),
        (
            of(json!({"type": "string", "format": "date"})),
            Some("format"),
            true,
        ),
        (
            of(json!({"type": "string", "minLength": 9999})),
            Some("minLength"),
            true,
        ),
        (
            of(json!({"type": "string", "anyOf": [{"const": "a"}]})),
            Some("anyOf"),
            true,
        ),
        (of(json!({"enum": ["true", 5]})), Some("enum"), true),
        (
            of(json!({"enum": ["</parameter></arg_value>"]})),
            Some("enum"),
            true,
        ),
        (of(json!({"$ref": "#/nowhere"})), Some("$ref"), false),
        (
            of(json!({"enum": ["a", "bc"], "minLength": 2})),
            Some("minLength"),
            true,
        ),
        (of(json!({"enum": ["\"a", 5]})), Some("enum"), true),
        (
            of(json!({"enum": [1], "type": "string"})),
            Some("enum"),
            true,
        ),
        (
            json!({"type": "object", "minProperties": 1}),
            Some("minProperties"),
            false,
        ),
        (json!({"anyOf": [{"type": "object"}]}), Some("anyOf"), false),
        (json!({"type": "array"}), Some("type"), false),
        (
            json!({"type": "object", "properties": {"a<b": {"type": "string"}}}),
            None,
            false,
        ),
    ] {
        for name in ["qwen3_coder", "minimax-m2", "glm45", "pythonic"] {
            let format = ToolFormat::named(name).unwrap();
            let model = model(format, false);
            let made = |strict| {
                grammar(
                    format,
                    &model,
                    &tool(schema.clone(), strict),
                    Beside::Nothing,
                    true,
                )
            };
            match made(true) {
                Err(GrammarError::Arguments {
                    tool,
                    keyword: found,
                    problem,
                }) => {
                    assert_eq!((tool, found.as_deref()), (1, keyword), "{problem}");
                }
                other => assert!(name == "pythonic" && in_python, "{name} {schema} {other:?}"),
            }
            if name != "pythonic" || !in_python {
                model.matcher(&made(false).unwrap()).unwrap();
            }
        }
    }
}

/// A union that refers to itself many times is looked at for a bounded time.
#[test]
fn schemas_that_refer_to_themselves_end() {
    let branches = vec![json!({"$ref": "#/$defs/a"}); 50];
    let schema = json!({
        "type": "object", "properties": {"x": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"anyOf": branches}},
    });
    let format = ToolFormat::named("glm45").unwrap();
    let model = model(format, false);
    let made = grammar(format, &model, &tool(schema, true), Beside::Nothing, true);
    assert!(
        matches!(made, Err(GrammarError::Arguments { tool: 1, .. })),
        "{made:?}"
    );
}

/// References of a property that lead to no definition would mean another schema there.
#[test]
fn references_lead_to_definitions() {
    let point = json!({"type": "array", "items": {"$ref": "#/properties/b"}});
    for (a, defs, is_written) in [
        (
            json!({"type": "array", "items": {"$ref": "#"}}),
            json!({}),
            false,
        ),
        (point.clone(), json!({}), false),
        (
            json!({"type": "array", "items": {"$ref": "#/$defs/p"}}),
            json!({"p": point}),
            false,
        ),
        (
            json!({"type": "array", "items": {"$ref": "#/$defs/n"}}),
            json!({"p": {}}),
            false,
        ),
        (
            json!({"type": "array", "items": {"$ref": "#/$defs/p"}}),
            json!({"p": {"type": "array", "items": {"$ref": "#/$defs/a.b"}},
                "a.b": {"type": "integer"}, "unused": {"$ref": "#"}}),
            true,
        ),
    ] {
        let schema = json!({"type": "object", "$defs": defs,
            "properties": {"a": a, "b": {"type": "integer"}}, "required": ["a"]});
        for name in ["qwen3_coder", "minimax-m2", "glm45", "pythonic"] {
            let format = ToolFormat::named(name).unwrap();
            let model = model(format, false);
            let made = |strict| {
                let tools = tool(schema.clone(), strict);
                grammar(format, &model, &tools, Beside::Nothing, true)
            };
            match made(true) {
                Ok(grammar) => {
                    assert!(is_written && !grammar.contains("unused"), "{name} {schema}");
                    model.matcher(&grammar).unwrap();
                }
                Err(GrammarError::Arguments { keyword, .. }) => {
                    assert_eq!((keyword.as_deref(), is_written), (Some("$ref"), false));
                }
                Err(error) => panic!("{error}"),
            }
            model.matcher(&made(false).unwrap()).unwrap();
        }
    }
}

/// Definitions are copied where they are needed, for which there is a bound.
#[test]
fn long_grammars_are_refused_before_they_are_made() {
    let texts: serde_json::Map<_, _> = (0..100)
        .map(|at| {
            (
                format!("text{at}"),
                json!({"type": "integer", "maximum": at}),
            )
        })
        .collect();
    let big = json!({"type": "object", "properties": texts});
    let union: Vec<_> = (0..250)
        .map(|at| json!({"type": "array", "items": {"$ref": "#/$defs/big"}, "maxItems": at}))
        .collect();
    let properties: serde_json::Map<_, _> = (0..200)
        .map(|at| (format!("p{at}"), json!({"$ref": "#/$defs/union"})))
        .collect();
    let schema = json!({"type": "object", "properties": properties,
        "$defs": {"big": big, "union": {"anyOf": union}}});
    for name in ["qwen3_coder", "minimax-m2", "glm45", "pythonic", "qwen25"] {
        let format = ToolFormat::named(name).unwrap();
        let model = model(format, false);
        let tools: Vec<_> = (0..10).flat_map(|_| tool(schema.clone(), true)).collect();
        let made = grammar(format, &model, &tools, Beside::Nothing, true);
        assert_eq!(made, Err(GrammarError::TooLong), "{name}");
    }
}

/// Descriptions take no place in a grammar, but properties with their names do.
#[test]
fn annotations_are_left_out() {
    let long = "x".repeat(70_000);
    let schema = json!({
        "type": "object", "title": long, "examples": [{"a": long}],
        "properties": {
            "description": {"type": "integer", "description": long},
            "list": {"type": "array", "default": [], "items": {"$ref": "#/$defs/point"}},
        },
        "$defs": {"point": {"$comment": long, "enum": [{"title": "kept"}]}},
    });
    for name in ["qwen3_coder", "glm45", "pythonic", "qwen25"] {
        let format = ToolFormat::named(name).unwrap();
        let model = model(format, false);
        let made = grammar(
            format,
            &model,
            &tool(schema.clone(), true),
            Beside::Nothing,
            true,
        );
        let made = made.unwrap();
        assert!(
            made.contains("kept") && made.contains("description"),
            "{made}"
        );
        assert!(!made.contains("xxx") && !made.contains("default"), "{made}");
        model.matcher(&made).unwrap();
    }
}

#[test]
fn schemas_inside_grammars_have_the_bounds_of_schemas() {
    let format = ToolFormat::named("qwen25").unwrap();
    let model = model(format, false);
    for (schema, problem) in [
        (json!({"type": "object", "not": {}}), "the keyword 'not'"),
        (
            json!({"type": "object", "x-guidance": {"lenient": true}}),
            "the keyword 'x-guidance'",
        ),
        (
            json!({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}),
            "no instance",
        ),
    ] {
        let grammar = grammar(format, &model, &tool(schema, true), Beside::Nothing, true).unwrap();
        let error = model.matcher(&grammar).err().unwrap().to_string();
        assert!(error.contains(problem), "{error}");
    }
}
