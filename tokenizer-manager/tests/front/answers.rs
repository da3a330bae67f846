//! Reasoning and tool calls in chat answers.

use lockstep_proto::pb::lockstep::{FinishReason, Output};
use lockstep_text::Tokenizer;
use lockstep_types::EngineConfig;
use serde_json::{Value, json};

use super::{
    client::{chat, chunks, completion, with},
    harness::{Front, start_with},
    mock::{Job, logprob, tokens},
    steps::open,
};

const CHAT: &str = "/v1/chat/completions";

/// Template that shows tools, calls and a switch for reasoning.
const TEMPLATE: &str = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}\
{% for m in messages %}<|im_start|>{{ m.role }}\n\
{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content or '' }}\
{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.arguments | tojson }}</tool_call>\
{% endfor %}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n\
{% if enable_thinking is defined %}<think>\n{% if not enable_thinking %}\n</think>\n\n{% endif %}\
{% endif %}{% endif %}";

/// A front with [`TEMPLATE`], and its tokenizer.
pub struct Tools {
    pub front: Front,
    pub tokenizer: Tokenizer,
    _folder: tempfile::TempDir,
}

/// Starts a front with a parser of calls.
pub async fn start(tool_call_parser: &str) -> Tools {
    start_template(tool_call_parser, TEMPLATE, |_| {}).await
}

/// Starts such a front with another configuration.
pub async fn start_tools(tool_call_parser: &str, change: impl FnOnce(&mut EngineConfig)) -> Tools {
    start_template(tool_call_parser, TEMPLATE, change).await
}

/// Starts such a front with another template and configuration.
async fn start_template(
    tool_call_parser: &str,
    shown: &str,
    change: impl FnOnce(&mut EngineConfig),
) -> Tools {
    let folder = tempfile::tempdir().expect("a folder");
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/lockstep-demo-7m");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(format!("{demo}/{file}"), folder.path().join(file)).expect("copied");
    }
    let template = folder.path().join("chat_template.jinja");
    std::fs::write(template, shown).expect("written");
    let tokenizer = Tokenizer::load(folder.path()).expect("a tokenizer");
    let front = start_with(|engine, _| {
        engine.model.path = folder.path().to_owned();
        engine.server.context_length = 2048;
        engine.server.answers.tool_call_parser = tool_call_parser.to_owned();
        change(engine);
    });
    Tools {
        front: front.await,
        tokenizer,
        _folder: folder,
    }
}

impl Tools {
    /// Returns the tokens of a text.
    pub fn ids(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, false).expect("tokens")
    }

    /// Sends the tokens of an output, one step each, and its end.
    pub fn say(&self, job: &Job, text: &str, reason: FinishReason) {
        let ids = self.ids(text);
        job.tokens(&ids);
        job.finish(reason, u32::try_from(ids.len()).expect("short"));
    }

    /// Returns the text of a request's prompt.
    pub fn prompt(&self, job: &Job) -> String {
        self.tokenizer.decode(&job.submit.input_ids, false)
    }

    /// Sends a request, answers it with `output`, and returns the status and the body.
    pub async fn post(&self, path: &str, body: &Value, output: &str) -> String {
        let scheduler = async {
            let job = self.front.mock.job().await;
            self.say(&job, output, FinishReason::Stop);
        };
        let ((status, text), ()) = tokio::join!(self.front.post(path, body), scheduler);
        assert_eq!(status, 200, "{text}");
        text
    }

    async fn whole(&self, body: &Value, output: &str) -> Value {
        serde_json::from_str(&self.post(CHAT, body, output).await).expect("json")
    }
}

fn tool(name: &str) -> Value {
    let place = json!({"place": {"type": "string"}});
    json!({"type": "function", "function": {
        "name": name, "parameters": {"type": "object", "properties": place}
    }})
}

/// Returns a chat request with two tools, and `fields` added.
fn asking(fields: &Value) -> Value {
    with(
        chat(&json!({"tools": [tool("look"), tool("ping")]})),
        fields,
    )
}

const CALLS: &str = "Let me see.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"Köln \
                     <b>\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"ping\"}\n</tool_call>";
const LOOK: &str = "{\"place\": \"Köln <b>\"}";

#[tokio::test]
async fn a_whole_answer_has_reasoning_text_and_calls() {
    let tools = start("auto").await;
    let body = asking(&json!({"chat_template_kwargs": {"enable_thinking": true}}));
    let reasoning = "Hm.\n</think>\n\n";
    let answer = tools.whole(&body, &format!("{reasoning}{CALLS}")).await;
    let choice = &answer["choices"][0];
    let message = &choice["message"];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert_eq!(message["content"], "Let me see.");
    assert_eq!(message["reasoning_content"], "Hm.");
    let calls = message["tool_calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 2, "{answer}");
    for (call, function) in calls.iter().zip([
        json!({"name": "look", "arguments": LOOK}),
        json!({"name": "ping", "arguments": "{}"}),
    ]) {
        assert_eq!(call["type"], "function");
        assert_eq!(call["function"], function);
        assert!(call["id"].as_str().expect("an id").starts_with("call_"));
    }
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    // The closing mark is followed by the newlines that its last token may hold too.
    let counted = &answer["usage"]["completion_tokens_details"]["reasoning_tokens"];
    let counted = counted.as_u64().expect("counted") as usize;
    let closed = tools.ids("Hm.\n</think>").len();
    assert!(
        (closed..=tools.ids(reasoning).len()).contains(&counted),
        "{counted}"
    );
}

/// Joins the parts of a stream's only choice, as clients do.
fn joined(chunks: &[Value]) -> Value {
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut calls: Vec<Value> = Vec::new();
    let mut reasons = Vec::new();
    for chunk in chunks {
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        if let Some(text) = delta.get("reasoning_content") {
            assert_ne!(text, "", "{chunk}");
            reasoning.push_str(text.as_str().expect("a text"));
        }
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = part["index"].as_u64().expect("an index") as usize;
            if part["id"].is_string() {
                assert_eq!(index, calls.len(), "{chunk}");
                assert_eq!(
                    (&part["type"], &part["function"]["arguments"]),
                    (&json!("function"), &json!(""))
                );
                calls.push(part["function"].clone());
            } else {
                assert_eq!(index + 1, calls.len(), "calls come one after the other");
                assert!(part["function"].get("name").is_none(), "{chunk}");
                let piece = part["function"]["arguments"].as_str().expect("a piece");
                let so_far = calls[index]["arguments"].as_str().expect("a text");
                calls[index]["arguments"] = format!("{so_far}{piece}").into();
            }
        }
        reasons.extend(choice["finish_reason"].as_str());
    }
    json!({"content": content, "reasoning": reasoning, "calls": calls, "reasons": reasons})
}

#[tokio::test]
async fn a_stream_has_the_same_parts() {
    let tools = start("hermes").await;
    let body = asking(&json!({"stream": true, "chat_template_kwargs": {"enable_thinking": true}}));
    let output = format!("Hm, well.\n</think>\n\n{CALLS}");
    let chunks = chunks(&tools.post(CHAT, &body, &output).await);
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    assert_eq!(
        joined(&chunks),
        json!({"content": "Let me see.", "reasoning": "Hm, well.", "reasons": ["tool_calls"], "calls": [
            {"name": "look", "arguments": LOOK}, {"name": "ping", "arguments": "{}"}
        ]})
    );
    let empty = chunks
        .iter()
        .filter(|chunk| chunk["choices"][0]["delta"]["tool_calls"] == json!([]));
    assert_eq!(empty.count(), 0);
}

#[tokio::test]
async fn arguments_come_as_the_model_writes_them() {
    let tools = start("auto").await;
    let body = asking(&json!({"stream": true}));
    let (job, mut events) = tokio::join!(
        async {
            let job = tools.front.mock.job().await;
            let head = "<tool_call>{\"name\": \"look\", \"arguments\": ";
            job.send(tokens(&tools.ids(head)));
            job
        },
        open(&tools.front, CHAT, &body)
    );
    let delta = |chunk: &Value| chunk["choices"][0]["delta"].clone();
    // The step has a chunk, though nothing is certain before the arguments.
    let chunk = events.next().await.expect("a chunk");
    assert_eq!(delta(&chunk), json!({}));
    job.send(tokens(&tools.ids("{")));
    let begin = delta(&events.next().await.expect("a chunk"));
    assert_eq!(begin["tool_calls"][0]["function"]["name"], "look");
    // The next piece is sent only after the client has read this one.
    for (piece, next) in [("{", "\"place\""), ("\"place\"", ": 1"), (": 1", "}")] {
        let chunk = events.next().await.expect("a chunk");
        let part = json!({"index": 0, "function": {"arguments": piece}});
        assert_eq!(delta(&chunk), json!({"tool_calls": [part]}));
        job.send(tokens(&tools.ids(next)));
    }
    job.finish(FinishReason::Stop, 9);
    while events.next().await.is_some() {}
}

#[tokio::test]
async fn all_of_an_answer_may_come_in_one_step() {
    let tools = start("auto").await;
    let ids = tools.ids(CALLS);
    for stream in [false, true] {
        let body = asking(&json!({"stream": stream}));
        let scheduler = async {
            let job = tools.front.mock.job().await;
            job.send(tokens(&ids));
            job.finish(FinishReason::Stop, 1);
        };
        let ((_, text), ()) = tokio::join!(tools.front.post(CHAT, &body), scheduler);
        if stream {
            let joined = joined(&chunks(&text));
            assert_eq!(joined["calls"][0]["arguments"], LOOK);
            assert_eq!(joined["content"], "Let me see.");
        } else {
            let answer: Value = serde_json::from_str(&text).expect("json");
            let message = &answer["choices"][0]["message"];
            assert_eq!(message["tool_calls"][0]["function"]["arguments"], LOOK);
        }
    }
}

#[tokio::test]
async fn an_answer_of_calls_alone_has_no_content() {
    let tools = start("auto").await;
    let call = "<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call>";
    let answer = tools.whole(&asking(&json!({})), call).await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], Value::Null, "{answer}");
    assert!(message.get("reasoning_content").is_none(), "{answer}");
    // Malformed calls stay text.
    let broken = "<tool_call>{\"name\": 5}</tool_call>";
    let answer = tools.whole(&asking(&json!({})), broken).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], broken);
    assert_eq!(choice["finish_reason"], "stop");
    assert!(choice["message"].get("tool_calls").is_none());
}

#[tokio::test]
async fn each_choice_has_its_own_reason() {
    let tools = start("auto").await;
    let call = "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": \"b";
    let body = asking(&json!({"n": 3}));
    let scheduler = async {
        for (output, reason) in [
            (CALLS, FinishReason::Stop),
            ("No.", FinishReason::Stop),
            (call, FinishReason::Length),
        ] {
            let job = tools.front.mock.job().await;
            tools.say(&job, output, reason);
        }
    };
    let (answer, ()) = tokio::join!(tools.front.ok(CHAT, &body), scheduler);
    let reasons: Vec<_> = (0..3)
        .map(|at| &answer["choices"][at]["finish_reason"])
        .collect();
    assert_eq!(reasons, ["tool_calls", "stop", "length"]);
    let cut = &answer["choices"][2]["message"]["tool_calls"][0]["function"];
    assert_eq!(cut["arguments"], "{\"a\": \"b");
}

#[tokio::test]
async fn every_token_has_its_log_probability_once() {
    let tools = start("auto").await;
    let ids = tools.ids(&format!("<think>Hm.</think>{CALLS}"));
    for stream in [false, true] {
        let body = asking(&json!({"logprobs": true, "stream": stream}));
        let scheduler = async {
            let job = tools.front.mock.job().await;
            for id in &ids {
                job.send(Output {
                    logprobs: vec![logprob(*id, Some(-0.5), &[])],
                    ..tokens(&[*id])
                });
            }
            job.finish(FinishReason::Stop, 1);
        };
        let ((_, text), ()) = tokio::join!(tools.front.post(CHAT, &body), scheduler);
        let chunks = match stream {
            true => chunks(&text),
            false => vec![serde_json::from_str(&text).expect("json")],
        };
        let all = chunks.iter().flat_map(|chunk| {
            let content = chunk["choices"][0]["logprobs"]["content"].as_array();
            content
                .into_iter()
                .flatten()
                .map(|token| token["token"].clone())
        });
        let expected = ids.iter().map(|id| json!(tools.tokenizer.token_text(*id)));
        assert_eq!(
            all.collect::<Vec<_>>(),
            expected.collect::<Vec<_>>(),
            "{stream}"
        );
    }
}

#[tokio::test]
async fn fields_choose_what_is_told_apart() {
    let tools = start("auto").await;
    let output = "<think>Hm.</think>Yes.";
    for (fields, content, reasoning) in [
        (json!({}), "Yes.", Some("Hm.")),
        (json!({"separate_reasoning": false}), output, None),
        (json!({"include_reasoning": false}), "Yes.", None),
        (json!({"tool_choice": "none"}), "Yes.", Some("Hm.")),
    ] {
        let answer = tools.whole(&asking(&fields), output).await;
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"], content, "{fields}");
        let shown = message.get("reasoning_content").and_then(Value::as_str);
        assert_eq!(shown, reasoning, "{fields}");
    }
    let answer = tools
        .whole(&asking(&json!({"tool_choice": "none"})), CALLS)
        .await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], CALLS, "no token is a mark here");
    // Other surfaces give what the model wrote.
    let all = format!("{output}{CALLS}");
    let text = tools
        .post(
            "/v1/completions",
            &completion(&json!({"max_tokens": 200})),
            &all,
        )
        .await;
    let answer: Value = serde_json::from_str(&text).expect("json");
    assert_eq!(answer["choices"][0]["text"], all);
    let text = tools.post("/generate", &json!({"text": "a"}), &all).await;
    let answer: Value = serde_json::from_str(&text).expect("json");
    assert_eq!(answer["text"], all);
}

#[tokio::test]
async fn efforts_turn_reasoning_on_and_off() {
    let tools = start("auto").await;
    let on = "assistant\n<think>\n";
    let off = "assistant\n<think>\n</think>\n\n";
    for (fields, end, reasoning) in [
        (json!({}), "assistant\n", None),
        (json!({"reasoning_effort": "none"}), off, None),
        (json!({"reasoning_effort": "low"}), on, Some("Hm.")),
        (
            json!({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false}}),
            off,
            None,
        ),
    ] {
        let body = chat(&fields);
        let scheduler = async {
            let job = tools.front.mock.job().await;
            tools.say(&job, "Hm.", FinishReason::Stop);
            tools.prompt(&job)
        };
        let (answer, prompt) = tokio::join!(tools.front.ok(CHAT, &body), scheduler);
        assert!(prompt.ends_with(end), "{fields} {prompt:?}");
        let shown = &answer["choices"][0]["message"]["reasoning_content"];
        assert_eq!(shown.as_str(), reasoning, "{fields}");
    }
    // An answer that is continued begins where its message ends.
    let messages = json!([
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>So"}
    ]);
    let body = chat(&json!({"messages": messages, "continue_final_message": true}));
    let answer = tools.whole(&body, " far</think>Yes").await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "far");
    assert_eq!(message["content"], "Yes");
}

#[tokio::test]
async fn earlier_calls_and_results_reach_the_prompt() {
    let tools = start("auto").await;
    let call = json!({"id": "call_1", "type": "function", "function": {
        "name": "look", "arguments": "{\"place\":\"Köln\"}"
    }});
    let messages = json!([
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "There."},
    ]);
    let body = asking(&json!({"messages": messages}));
    let scheduler = async {
        let job = tools.front.mock.job().await;
        tools.say(&job, "Ok", FinishReason::Stop);
        tools.prompt(&job)
    };
    let (_, prompt) = tokio::join!(tools.front.ok(CHAT, &body), scheduler);
    for part in [
        "\"name\": \"ping\"",
        "assistant\n(Hm.)<tool_call>{\"place\": \"Köln\"}</tool_call>",
        "<|im_start|>tool\nThere.<|im_end|>",
    ] {
        assert!(prompt.contains(part), "{part} {prompt}");
    }
}

#[tokio::test]
async fn bad_tools_are_refused_by_name() {
    let tools = start("auto").await;
    let function = |function: Value| json!({"tools": [tool("a"), {"function": function}]});
    let mut deep = json!({});
    for _ in 0..40 {
        deep = json!({ "properties": deep });
    }
    let choice = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (fields, param) in [
        (json!({"tools": [5]}), "tools[0]"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (
            json!({"tools": [{"type": "function"}]}),
            "tools[0].function",
        ),
        (function(json!({})), "tools[1].function.name"),
        (function(json!({"name": ""})), "tools[1].function.name"),
        (function(json!({"name": "a b"})), "tools[1].function.name"),
        (
            function(json!({"name": "x".repeat(129)})),
            "tools[1].function.name",
        ),
        (
            function(json!({"name": "a", "description": 1})),
            "tools[1].function.description",
        ),
        (
            function(json!({"name": "a", "parameters": []})),
            "tools[1].function.parameters",
        ),
        (
            function(json!({"name": "a", "strict": 1})),
            "tools[1].function.strict",
        ),
        (json!({"tools": vec![json!({}); 5]}), "tools"),
        (
            function(json!({"name": "a", "description": "x".repeat(5000)})),
            "tools",
        ),
        (json!({"tool_choice": "any"}), "tool_choice"),
        (json!({"tool_choice": 5}), "tool_choice"),
        (json!({"tool_choice": choice("nobody")}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "allowed_tools"}}),
            "tool_choice",
        ),
        (json!({"stream_reasoning": false}), "stream_reasoning"),
        (json!({"reasoning_effort": "ultra"}), "reasoning_effort"),
        (
            json!({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true}}),
            "reasoning_effort",
        ),
        (
            json!({"separate_reasoning": false, "include_reasoning": false}),
            "include_reasoning",
        ),
        (json!({"functions": [{"name": "a"}]}), "functions"),
    ] {
        let (status, text) = tools.front.post(CHAT, &asking(&fields)).await;
        let error: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(
            (status, &error["error"]["param"]),
            (400, &json!(param)),
            "{text}"
        );
    }
    let (status, text) = tools
        .front
        .post(
            CHAT,
            &asking(&function(json!({"name": "a", "parameters": deep}))),
        )
        .await;
    assert!(status == 400 && text.contains("nest"), "{status} {text}");
}

#[tokio::test]
async fn fields_that_change_nothing_are_accepted() {
    let tools = start("auto").await;
    for fields in [
        json!({"tools": [], "tool_choice": "auto", "parallel_tool_calls": false}),
        json!({"tools": null, "tool_choice": "none"}),
        json!({"tool_choice": "none", "parallel_tool_calls": false}),
        json!({"parallel_tool_calls": true, "stream_reasoning": true}),
    ] {
        tools.whole(&asking(&fields), "Ok").await;
    }
}

#[tokio::test]
async fn without_a_parser_tools_are_refused() {
    let tools = start("none").await;
    let (status, text) = tools.front.post(CHAT, &asking(&json!({}))).await;
    assert!(
        status == 400 && text.contains("--tool-call-parser"),
        "{text}"
    );
    tools
        .whole(&asking(&json!({"tool_choice": "none"})), "Ok")
        .await;
    let none = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let tools = start_template("hermes", none, |_| {}).await;
    let (status, text) = tools.front.post(CHAT, &asking(&json!({}))).await;
    assert!(status == 400 && text.contains("shows no tools"), "{text}");
    assert!(text.contains(r#""param":"tools""#), "{text}");
}

/// A constraint holds for the answer alone: behind the reasoning that the prompt opened, or that
/// the model may begin.
#[tokio::test]
async fn a_constraint_begins_behind_the_reasoning() {
    let tools = start("none").await;
    for (kwargs, after) in [
        // The answer may begin with a mark that is several tokens of this model.
        (json!({}), Some((Some("<think>"), "</think>"))),
        (json!({"enable_thinking": true}), Some((None, "</think>"))),
        (json!({"enable_thinking": false}), None),
    ] {
        let fields = json!({"chat_template_kwargs": kwargs, "separate_reasoning": false,
            "response_format": {"type": "json_object"}});
        let body = chat(&fields);
        let scheduler = async {
            let job = tools.front.mock.job().await;
            tools.say(&job, "{}", FinishReason::Stop);
            job.submit.constraint.clone().expect("a constraint")
        };
        let ((status, text), asked) = tokio::join!(tools.front.post(CHAT, &body), scheduler);
        assert_eq!(status, 200, "{text}");
        assert_eq!(asked.text, "{\"type\":\"object\"}");
        let marks = |after: &lockstep_proto::pb::lockstep::Reasoning| {
            (after.open.clone(), after.close.clone())
        };
        let wanted = after.map(|(open, close)| (open.map(str::to_owned), close.to_owned()));
        assert_eq!(asked.after.as_ref().map(marks), wanted, "{kwargs}");
    }
}
