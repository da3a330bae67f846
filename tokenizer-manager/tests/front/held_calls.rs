//! Answers whose calls are held to a grammar: what is asked of the engine, and what is refused.

use lockstep_proto::pb::lockstep::{Constraint, FinishReason};
use lockstep_types::ToolStrictLevel;
use serde_json::{Value, json};

use super::{
    answers::{Tools, start, start_tools},
    client::{chat, with},
};

const CHAT: &str = "/v1/chat/completions";
const CALL: &str =
    "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"x\"}}\n</tool_call>";

fn tool(name: &str, fields: &Value) -> Value {
    let place = json!({"place": {"type": "string"}});
    let function = json!({"name": name, "parameters": {"type": "object", "properties": place}});
    json!({"type": "function", "function": with(function, fields)})
}

/// Returns a chat request without reasoning, with two tools, and `fields` added.
fn asking(fields: &Value) -> Value {
    let asked = json!({
        "tools": [tool("ping", &json!({})), tool("look", &json!({}))],
        "chat_template_kwargs": {"enable_thinking": false},
    });
    with(chat(&asked), fields)
}

/// Sends a request, answers it with `output`, and returns the answer and the constraint.
async fn post(
    tools: &Tools,
    path: &str,
    body: &Value,
    output: &str,
) -> (Value, Option<Constraint>) {
    let scheduler = async {
        let job = tools.front.mock.job().await;
        tools.say(&job, output, FinishReason::Stop);
        job.submit.constraint.clone()
    };
    let client = async {
        let (status, text) = tools.front.post(path, body).await;
        assert_eq!(status, 200, "{text} {body}");
        text
    };
    let (text, asked) = tokio::join!(client, scheduler);
    (serde_json::from_str(&text).expect("json"), asked)
}

#[tokio::test]
async fn chats_are_held_to_the_calls_that_they_ask_for() {
    let tools = start("auto").await;
    let named = |name| json!({"type": "function", "function": {"name": name}});
    let allowed = |mode| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named("look")]}});
    let strict = json!([
        tool("ping", &json!({})),
        tool("look", &json!({"strict": true}))
    ]);
    // Fields; whether `ping` may be called, text may stand there, and several calls may.
    for (fields, ping, text, several) in [
        (json!({"tool_choice": "required"}), true, false, true),
        (
            json!({"tool_choice": "required", "parallel_tool_calls": false}),
            true,
            false,
            false,
        ),
        (json!({"tool_choice": named("look")}), false, false, false),
        (
            json!({"tool_choice": allowed("required")}),
            false,
            false,
            true,
        ),
        (json!({"tool_choice": allowed("auto")}), false, true, true),
        (json!({"parallel_tool_calls": false}), true, true, false),
        (json!({"tools": strict}), true, true, true),
    ] {
        let (answer, asked) = post(&tools, CHAT, &asking(&fields), CALL).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        assert_eq!(
            choice["message"]["tool_calls"][0]["function"]["name"],
            "look"
        );
        let grammar = asked.expect("a constraint").text;
        let start = grammar.lines().next().expect("a rule");
        assert_eq!(grammar.contains("ping"), ping, "{fields} {grammar}");
        assert_eq!(start.ends_with('?'), text, "{fields} {grammar}");
        assert_eq!(start.contains(")*"), several, "{fields} {grammar}");
    }
}

/// A call that the model chooses to make names a tool of the request, whatever its arguments are.
/// An output that no grammar suits is free.
#[tokio::test]
async fn names_are_held_where_nothing_asks_for_it() {
    let tools = start("auto").await;
    let (answer, asked) = post(&tools, CHAT, &asking(&json!({})), CALL).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    let grammar = asked.expect("a constraint").text;
    let names = ["ping", "look"].iter().all(|name| grammar.contains(name));
    assert!(names && !grammar.contains("place"), "{grammar}");
    // A call inside the reasoning may be one, or only a mention of its mark.
    let thinking = json!({"chat_template_kwargs": {"enable_thinking": true}});
    let (_, asked) = post(&tools, CHAT, &asking(&thinking), CALL).await;
    let after = asked.and_then(|asked| asked.after).expect("reasoning");
    assert_eq!(after.breaks, ["<tool_call>"]);
    for fields in [
        json!({"ignore_eos": true}),
        json!({"separate_reasoning": false}),
        json!({"tool_choice": "none"}),
    ] {
        let (_, asked) = post(&tools, CHAT, &asking(&fields), "Ok").await;
        assert_eq!(asked, None, "{fields}");
    }
    let unmarked = start("llama3").await;
    let (_, asked) = post(&unmarked, CHAT, &asking(&json!({})), "Ok").await;
    assert_eq!(asked, None, "calls without a mark");
}

/// The server's level says what is held.
#[tokio::test]
async fn the_level_says_what_is_held() {
    let at = |level| async move {
        start_tools("auto", |engine| {
            engine.server.answers.tool_strict_level = level;
        })
        .await
    };
    let off = at(ToolStrictLevel::Off).await;
    let (_, asked) = post(&off, CHAT, &asking(&json!({})), CALL).await;
    assert_eq!(asked, None);
    let (_, asked) = post(
        &off,
        CHAT,
        &asking(&json!({"tool_choice": "required"})),
        CALL,
    )
    .await;
    assert!(asked.is_some(), "the request asks");
    let arguments = at(ToolStrictLevel::Parameter).await;
    let (_, asked) = post(&arguments, CHAT, &asking(&json!({})), CALL).await;
    assert!(asked.expect("a constraint").text.contains("place"));
    // So do those beside one that is strict.
    let some = json!([
        tool("ping", &json!({"strict": true, "parameters": {}})),
        tool("look", &json!({}))
    ]);
    let (_, asked) = post(&arguments, CHAT, &asking(&json!({"tools": some})), CALL).await;
    assert!(asked.expect("a constraint").text.contains("place"));
    let multiple = |kind| json!({"type": kind, "multipleOf": 997});
    let one = json!({"type": "object", "properties": {"a": multiple("number")}});
    let tools = json!([tool("look", &json!({"parameters": one}))]);
    let (_, asked) = post(&arguments, CHAT, &asking(&json!({"tools": tools})), CALL).await;
    assert!(asked.expect("a constraint").text.contains("multipleOf"));
    // Schemas that can't be obeyed, by themselves or as a grammar, or take too much work, leave
    // the name.
    let overlap =
        json!({"oneOf": [{"type": "object"}, {"type": "object", "properties": {"a": {}}}]});
    let both = json!({"a": multiple("number"), "b": multiple("integer")});
    let heavy = json!({"type": "object", "properties": both});
    for schema in [json!({"type": "object", "not": {}}), overlap, heavy] {
        let tool = tool("look", &json!({"parameters": schema}));
        let (_, asked) = post(&arguments, CHAT, &asking(&json!({"tools": [tool]})), CALL).await;
        let grammar = asked.expect("a constraint").text;
        assert!(
            grammar.contains("look") && !grammar.contains("Of"),
            "{grammar}"
        );
    }
}

#[tokio::test]
async fn other_apis_are_held_in_their_own_words() {
    let tools = start("auto").await;
    let kwargs = json!({"enable_thinking": false});
    let flat = json!([{"type": "function", "name": "look"}]);
    for choice in [
        json!("required"),
        json!({"type": "function", "name": "look"}),
        json!({"type": "allowed_tools", "mode": "required",
            "tools": [{"type": "function", "name": "look"}]}),
    ] {
        let body = json!({"input": "hi", "tools": flat, "tool_choice": choice,
            "chat_template_kwargs": kwargs});
        let (answer, asked) = post(&tools, "/v1/responses", &body, CALL).await;
        assert_eq!(answer["output"][0]["name"], "look", "{answer}");
        assert_eq!(answer["tool_choice"], choice);
        assert!(asked.expect("a constraint").text.contains("look"));
    }
    let own = json!([{"name": "look", "input_schema": {"type": "object"}, "strict": true}]);
    for choice in [
        json!({"type": "any"}),
        json!({"type": "tool", "name": "look"}),
        json!({"type": "auto", "disable_parallel_tool_use": true}),
        json!({"type": "auto"}),
    ] {
        let body = json!({"max_tokens": 100, "messages": [{"role": "user", "content": "hi"}],
            "tools": own, "tool_choice": choice, "chat_template_kwargs": kwargs});
        let (answer, asked) = post(&tools, "/v1/messages", &body, CALL).await;
        assert_eq!(answer["content"][0]["name"], "look", "{answer}");
        assert_eq!(answer["stop_reason"], "tool_use");
        assert!(asked.expect("a constraint").text.contains("look"));
    }
}

/// An answer is the format or calls. Marks inside the format are text.
#[tokio::test]
async fn an_answer_has_its_format_or_calls() {
    let tools = start("auto").await;
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema":
        {"type": "array", "items": {"type": "string"}}}});
    let body = asking(&json!({"response_format": format}));
    let (answer, asked) = post(&tools, CHAT, &body, CALL).await;
    assert_eq!(
        answer["choices"][0]["finish_reason"], "tool_calls",
        "{answer}"
    );
    let grammar = asked.expect("a constraint").text;
    assert!(
        grammar.contains("array") && grammar.contains("ping"),
        "{grammar}"
    );
    let text = format!("[\"{}\"]", "<tool_call>{'name'");
    let (answer, _) = post(&tools, CHAT, &body, &text).await;
    assert_eq!(answer["choices"][0]["message"]["content"], text, "{answer}");
    // Where calls are required, nothing is left that could have a format.
    let body = asking(&json!({"response_format": format, "tool_choice": "required"}));
    let (_, asked) = post(&tools, CHAT, &body, CALL).await;
    assert!(!asked.expect("a constraint").text.contains("array"));
}

/// Returns the number of requests that were refused for their constraint, for this reason.
fn refused_for(reason: &str, metrics: &str) -> u64 {
    let reason = format!("reason=\"{reason}\"");
    let mut lines = metrics.lines().filter(|line| {
        line.starts_with("lockstep_front_constraints_refused_total{") && line.contains(&reason)
    });
    let count = lines.next().and_then(|line| line.rsplit(' ').next());
    count.map_or(0, |count| count.parse().expect("a number"))
}

#[tokio::test]
async fn what_can_not_be_held_is_refused_by_name() {
    let tools = start("auto").await;
    let with_schema = |schema: Value, strict: bool| {
        let one = tool("a", &json!({"parameters": schema, "strict": strict}));
        json!([tool("ping", &json!({})), one])
    };
    let not = json!({"type": "object", "properties": {"a": {"not": {}}}});
    let overlap = json!({"type": "object", "properties": {"a": {"oneOf": [
        {"type": "string"}, {"type": "string", "minLength": 3}]}}});
    let parameters = "tools[1].function.parameters";
    for (fields, param, words) in [
        (
            json!({"tools": with_schema(not.clone(), true)}),
            parameters,
            "'not'",
        ),
        (
            json!({"tools": with_schema(overlap.clone(), true)}),
            parameters,
            "'oneOf'",
        ),
        (
            json!({"tools": with_schema(overlap, false), "tool_choice": "required"}),
            parameters,
            "'oneOf'",
        ),
        (
            json!({"tool_choice": {"type": "allowed_tools", "allowed_tools":
                {"mode": "auto", "tools": [{"function": {"name": "nobody"}}]}}}),
            "tool_choice",
            "'nobody'",
        ),
        (
            json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "any"}}}),
            "tool_choice",
            "'mode'",
        ),
        (
            json!({"tools": [], "tool_choice": "required"}),
            "tool_choice",
            "'tools'",
        ),
        (
            json!({"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}}),
            "response_format",
            "beside tools that may be called",
        ),
        (
            json!({"tool_choice": "required", "ignore_eos": true}),
            "ignore_eos",
            "'tool_choice'",
        ),
        (
            json!({"tool_choice": "required", "separate_reasoning": false,
                "chat_template_kwargs": {"enable_thinking": true}}),
            "separate_reasoning",
            "leave it out",
        ),
        (
            json!({"response_format": {"type": "json_object"}, "separate_reasoning": false,
                "chat_template_kwargs": {"enable_thinking": true}}),
            "separate_reasoning",
            "leave it out",
        ),
    ] {
        let (status, text) = tools.front.post(CHAT, &asking(&fields)).await;
        let error: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(
            (status, &error["error"]["param"]),
            (400, &json!(param)),
            "{text}"
        );
        assert!(text.contains(words), "{text}");
    }
    // Each request is counted once, for the reason that it reads.
    let metrics = tools.front.get("/metrics").await.1;
    for (reason, count) in [("keyword", 3), ("text", 1)] {
        let found = refused_for(reason, &metrics);
        assert_eq!(found, count, "{reason} {metrics}");
    }
    // A keyword that can't be obeyed binds nobody where the tool is not strict.
    let fields = json!({"tools": with_schema(not, false), "tool_choice": "required"});
    let call = "<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>";
    post(&tools, CHAT, &asking(&fields), call).await;
}

/// Calls without a mark can be required, but not told from text while it is written.
#[tokio::test]
async fn formats_without_marks_have_required_calls_alone() {
    let tools = start("llama3").await;
    let strict = json!([tool("look", &json!({"strict": true}))]);
    for (fields, param) in [
        (json!({"tools": strict}), "tools[0].function.strict"),
        (json!({"parallel_tool_calls": false}), "parallel_tool_calls"),
        (
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
        ),
    ] {
        let (status, text) = tools.front.post(CHAT, &asking(&fields)).await;
        let error: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(
            (status, &error["error"]["param"]),
            (400, &json!(param)),
            "{text}"
        );
        assert!(
            text.contains("llama3") && text.contains("required"),
            "{text}"
        );
    }
    let metrics = tools.front.get("/metrics").await.1;
    assert_eq!(refused_for("model", &metrics), 3, "{metrics}");
    let call = "{\"name\": \"look\", \"parameters\": {}}";
    let (answer, _) = post(
        &tools,
        CHAT,
        &asking(&json!({"tool_choice": "required"})),
        call,
    )
    .await;
    assert_eq!(
        answer["choices"][0]["finish_reason"], "tool_calls",
        "{answer}"
    );
}
