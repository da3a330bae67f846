//! Well-formed JSON with invalid requests.

use lockstep_tests::body::{completion, counting, with};
use serde_json::{Value, json};

use super::{Expected, beside_good_requests, check, coded, invalid, mistyped, unsupported};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

const BELOW: &str = "decimal_below_min_value";
const ABOVE: &str = "decimal_above_max_value";
const INTEGER_BELOW: &str = "integer_below_min_value";
const INTEGER_ABOVE: &str = "integer_above_max_value";
const TOO_MANY: &str = "array_above_max_length";
const TOO_LONG: &str = "context_length_exceeded";
const MISSING: &str = "missing_required_parameter";

type Row = (Value, Expected);

/// Fields that chat and completions share.
fn common() -> Vec<Row> {
    let not_found = Expected {
        status: 404,
        ..coded("model", "model_not_found")
    };
    vec![
        (json!({"model": "gpt-4"}), not_found),
        (json!({"model": ["x"]}), mistyped("model")),
        (json!({"lora_path": "x"}), unsupported("lora_path")),
        (json!({"temperature": -0.1}), coded("temperature", BELOW)),
        (json!({"temperature": 2.1}), coded("temperature", ABOVE)),
        (json!({"temperature": "hot"}), mistyped("temperature")),
        (json!({"top_p": -0.1}), coded("top_p", BELOW)),
        (json!({"top_p": 1.01}), coded("top_p", ABOVE)),
        (json!({"top_k": -2}), coded("top_k", INTEGER_BELOW)),
        (json!({"top_k": 0.5}), mistyped("top_k")),
        (json!({"min_p": 1.5}), coded("min_p", ABOVE)),
        (
            json!({"presence_penalty": 2.5}),
            coded("presence_penalty", ABOVE),
        ),
        (
            json!({"frequency_penalty": -2.5}),
            coded("frequency_penalty", BELOW),
        ),
        (
            json!({"repetition_penalty": 0}),
            coded("repetition_penalty", BELOW),
        ),
        (json!({"n": 0}), coded("n", INTEGER_BELOW)),
        (json!({"n": -1}), coded("n", INTEGER_BELOW)),
        (json!({"n": 100_000}), coded("n", INTEGER_ABOVE)),
        (json!({"n": "two"}), mistyped("n")),
        (json!({"best_of": 4, "n": 2}), unsupported("best_of")),
        (json!({"best_of": 1, "n": 2}), unsupported("best_of")),
        (json!({"stop": ""}), invalid("stop")),
        (json!({"stop": ["a", ""]}), invalid("stop")),
        (
            json!({"stop": ["a", "b", "c", "d", "e"]}),
            coded("stop", TOO_MANY),
        ),
        (json!({"stop": "x".repeat(2000)}), invalid("stop")),
        (json!({"stop": {"a": 1}}), mistyped("stop")),
        (
            json!({"stop_token_ids": [99_999]}),
            invalid("stop_token_ids"),
        ),
        (
            json!({"stop_token_ids": vec![5; 100]}),
            coded("stop_token_ids", TOO_MANY),
        ),
        (json!({"logit_bias": {"five": 1}}), invalid("logit_bias")),
        (
            json!({"logit_bias": {"5": 101}}),
            coded("logit_bias", ABOVE),
        ),
        (
            json!({"logit_bias": {"5": "much"}}),
            mistyped("logit_bias.5"),
        ),
        (json!({"logit_bias": {"99999": 1}}), invalid("logit_bias")),
        (json!({"seed": "x"}), mistyped("seed")),
        (json!({"seed": 1.5}), mistyped("seed")),
        (
            json!({"max_tokens": -1}),
            coded("max_tokens", INTEGER_BELOW),
        ),
        (json!({"max_tokens": 0}), coded("max_tokens", INTEGER_BELOW)),
        (json!({"max_tokens": 1e20}), mistyped("max_tokens")),
        (
            json!({"min_tokens": 9, "max_tokens": 5}),
            invalid("min_tokens"),
        ),
        (json!({"stream": "yes"}), mistyped("stream")),
        (
            json!({"stream_options": {"include_usage": true}}),
            invalid("stream_options"),
        ),
        (
            json!({"stream_options": {"include_usage": true}, "stream": false}),
            invalid("stream_options"),
        ),
        (json!({"priority": 5}), unsupported("priority")),
        (
            json!({"data_parallel_rank": 1}),
            invalid("data_parallel_rank"),
        ),
        (
            json!({"data_parallel_rank": -1}),
            invalid("data_parallel_rank"),
        ),
        (
            json!({"data_parallel_rank": "0"}),
            mistyped("data_parallel_rank"),
        ),
        (json!({"cache_salt": ""}), invalid("cache_salt")),
        (
            json!({"cache_salt": "x".repeat(257)}),
            invalid("cache_salt"),
        ),
        (json!({"cache_salt": 5}), mistyped("cache_salt")),
    ]
}

/// Constraints of outputs, which chat and completions share.
fn constraints() -> Vec<Row> {
    vec![
        (
            json!({"response_format": {"type": "structural_tag"}}),
            invalid("response_format"),
        ),
        (
            json!({"response_format": {"type": "structural_tag",
                "format": {"type": "sequence", "elements": [{"type": "any_text"}, 5]}}}),
            invalid("response_format"),
        ),
        (
            json!({"structural_tag": {"triggers": ["<f"],
                "structures": [{"begin": "<f", "schema": {"not": {}}, "end": ""}]}}),
            invalid("structural_tag.structures[0].schema"),
        ),
        (
            json!({"structured_outputs": {"structural_tag": "["}}),
            invalid("structured_outputs.structural_tag"),
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}),
            invalid("response_format"),
        ),
        (
            json!({"response_format": {"type": "json_object", "schema": {"not": {}}}}),
            invalid("response_format"),
        ),
        (
            json!({"guided_json_object": true}),
            unsupported("guided_json_object"),
        ),
        (
            json!({"grammar_lazy": true, "grammar": "root ::= \"a\""}),
            unsupported("grammar_lazy"),
        ),
        (
            json!({"guided_json": {"$ref": "#"}}),
            invalid("guided_json"),
        ),
        (json!({"guided_json": [1]}), invalid("guided_json")),
        (json!({"regex": "(((a{99}){99}){99})"}), invalid("regex")),
        (json!({"regex": 5}), mistyped("regex")),
        (json!({"guided_choice": [""]}), invalid("guided_choice")),
        (json!({"regex": "a", "guided_regex": "a"}), invalid("regex")),
        (
            json!({"regex": "a", "ignore_eos": true}),
            invalid("ignore_eos"),
        ),
        (json!({"grammar": "root ::= x"}), invalid("grammar")),
        (
            json!({"structured_outputs": {"json": {}, "regex": "a"}}),
            invalid("structured_outputs"),
        ),
        (
            json!({"structured_outputs": {"grammar": "x"}}),
            invalid("structured_outputs.grammar"),
        ),
    ]
}

fn chat() -> Vec<Row> {
    let image = json!({"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}});
    let message = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let user = json!({"role": "user", "content": "x"});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    vec![
        (json!({"messages": null}), coded("messages", MISSING)),
        (json!({"messages": []}), coded("messages", "empty_array")),
        (json!({"messages": "hello"}), mistyped("messages")),
        (json!({"messages": ["hello"]}), invalid("messages[0]")),
        (
            json!({"messages": vec![user; 5000]}),
            coded("messages", TOO_MANY),
        ),
        (
            json!({"messages": [{"content": "x"}]}),
            coded("messages[0].role", MISSING),
        ),
        (
            json!({"messages": [{"role": "robot", "content": "x"}]}),
            invalid("messages[0].role"),
        ),
        (
            json!({"messages": [{"role": "user"}]}),
            invalid("messages[0].content"),
        ),
        (message(json!(7)), invalid("messages[0].content")),
        (
            message(json!([image])),
            unsupported("messages[0].content[0]"),
        ),
        (
            message(json!([{"text": "x"}])),
            invalid("messages[0].content[0]"),
        ),
        (
            message(json!("word ".repeat(3000))),
            coded("messages", TOO_LONG),
        ),
        (json!({"max_tokens": 3000}), coded("messages", TOO_LONG)),
        (
            json!({"max_tokens": 5, "max_completion_tokens": 6}),
            invalid("max_tokens"),
        ),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            coded("top_logprobs", INTEGER_ABOVE),
        ),
        (
            json!({"logprobs": true, "top_logprobs": -1}),
            coded("top_logprobs", INTEGER_BELOW),
        ),
        (json!({"top_logprobs": 2}), invalid("top_logprobs")),
        (json!({"logprobs": 5}), mistyped("logprobs")),
        (json!({"tools": vec![tool; 1000]}), coded("tools", TOO_MANY)),
        (
            json!({"tools": [{"type": "function"}]}),
            invalid("tools[0].function"),
        ),
        (
            json!({"reasoning_effort": "ultra"}),
            invalid("reasoning_effort"),
        ),
        // The demo model knows no marks of reasoning.
        (
            json!({"thinking_token_budget": 5}),
            unsupported("thinking_token_budget"),
        ),
        (
            json!({"reasoning": {"max_tokens": 5}}),
            unsupported("reasoning.max_tokens"),
        ),
        (
            json!({"reasoning": {"effort": "ultra"}}),
            invalid("reasoning.effort"),
        ),
        (
            json!({"thinking_budget_tokens": -2}),
            coded("thinking_budget_tokens", INTEGER_BELOW),
        ),
        (
            json!({"thinking_budget": 5, "reasoning_budget_tokens": 6}),
            invalid("thinking_budget"),
        ),
        (
            json!({"thinking_budget": "short"}),
            mistyped("thinking_budget"),
        ),
        (
            json!({"custom_params": {"thinking_budget": "short"}}),
            invalid("custom_params.thinking_budget"),
        ),
        (json!({"tool_choice": "required"}), invalid("tool_choice")),
        (
            json!({"functions": [{"name": "f"}]}),
            unsupported("functions"),
        ),
        (
            json!({"response_format": {"type": "json_schema"}}),
            invalid("response_format"),
        ),
        (
            json!({"response_format": "json"}),
            invalid("response_format"),
        ),
        (
            json!({"modalities": ["text", "audio"]}),
            unsupported("modalities"),
        ),
        (json!({"audio": {"voice": "x"}}), unsupported("audio")),
        (
            json!({"chat_template": "{{ 1 }}"}),
            unsupported("chat_template"),
        ),
    ]
}

/// Messages of earlier turns.
fn history() -> Vec<Row> {
    let messages =
        |message: Value| json!({"messages": [message, {"role": "user", "content": "x"}]});
    let message =
        |role: &str, fields: Value| messages(with(json!({"role": role, "content": "x"}), &fields));
    let calls = |calls: Value| message("assistant", json!({"tool_calls": calls}));
    let call =
        |function: Value| calls(json!([{"id": "a", "type": "function", "function": function}]));
    let arguments = |arguments: Value| call(json!({"name": "f", "arguments": arguments}));
    let custom = json!({"id": "a", "type": "custom", "custom": {"name": "f", "input": ""}});
    let thinking = json!([{"type": "thinking", "thinking": "x"}]);
    let absent = |role: &str| messages(json!({"role": role}));
    let null = |role: &str| message(role, json!({"content": null}));
    vec![
        (calls(json!("f")), invalid("messages[0].tool_calls")),
        (calls(json!({})), invalid("messages[0].tool_calls")),
        (calls(json!(["f"])), invalid("messages[0].tool_calls[0]")),
        (calls(json!([{}])), invalid("messages[0].tool_calls[0]")),
        (
            calls(json!([custom])),
            unsupported("messages[0].tool_calls[0]"),
        ),
        (
            call(json!({})),
            invalid("messages[0].tool_calls[0].function.name"),
        ),
        (
            arguments(json!(7)),
            invalid("messages[0].tool_calls[0].function.arguments"),
        ),
        (
            arguments(json!([])),
            invalid("messages[0].tool_calls[0].function.arguments"),
        ),
        (
            message(
                "assistant",
                json!({"function_call": {"name": "f", "arguments": "{}"}}),
            ),
            unsupported("messages[0].function_call"),
        ),
        (
            message("user", json!({"name": 7})),
            invalid("messages[0].name"),
        ),
        (
            message("tool", json!({"tool_call_id": 7})),
            invalid("messages[0].tool_call_id"),
        ),
        (
            message("assistant", json!({"reasoning": {}})),
            invalid("messages[0].reasoning"),
        ),
        (
            message("assistant", json!({"thinking": []})),
            invalid("messages[0].thinking"),
        ),
        (
            message("assistant", json!({"reasoning_content": 7})),
            invalid("messages[0].reasoning_content"),
        ),
        (
            message("user", json!({"content": thinking})),
            invalid("messages"),
        ),
        (absent("developer"), invalid("messages[0].content")),
        (null("system"), invalid("messages[0].content")),
        (null("tool"), invalid("messages[0].content")),
    ]
}

fn completions() -> Vec<Row> {
    vec![
        (json!({"prompt": null}), coded("prompt", MISSING)),
        (json!({"prompt": []}), invalid("prompt")),
        (json!({"prompt": ""}), invalid("prompt")),
        (json!({"prompt": [[]]}), invalid("prompt")),
        (json!({"prompt": {"text": "a"}}), mistyped("prompt")),
        (json!({"prompt": ["a", 5]}), invalid("prompt")),
        (json!({"prompt": [4096]}), invalid("prompt")),
        (json!({"prompt": [-1]}), invalid("prompt[0]")),
        (json!({"prompt": vec![5; 2048]}), coded("prompt", TOO_LONG)),
        (
            json!({"prompt": vec!["a"; 2000]}),
            coded("prompt", TOO_MANY),
        ),
        (json!({"max_tokens": 2048}), coded("prompt", TOO_LONG)),
        (json!({"logprobs": 6}), coded("logprobs", INTEGER_ABOVE)),
        (json!({"logprobs": -1}), coded("logprobs", INTEGER_BELOW)),
        (json!({"logprobs": true}), mistyped("logprobs")),
        (json!({"suffix": "end"}), unsupported("suffix")),
        (json!({"echo": "yes"}), mistyped("echo")),
    ]
}

/// Complete bodies of other routes.
fn others() -> Vec<(&'static str, Value, Expected)> {
    let text = |params: Value| json!({"text": "a", "sampling_params": params});
    vec![
        ("/generate", json!({}), coded("text", MISSING)),
        (
            "/generate",
            json!({"text": "a", "input_ids": [5]}),
            invalid("input_ids"),
        ),
        (
            "/generate",
            json!({"input_ids": [99_999]}),
            invalid("input_ids"),
        ),
        (
            "/generate",
            text(json!({"temperature": -1})),
            coded("sampling_params.temperature", BELOW),
        ),
        (
            "/generate",
            text(json!({"regex": "(a"})),
            invalid("sampling_params.regex"),
        ),
        (
            "/generate",
            text(json!({"ebnf": "root ::= x"})),
            invalid("sampling_params.ebnf"),
        ),
        (
            "/generate",
            text(json!({"structural_tag": "{\"format\": {\"type\": \"token\", \"token\": 5}}"})),
            invalid("sampling_params.structural_tag"),
        ),
        (
            "/generate",
            text(json!({"temprature": 1})),
            coded("sampling_params.temprature", "unknown_parameter"),
        ),
        (
            "/generate",
            text(json!({"max_new_tokens": 4000})),
            coded("text", TOO_LONG),
        ),
        (
            "/generate",
            json!({"text": "a", "rid": "not an id"}),
            invalid("rid"),
        ),
        (
            "/generate",
            json!({"text": "a", "image_data": "x"}),
            unsupported("image_data"),
        ),
        (
            "/generate",
            json!({"text": "a", "lora_path": "x"}),
            unsupported("lora_path"),
        ),
        (
            "/v1/unload_lora_adapter",
            json!({"lora_name": "a b"}),
            invalid("lora_name"),
        ),
        (
            "/v1/unload_lora_adapter",
            json!({"lora_name": "x"}),
            invalid(""),
        ),
        ("/v1/responses", json!({}), coded("input", MISSING)),
        (
            "/v1/responses",
            json!({"input": []}),
            coded("input", "empty_array"),
        ),
        ("/v1/responses", json!({"input": 5}), invalid("input")),
        (
            "/v1/responses",
            json!({"input": [{"type": "item_reference"}]}),
            unsupported("input[0]"),
        ),
        (
            "/v1/responses",
            json!({"input": "a", "previous_response_id": "resp_1"}),
            unsupported("previous_response_id"),
        ),
        (
            "/v1/responses",
            json!({"input": "a", "max_output_tokens": 4000}),
            coded("input", TOO_LONG),
        ),
        ("/tokenize", json!({}), invalid("prompt")),
        (
            "/detokenize",
            json!({"tokens": [99_999]}),
            invalid("tokens"),
        ),
        ("/detokenize", json!({}), coded("tokens", MISSING)),
        ("/abort_request", json!({}), invalid("rid")),
        (CHAT, json!(["a"]), invalid("")),
        (CHAT, json!("a"), invalid("")),
        (COMPLETIONS, json!(null), invalid("")),
    ]
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_name() {
    let counting = counting(&json!({}));
    let completion = completion("a", &json!({}));
    let mut rows: Vec<(&str, Value, String, Expected)> = Vec::new();
    let tables = [
        (CHAT, &counting, [common(), constraints()].concat()),
        (COMPLETIONS, &completion, [common(), constraints()].concat()),
        (CHAT, &counting, chat()),
        (CHAT, &counting, history()),
        (COMPLETIONS, &completion, completions()),
    ];
    for (path, base, table) in tables {
        for (fields, expected) in table {
            let name = fields.to_string().chars().take(80).collect();
            rows.push((path, with(base.clone(), &fields), name, expected));
        }
    }
    for (path, body, expected) in others() {
        rows.push((path, body.clone(), body.to_string(), expected));
    }
    for (body, expected) in history() {
        rows.push(("/tokenize", body.clone(), body.to_string(), expected));
    }
    beside_good_requests(async |server| {
        let mut wrong = Vec::new();
        for (path, body, name, expected) in rows {
            let answer = server.post(path, &body).await;
            check(&format!("{path} {name}"), &answer, expected, &mut wrong);
            let mut streamed = body;
            if let Some(body) = streamed.as_object_mut()
                && !body.contains_key("stream")
                && !body.contains_key("stream_options")
                && path.starts_with("/v1/")
            {
                // A refusal is an error status, never part of a stream.
                body.insert("stream".to_owned(), json!(true));
                let answer = server.post(path, &streamed).await;
                check(
                    &format!("{path} {name}, streamed"),
                    &answer,
                    expected,
                    &mut wrong,
                );
            }
        }
        wrong
    })
    .await;
}
