//! Arguments that a format can't write, and schemas inside grammars.

use lockstep_text::{Beside, GrammarError, ToolFormat};
use serde_json::{Value, json};

use crate::support::{Tool, grammar, model};

fn tool(schema: Value, strict: bool) -> Vec<Tool> {
    let other = Tool {
        name: "ping".to_owned(),
        schema: None,
        strict: true,
    };
    vec![
        other,
        Tool {
            name: "look".to_owned(),
            schema: Some(schema),
            strict,
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
        (of(json!({"$ref": "#/nowhere"})), Some("$ref"), true),
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
