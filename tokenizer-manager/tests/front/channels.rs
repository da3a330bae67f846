//! Answers of a model that writes channels, as gpt-oss does, on every API of conversations.

use lockstep_proto::pb::lockstep::{Constraint, ConstraintKind, FinishReason};
use lockstep_text::Tokenizer;
use serde_json::{Value, json};

use super::{
    client::{chat, chunks, named_events, with},
    harness::{Front, start_with},
    messages::message,
    mock::{Job, tokens},
    responses::response,
};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// Template that shows what gpt-oss's does: tools, thoughts of calls, calls.
const TEMPLATE: &str = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}\
{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}\
{% if m.content and m.thinking %}{{ raise_exception('one of both') }}{% endif %}\
{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}\
<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>\
{{ m.tool_calls[0].function.arguments | tojson }}<|call|>\
{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>\
{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}\
{% if add_generation_prompt %}<|start|>assistant{% endif %}";

/// Tokens of gpt-oss's vocabulary that the demo model has not.
const TOKENS: [&str; 7] = [
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
];
const FIRST: u32 = 4096;
const CALL: u32 = FIRST + 6;
const RETURN: u32 = FIRST;

struct Model {
    front: Front,
    tokenizer: Tokenizer,
    _folder: tempfile::TempDir,
}

/// Starts a front that finds the formats by itself.
async fn start() -> Model {
    start_with_ends(&[RETURN, 0, CALL]).await
}

/// Starts a front of a model with these end tokens.
async fn start_with_ends(ends: &[u32]) -> Model {
    let folder = tempfile::tempdir().expect("a folder");
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/lockstep-demo-7m");
    let json = std::fs::read(format!("{demo}/tokenizer.json")).expect("a tokenizer");
    let mut json: Value = serde_json::from_slice(&json).expect("json");
    for (at, token) in TOKENS.iter().enumerate() {
        json["added_tokens"]
            .as_array_mut()
            .expect("a list")
            .push(json!({
                "id": FIRST as usize + at, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            }));
    }
    std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).expect("written");
    std::fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).expect("written");
    let tokenizer = Tokenizer::load(folder.path()).expect("a tokenizer");
    let front = start_with(|engine, _| {
        engine.model.path = folder.path().to_owned();
        engine.model.vocab_size = FIRST as usize + TOKENS.len();
        engine.model.eos_token_ids = ends.to_vec();
        engine.server.context_length = 2048;
    });
    Model {
        front: front.await,
        tokenizer,
        _folder: folder,
    }
}

impl Model {
    /// Answers a request by an output that ends with this token, in steps of `step` tokens.
    fn say(&self, job: &Job, output: &str, end: u32, step: usize) {
        let ids = self.tokenizer.encode(output, false).expect("tokens");
        for ids in ids.chunks(step) {
            job.send(tokens(ids));
        }
        job.end_token(end, u32::try_from(ids.len() + 1).expect("short"));
    }

    async fn post(&self, path: &str, body: &Value, output: (&str, u32), step: usize) -> String {
        let scheduler = async {
            let job = self.front.mock.job().await;
            self.say(&job, output.0, output.1, step);
        };
        let ((status, text), ()) = tokio::join!(self.front.post(path, body), scheduler);
        assert_eq!(status, 200, "{text}");
        text
    }

    async fn whole(&self, path: &str, body: &Value, output: (&str, u32)) -> Value {
        serde_json::from_str(&self.post(path, body, output, 1).await).expect("json")
    }

    /// Returns the prompt and the constraint of a request.
    async fn asked(&self, path: &str, body: &Value) -> (String, Option<Constraint>) {
        let scheduler = async {
            let job = self.front.mock.job().await;
            self.say(&job, "<|channel|>final<|message|>Ok", RETURN, 1);
            let prompt = self.tokenizer.decode(&job.submit.input_ids, false);
            (prompt, job.submit.constraint.clone())
        };
        tokio::join!(self.front.ok(path, body), scheduler).1
    }
}

fn tool() -> Value {
    let place = json!({"place": {"type": "string"}});
    let parameters = json!({"type": "object", "properties": place});
    json!({"type": "function", "function": {"name": "look", "parameters": parameters}})
}

const ANSWERED: &str = "<|channel|>analysis<|message|>Seven times six.\n<|end|><|start|>assistant\
                        <|channel|>final<|message|>It is 42.";
const LOOK: &str = "{\"place\":\n \"Köln\"}";
const CALLED: &str = "<|channel|>analysis<|message|>I should look.<|end|><|start|>assistant\
                      <|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant\
                      <|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"place\":\n \"Köln\"}";

#[tokio::test]
async fn chats_have_reasoning_text_and_calls() {
    let model = start().await;
    let answer = model
        .whole(CHAT, &chat(&json!({})), (ANSWERED, RETURN))
        .await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["reasoning_content"], "Seven times six.");
    assert_eq!(choice["message"]["content"], "It is 42.");
    assert_eq!(choice["finish_reason"], "stop");
    let thought = "<|message|>Seven times six.\n<|end|>";
    let thought = model.tokenizer.encode(thought, false).expect("tokens");
    let details = &answer["usage"]["completion_tokens_details"];
    assert_eq!(details["reasoning_tokens"], thought.len());
    let body = chat(&json!({"tools": [tool()]}));
    let answer = model.whole(CHAT, &body, (CALLED, CALL)).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let message = &choice["message"];
    assert_eq!(message["reasoning_content"], "I should look.");
    assert_eq!(message["content"], "Let me see.");
    assert_eq!(message["tool_calls"][0]["function"]["name"], "look");
    assert_eq!(
        message["tool_calls"][0]["function"]["arguments"], LOOK,
        "byte for byte"
    );
    // In a stream, in steps of one token and in one step.
    for step in [1, 3, 1000] {
        let body = with(body.clone(), &json!({"stream": true}));
        let text = model.post(CHAT, &body, (CALLED, CALL), step).await;
        let joined = |field: fn(&Value) -> &Value| -> String {
            let chunks = chunks(&text);
            let texts = chunks
                .iter()
                .map(|chunk| field(&chunk["choices"][0]["delta"]).as_str());
            texts
                .map(|text| text.unwrap_or_default().to_owned())
                .collect()
        };
        assert_eq!(
            joined(|delta| &delta["reasoning_content"]),
            "I should look."
        );
        assert_eq!(joined(|delta| &delta["content"]), "Let me see.");
        let arguments = joined(|delta| &delta["tool_calls"][0]["function"]["arguments"]);
        assert_eq!(arguments, LOOK);
    }
}

#[tokio::test]
async fn responses_and_messages_have_the_same_parts() {
    let model = start().await;
    let function = json!({"type": "function", "name": "look", "parameters": {"type": "object"}});
    let body = response(&json!({"tools": [function]}));
    let answer = model.whole(RESPONSES, &body, (CALLED, CALL)).await;
    let types: Vec<_> = answer["output"].as_array().expect("items").iter().collect();
    let types: Vec<_> = types.iter().map(|item| item["type"].as_str()).collect();
    let expected = ["reasoning", "message", "function_call"].map(Some);
    assert_eq!(types, expected);
    assert_eq!(answer["output"][2]["arguments"], LOOK);
    let tool = json!({"name": "look", "input_schema": {"type": "object"}});
    let body = message(&json!({"tools": [tool]}));
    let answer = model.whole(MESSAGES, &body, (CALLED, CALL)).await;
    assert_eq!(answer["stop_reason"], "tool_use");
    let content = &answer["content"];
    assert_eq!(content[0]["thinking"], "I should look.");
    assert_eq!(content[1]["text"], "Let me see.");
    assert_eq!(content[2]["input"], json!({"place": "Köln"}));
    let body = with(body, &json!({"stream": true}));
    let text = model.post(MESSAGES, &body, (CALLED, CALL), 2).await;
    let blocks = named_events(&text);
    let blocks = blocks
        .iter()
        .filter(|event| event["type"] == "content_block_start");
    let blocks: Vec<_> = blocks
        .map(|event| event["content_block"]["type"].as_str())
        .collect();
    assert_eq!(blocks, ["thinking", "text", "tool_use"].map(Some));
}

/// A call ends the turn, even if the model's files do not say so.
#[tokio::test]
async fn turns_end_with_a_call() {
    for (ends, fields, expected) in [
        (vec![RETURN, CALL], json!({}), vec![RETURN, CALL]),
        (vec![RETURN], json!({}), vec![RETURN, CALL]),
        (
            vec![0],
            json!({"stop_token_ids": [7]}),
            vec![0, 7, RETURN, CALL],
        ),
        (vec![0], json!({"ignore_eos": true}), vec![]),
    ] {
        let model = start_with_ends(&ends).await;
        let scheduler = async {
            let job = model.front.mock.job().await;
            model.say(&job, CALLED, CALL, 1);
            job.submit
                .sampling
                .clone()
                .expect("parameters")
                .stop_token_ids
        };
        let body = chat(&with(fields, &json!({"tools": [tool()]})));
        let (answer, mut stops) = tokio::join!(model.front.ok(CHAT, &body), scheduler);
        stops.sort_unstable();
        assert_eq!(stops, expected);
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], LOOK);
    }
}

/// Reasoning that is not told apart stands in the text, without headers.
#[tokio::test]
async fn thoughts_may_stay_in_the_text() {
    let model = start().await;
    for fields in [
        json!({}),
        json!({"tools": [tool()]}),
        json!({"tools": [tool()], "tool_choice": "none"}),
    ] {
        let body = chat(&with(fields, &json!({"separate_reasoning": false})));
        let answer = model.whole(CHAT, &body, (ANSWERED, RETURN)).await;
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"], "Seven times six.\nIt is 42.");
        assert_eq!(message.get("reasoning_content"), None);
    }
    // A forbidden call is text.
    let body = chat(&json!({"tools": [tool()], "tool_choice": "none"}));
    let answer = model.whole(CHAT, &body, (CALLED, CALL)).await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "I should look.");
    assert_eq!(message["content"], format!("Let me see.\n{LOOK}"));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

/// An output that is out of form is text, and never an error.
#[tokio::test]
async fn outputs_out_of_form_are_answered() {
    let model = start().await;
    let body = chat(&json!({"tools": [tool()]}));
    for (output, content) in [
        ("Plain text.", "Plain text."),
        (
            "<|channel|>commentary? ?<|end|><|start|>assistant<|channel|>final<|message|>42",
            "42",
        ),
        ("<|channel|><|channel|>final<|message|>42", "42"),
        ("<|message|><|message|>42", "42"),
        ("<|start|><|start|><|call|>42", "42"),
    ] {
        let answer = model.whole(CHAT, &body, (output, RETURN)).await;
        assert_eq!(
            answer["choices"][0]["message"]["content"], content,
            "{output}"
        );
    }
}

/// Thoughts reach the template under its own name, beside the call that they led to.
#[tokio::test]
async fn thoughts_of_earlier_turns_reach_the_template() {
    let model = start().await;
    for field in ["reasoning_content", "reasoning", "thinking"] {
        let call = json!({"id": "call_1", "type": "function",
            "function": {"name": "look", "arguments": "{\"place\": \"x\"}"}});
        let body = chat(&json!({"tools": [tool()], "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": null, field: "I should look.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Here."},
        ]}));
        let (prompt, _) = model.asked(CHAT, &body).await;
        let expected = "<|start|>assistant<|channel|>analysis<|message|>I should look.<|end|>\
                        <|start|>assistant to=functions.look<|channel|>commentary json<|message|>";
        assert!(prompt.contains(expected), "{prompt}");
        assert!(prompt.ends_with("<|start|>assistant"), "{prompt}");
    }
}

/// Constraints are grammars of whole outputs: behind the thought comes the answer's channel, or a
/// call's.
#[tokio::test]
async fn constraints_stand_in_their_channel() {
    let model = start().await;
    let format = json!({"type": "json_schema",
        "json_schema": {"name": "a", "schema": {"type": "integer"}}});
    let final_part = "\"final\"";
    let call_part = "\"commentary to=functions.look \"";
    for (fields, parts) in [
        (
            json!({"response_format": format}),
            vec![final_part, "integer"],
        ),
        (json!({"regex": "[0-9]{3}"}), vec![final_part, "/[0-9]{3}/"]),
        (
            json!({"guided_choice": ["yes", "no"]}),
            vec![final_part, "yes"],
        ),
        (
            json!({"ebnf": "root ::= \"a\" root | \"b\""}),
            vec![final_part, "%lark {", "/b/"],
        ),
        (
            json!({"guided_grammar": "start: \"7\" # one }"}),
            vec![final_part, "%lark { start: \"7\""],
        ),
        (
            json!({"tools": [tool()], "tool_choice": "required"}),
            vec![call_part],
        ),
        (
            json!({"tools": [tool()], "response_format": format}),
            vec![call_part, final_part, "integer"],
        ),
    ] {
        let (_, constraint) = model.asked(CHAT, &chat(&fields)).await;
        let constraint = constraint.expect("a constraint");
        assert_eq!(constraint.kind(), ConstraintKind::Lark, "{fields}");
        for part in parts {
            assert!(constraint.text.contains(part), "{part} {}", constraint.text);
        }
        let after = constraint.after.expect("reasoning");
        let open = after.open.as_deref();
        assert_eq!(open, Some("<|channel|>analysis<|message|>"));
        assert_eq!(
            (&*after.close, after.limit, after.again),
            ("<|end|>", None, true)
        );
    }
    // One of a message that goes on stands in the channel that is open.
    let body = chat(
        &json!({"regex": "[0-9]{3}", "continue_final_message": true, "messages": [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "It is "},
        ]}),
    );
    let scheduler = async {
        let job = model.front.mock.job().await;
        model.say(&job, "123", RETURN, 1);
        job.submit.constraint.clone().expect("a constraint")
    };
    let (answer, constraint) = tokio::join!(model.front.ok(CHAT, &body), scheduler);
    assert_eq!(answer["choices"][0]["message"]["content"], "123");
    assert_eq!(
        (constraint.kind(), constraint.after),
        (ConstraintKind::Regex, None)
    );
}

#[tokio::test]
async fn what_channels_cannot_have_is_refused_by_name() {
    let model = start().await;
    for (fields, param) in [
        (
            json!({"structural_tag": {"type": "structural_tag", "format": {"type": "any_text"}}}),
            "'structural_tag'",
        ),
        (json!({"grammar": "start: \"a\" } x: {"}), "'grammar'"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a",
                "schema": {"type": "string", "not": {}}}}}),
            "'response_format'",
        ),
    ] {
        let (status, text) = model.front.post(CHAT, &chat(&fields)).await;
        assert!(status == 400 && text.contains(param), "{text}");
    }
}

/// All thoughts of an output share its budget.
#[tokio::test]
async fn budgets_are_those_of_all_thoughts() {
    let model = start().await;
    let fields = json!({"thinking_token_budget": 9});
    for (path, body) in [
        (CHAT, chat(&fields)),
        (RESPONSES, response(&fields)),
        (MESSAGES, message(&fields)),
    ] {
        let (_, constraint) = model.asked(path, &body).await;
        let constraint = constraint.expect("a constraint");
        assert_eq!(constraint.kind(), ConstraintKind::Anything);
        let after = constraint.after.expect("reasoning");
        assert_eq!((after.limit, after.again), (Some(9), true));
    }
}

/// An output that `max_tokens` cuts inside a header or a call says so.
#[tokio::test]
async fn a_cut_output_has_no_words_of_headers() {
    let model = start().await;
    for (output, content) in [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>fin",
            "",
        ),
        ("<|channel|>fi", ""),
    ] {
        let scheduler = async {
            let job = model.front.mock.job().await;
            let ids = model.tokenizer.encode(output, false).expect("tokens");
            job.tokens(&ids);
            job.finish(FinishReason::Length, 1);
        };
        let body = chat(&json!({}));
        let (answer, ()) = tokio::join!(model.front.ok(CHAT, &body), scheduler);
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"]["content"], content);
        assert_eq!(choice["finish_reason"], "length");
    }
}
