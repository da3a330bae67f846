//! Names that clients of other servers have for the same wishes: each is obeyed, or refused by
//! name.

use lockstep_proto::pb::lockstep::{Constraint, ConstraintKind, FinishReason};
use serde_json::{Value, json};

use super::{
    answers::{Tools, start},
    client::{chat, completion, with},
    messages::message,
    responses::response,
};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const GENERATE: &str = "/generate";

/// Returns a request of an API with `fields` added.
fn request(path: &str, fields: &Value) -> Value {
    match path {
        CHAT => chat(fields),
        COMPLETIONS => completion(fields),
        RESPONSES => response(fields),
        MESSAGES => message(fields),
        _ => with(json!({"text": "ab"}), fields),
    }
}

/// Sends a request, answers it, and returns its prompt, its constraint and the answer.
async fn obeyed(
    tools: &Tools,
    (path, fields): (&str, &Value),
    output: &str,
) -> (String, Option<Constraint>, Value) {
    let scheduler = async {
        let job = tools.front.mock.job().await;
        tools.say(&job, output, FinishReason::Stop);
        (tools.prompt(&job), job.submit.constraint.clone())
    };
    let body = request(path, fields);
    let (answer, (prompt, constraint)) = tokio::join!(tools.front.ok(path, &body), scheduler);
    (prompt, constraint, answer)
}

/// Sends requests that are refused, each naming its field.
async fn refused(tools: &Tools, rows: Vec<(&str, Value, &str)>) {
    for (path, fields, param) in rows {
        let (status, text) = tools.front.post(path, &request(path, &fields)).await;
        let told = status == 400 && text.contains(&format!("'{param}'"));
        assert!(told, "{path} {fields}: {status} {text}");
    }
}

#[tokio::test]
async fn reasoning_is_turned_on_and_off_by_every_name() {
    let tools = start("none").await;
    let kwargs = |fields: Value| json!({"chat_template_kwargs": fields});
    let thinking = |kind: &str| json!({"thinking": {"type": kind}});
    let asked = |fields: Value| json!({"reasoning": fields});
    let (on, off, free) = (Some(true), Some(false), None);
    let mut rows = Vec::new();
    for effort in ["minimal", "low", "medium", "high", "xhigh", "max"] {
        rows.push((CHAT, json!({"reasoning_effort": effort}), on));
        rows.push((CHAT, asked(json!({"effort": effort})), on));
        rows.push((RESPONSES, asked(json!({"effort": effort})), on));
        // Anthropic's effort turns nothing on.
        rows.push((MESSAGES, json!({"output_config": {"effort": effort}}), free));
    }
    rows.extend([
        (CHAT, json!({"reasoning_effort": "none"}), off),
        (CHAT, asked(json!({"effort": "none"})), off),
        (RESPONSES, asked(json!({"effort": "none"})), off),
        (CHAT, thinking("enabled"), on),
        (CHAT, thinking("disabled"), off),
        (MESSAGES, thinking("adaptive"), on),
        (MESSAGES, thinking("disabled"), off),
        (
            CHAT,
            json!({"include_reasoning": true, "separate_reasoning": true}),
            free,
        ),
        (CHAT, json!({"stream_reasoning": true}), free),
        (
            CHAT,
            json!({"reasoning": null, "thinking": null, "enable_thinking": null}),
            free,
        ),
        (
            RESPONSES,
            asked(json!({"effort": null, "summary": "auto", "enabled": null})),
            free,
        ),
        // What the template's own switch says stays.
        (
            CHAT,
            with(
                asked(json!({"enabled": true})),
                &kwargs(json!({"enable_thinking": false})),
            ),
            off,
        ),
    ]);
    for path in [CHAT, RESPONSES] {
        rows.extend([
            (path, asked(json!({})), free),
            (path, asked(json!({"enabled": true})), on),
            (path, asked(json!({"enabled": false})), off),
            (path, asked(json!({"max_tokens": 30})), on),
            (path, asked(json!({"max_tokens": 0})), free),
            (
                path,
                asked(json!({"effort": "low", "enabled": true, "max_tokens": 9})),
                on,
            ),
        ]);
    }
    for path in [CHAT, RESPONSES, MESSAGES] {
        rows.extend([
            (path, json!({"enable_thinking": true}), on),
            (path, json!({"enable_thinking": false}), off),
            (path, kwargs(json!({"enable_thinking": true})), on),
            (path, kwargs(json!({"enable_thinking": false})), off),
        ]);
    }
    for (path, fields, expected) in rows {
        let (prompt, _, _) = obeyed(&tools, (path, &fields), "Ok").await;
        let (_, end) = prompt.rsplit_once("assistant\n").expect("the turn's begin");
        let found = match end {
            "<think>\n" => on,
            "<think>\n</think>\n\n" => off,
            "" => free,
            other => panic!("{other}"),
        };
        assert_eq!(found, expected, "{path} {fields}");
    }
}

#[tokio::test]
async fn reasoning_is_limited_by_the_objects_of_other_apis() {
    let tools = start("none").await;
    let both = json!({"reasoning": {"max_tokens": 7.0}, "thinking_budget": 7});
    for (path, fields, limit) in [
        (CHAT, json!({"reasoning": {"max_tokens": 30}}), 30),
        (
            CHAT,
            json!({"reasoning": {"max_tokens": 0, "effort": null}}),
            0,
        ),
        (
            CHAT,
            json!({"thinking": {"type": "enabled", "budget_tokens": 30}}),
            30,
        ),
        (CHAT, both.clone(), 7),
        (
            RESPONSES,
            json!({"reasoning": {"max_tokens": 30, "effort": "low"}}),
            30,
        ),
        (RESPONSES, both, 7),
    ] {
        let (_, constraint, _) = obeyed(&tools, (path, &fields), "Ok").await;
        let constraint = constraint.expect("a constraint");
        assert_eq!(constraint.kind(), ConstraintKind::Anything, "{fields}");
        assert_eq!(
            constraint.after.expect("reasoning").limit,
            Some(limit),
            "{fields}"
        );
    }
    let (_, none, _) = obeyed(
        &tools,
        (CHAT, &json!({"reasoning": {"max_tokens": -1}})),
        "Ok",
    )
    .await;
    assert_eq!(none, None);
}

#[tokio::test]
async fn reasoning_is_left_out_by_every_name() {
    let tools = start("none").await;
    let on = json!({"chat_template_kwargs": {"enable_thinking": true}});
    for (fields, shown) in [
        (json!({}), Some("Hm.")),
        (json!({"include_reasoning": true}), Some("Hm.")),
        (json!({"include_reasoning": false}), None),
        (json!({"reasoning": {"exclude": false}}), Some("Hm.")),
        (json!({"reasoning": {"exclude": true}}), None),
        (
            json!({"reasoning": {"exclude": true}, "include_reasoning": false}),
            None,
        ),
    ] {
        let fields = with(fields, &on);
        let (_, _, answer) = obeyed(&tools, (CHAT, &fields), "Hm.</think>Yes").await;
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"], "Yes", "{fields}");
        assert_eq!(message["reasoning_content"].as_str(), shown, "{fields}");
    }
}

/// Two fields must agree, and each value must be one that is known.
#[tokio::test]
async fn wishes_that_contradict_each_other_are_refused_by_name() {
    let tools = start("none").await;
    let asked = |fields: Value| json!({"reasoning": fields});
    let apart = json!({"separate_reasoning": false});
    let mut rows = vec![
        (CHAT, asked(json!("low")), "reasoning"),
        (CHAT, asked(json!({"effort": "ultra"})), "reasoning.effort"),
        (
            CHAT,
            with(
                asked(json!({"effort": "low"})),
                &json!({"reasoning_effort": "high"}),
            ),
            "reasoning.effort",
        ),
        (
            CHAT,
            with(
                asked(json!({"exclude": true})),
                &json!({"include_reasoning": true}),
            ),
            "reasoning.exclude",
        ),
        (
            CHAT,
            with(asked(json!({"exclude": true})), &apart),
            "reasoning.exclude",
        ),
        (
            CHAT,
            with(
                asked(json!({"enabled": false})),
                &json!({"enable_thinking": true}),
            ),
            "reasoning.enabled",
        ),
        (CHAT, json!({"enable_thinking": 1}), "enable_thinking"),
        (CHAT, json!({"thinking": true}), "thinking"),
        (CHAT, json!({"thinking": {"type": "auto"}}), "thinking.type"),
        (
            CHAT,
            json!({"thinking": {"type": "enabled", "budget_tokens": "9"}}),
            "thinking.budget_tokens",
        ),
        (
            CHAT,
            with(
                asked(json!({"max_tokens": 5})),
                &json!({"thinking_budget": 6}),
            ),
            "reasoning.max_tokens",
        ),
        (
            MESSAGES,
            json!({"thinking": {"type": "enabled"}}),
            "thinking.budget_tokens",
        ),
        (
            MESSAGES,
            json!({"enable_thinking": true, "thinking": {"type": "disabled"}}),
            "thinking.type",
        ),
    ];
    for path in [CHAT, RESPONSES] {
        rows.extend([
            (
                path,
                asked(json!({"max_tokens": "many"})),
                "reasoning.max_tokens",
            ),
            (
                path,
                asked(json!({"max_tokens": -2})),
                "reasoning.max_tokens",
            ),
            (path, asked(json!({"enabled": "yes"})), "reasoning.enabled"),
            (
                path,
                asked(json!({"enabled": false, "max_tokens": 5})),
                "reasoning.max_tokens",
            ),
            (
                path,
                asked(json!({"enabled": true, "effort": "none"})),
                "reasoning.effort",
            ),
        ]);
    }
    refused(&tools, rows).await;
}

#[tokio::test]
async fn names_of_other_routes_are_refused_by_name() {
    let tools = start("none").await;
    let low = json!({"effort": "low"});
    let mut rows = vec![
        (CHAT, json!({"stream_reasoning": false}), "stream_reasoning"),
        (
            RESPONSES,
            json!({"reasoning": {"exclude": true}}),
            "reasoning.exclude",
        ),
        (
            RESPONSES,
            json!({"reasoning_effort": "low"}),
            "reasoning_effort",
        ),
        (
            RESPONSES,
            json!({"thinking": {"type": "enabled"}}),
            "thinking",
        ),
        (
            MESSAGES,
            json!({"reasoning_effort": "low"}),
            "reasoning_effort",
        ),
        (MESSAGES, json!({"reasoning": low}), "reasoning"),
    ];
    for path in [RESPONSES, MESSAGES] {
        for name in [
            "separate_reasoning",
            "include_reasoning",
            "stream_reasoning",
        ] {
            rows.push((path, json!({name: false}), name));
        }
    }
    for path in [COMPLETIONS, GENERATE] {
        for (name, value) in [
            ("reasoning", json!({"effort": "low"})),
            ("reasoning_effort", json!("low")),
            ("enable_thinking", json!(true)),
            ("thinking", json!({"type": "enabled"})),
            ("chat_template_kwargs", json!({"enable_thinking": true})),
        ] {
            rows.push((path, json!({name: value}), name));
        }
    }
    refused(&tools, rows).await;
}

/// Fields that constrain chats and completions alike, with the language that each asks for.
fn constraints() -> Vec<(Value, ConstraintKind)> {
    let schema = json!({"type": "integer"});
    let words = ["yes", "no"];
    let format = |fields: Value| json!({"response_format": fields});
    let outputs = |fields: Value| json!({"structured_outputs": fields});
    let tag = json!({"type": "structural_tag",
        "format": {"type": "const_string", "value": "7"}});
    let older = json!({"type": "structural_tag", "triggers": ["<f>"],
        "structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}]});
    let (json, regex) = (ConstraintKind::JsonSchema, ConstraintKind::Regex);
    let (choice, lark) = (ConstraintKind::Choice, ConstraintKind::Lark);
    let tags = ConstraintKind::StructuralTag;
    let named = json!({"name": "a", "description": "d", "schema": schema, "strict": true});
    vec![
        (
            format(json!({"type": "json_schema", "json_schema": named})),
            json,
        ),
        (
            format(json!({"type": "json_schema", "schema": schema})),
            json,
        ),
        (
            format(json!({"type": "json_object", "schema": schema})),
            json,
        ),
        (format(json!({"type": "json_object"})), json),
        (format(tag.clone()), tags),
        (format(older.clone()), tags),
        (outputs(json!({"json": schema})), json),
        (
            outputs(json!({"json": schema.to_string(), "disable_any_whitespace": true})),
            json,
        ),
        (outputs(json!({"json_object": true})), json),
        (outputs(json!({"regex": "[0-9]"})), regex),
        (outputs(json!({"choice": words})), choice),
        (outputs(json!({"grammar": "root ::= \"7\""})), lark),
        (outputs(json!({"structural_tag": tag.to_string()})), tags),
        (json!({"guided_json": schema}), json),
        (
            json!({"guided_json": schema, "guided_decoding_backend": "xgrammar"}),
            json,
        ),
        (json!({"guided_regex": "[0-9]"}), regex),
        (json!({"guided_choice": words}), choice),
        (json!({"guided_grammar": "root ::= \"7\""}), lark),
        (json!({"json_schema": schema.to_string()}), json),
        (json!({"regex": "[0-9]"}), regex),
        (json!({"ebnf": "root ::= \"7\""}), lark),
        (json!({"grammar": "root ::= \"7\""}), lark),
        (json!({"structural_tag": older.to_string()}), tags),
    ]
}

#[tokio::test]
async fn answers_are_constrained_by_every_name() {
    let tools = start("none").await;
    let mut rows = Vec::new();
    for (fields, kind) in constraints() {
        rows.push((CHAT, fields.clone(), kind));
        rows.push((COMPLETIONS, fields, kind));
    }
    let schema = json!({"type": "integer"});
    let tag = json!({"type": "structural_tag", "format": {"type": "const_string", "value": "7"}});
    let format = json!({"type": "json_schema", "name": "a", "schema": schema, "strict": true});
    let params = |fields: Value| json!({"sampling_params": fields});
    rows.extend([
        (
            RESPONSES,
            json!({"text": {"format": format}}),
            ConstraintKind::JsonSchema,
        ),
        (
            RESPONSES,
            json!({"text": {"format": {"type": "json_object"}}}),
            ConstraintKind::JsonSchema,
        ),
        (
            MESSAGES,
            json!({"output_config": {"format": format}}),
            ConstraintKind::JsonSchema,
        ),
        (
            GENERATE,
            params(json!({"json_schema": schema.to_string()})),
            ConstraintKind::JsonSchema,
        ),
        (
            GENERATE,
            params(json!({"regex": "[0-9]"})),
            ConstraintKind::Regex,
        ),
        (
            GENERATE,
            params(json!({"ebnf": "root ::= \"7\""})),
            ConstraintKind::Lark,
        ),
        (
            GENERATE,
            params(json!({"structural_tag": tag.to_string()})),
            ConstraintKind::StructuralTag,
        ),
    ]);
    for (path, fields, kind) in rows {
        let (_, constraint, _) = obeyed(&tools, (path, &fields), "7").await;
        let found = constraint.map(|constraint| constraint.kind());
        assert_eq!(found, Some(kind), "{path} {fields}");
    }
}

#[tokio::test]
async fn other_constraints_are_refused_by_name() {
    let tools = start("none").await;
    let outputs = |fields: Value| json!({"structured_outputs": fields});
    let mut rows = vec![
        (
            CHAT,
            json!({"guided_whitespace_pattern": " ?"}),
            "guided_whitespace_pattern",
        ),
        (
            CHAT,
            json!({"guided_json_object": true}),
            "guided_json_object",
        ),
        (
            CHAT,
            json!({"grammar": "root ::= \"a\"", "grammar_lazy": true}),
            "grammar_lazy",
        ),
        (
            CHAT,
            outputs(json!({"json_object": true, "whitespace_pattern": " "})),
            "structured_outputs.whitespace_pattern",
        ),
        (
            CHAT,
            outputs(json!({"json_object": true, "disable_additional_properties": true})),
            "structured_outputs.disable_additional_properties",
        ),
        (CHAT, json!({"functions": [{"name": "f"}]}), "functions"),
        (CHAT, json!({"function_call": "auto"}), "function_call"),
        (
            MESSAGES,
            json!({"output_format": {"type": "json_schema", "schema": {}}}),
            "output_format",
        ),
    ];
    for (fields, _) in constraints() {
        let (name, _) = fields
            .as_object()
            .and_then(|fields| fields.iter().next())
            .expect("a field");
        for path in [RESPONSES, MESSAGES, GENERATE] {
            let name: &'static str = name.clone().leak();
            rows.push((path, fields.clone(), name));
        }
    }
    // TGI's.
    let grammar = json!({"parameters": {"grammar": {"type": "regex", "value": "[0-9]"}}});
    for path in [CHAT, COMPLETIONS, RESPONSES, MESSAGES, GENERATE] {
        rows.push((path, grammar.clone(), "parameters"));
    }
    refused(&tools, rows).await;
}
