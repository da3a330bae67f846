//! Limits of reasoning, under every name that clients have for them.

use lockstep_proto::pb::lockstep::{Constraint, ConstraintKind, FinishReason};
use serde_json::{Value, json};

use super::{
    answers::{Tools, start},
    client::{chat, completion, with},
    harness::start_with,
    messages::message,
    responses::response,
};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// Sends a request, answers it with `output`, and returns the constraint that the scheduler saw,
/// and the answer.
async fn asked(
    tools: &Tools,
    path: &str,
    body: &Value,
    output: &str,
) -> (Option<Constraint>, Value) {
    let scheduler = async {
        let job = tools.front.mock.job().await;
        tools.say(&job, output, FinishReason::Stop);
        job.submit.constraint.clone()
    };
    let (answer, constraint) = tokio::join!(tools.front.ok(path, body), scheduler);
    (constraint, answer)
}

/// Returns a request of each API of conversations.
fn requests(fields: &Value) -> [(&'static str, Value); 3] {
    [
        (CHAT, chat(fields)),
        (RESPONSES, response(fields)),
        (MESSAGES, message(fields)),
    ]
}

#[tokio::test]
async fn every_spelling_limits_the_reasoning() {
    let tools = start("none").await;
    for fields in [
        json!({"thinking_token_budget": 30}),
        json!({"thinking_budget_tokens": 30}),
        json!({"reasoning_budget_tokens": 30.0}),
        json!({"thinking_budget": 30}),
        json!({"custom_params": {"thinking_budget": 30, "other": 1}}),
        json!({"thinking_budget": 30, "thinking_token_budget": 30, "ignore_eos": true}),
    ] {
        for (path, body) in requests(&fields) {
            let (constraint, _) = asked(&tools, path, &body, "Ok").await;
            let constraint = constraint.expect("a constraint");
            assert_eq!(constraint.kind(), ConstraintKind::Anything, "{body}");
            let after = constraint.after.expect("reasoning");
            assert_eq!(after.open.as_deref(), Some("<think>"));
            assert_eq!((after.close.as_str(), after.limit), ("</think>", Some(30)));
        }
    }
    let thinking = json!({"type": "enabled", "budget_tokens": 1024});
    let body = message(&json!({"max_tokens": 1500, "thinking": thinking}));
    let (constraint, _) = asked(&tools, MESSAGES, &body, "Ok").await;
    let after = constraint.and_then(|own| own.after).expect("reasoning");
    assert_eq!(
        (after.open, after.limit),
        (None, Some(1024)),
        "the prompt opens it"
    );
}

/// Nothing is limited where no thought can come, or none is asked to be short.
#[tokio::test]
async fn nothing_is_limited_without_need() {
    let tools = start("none").await;
    let off = json!({"enable_thinking": false});
    for fields in [
        json!({}),
        json!({"thinking_token_budget": -1, "thinking_budget": null}),
        json!({"custom_params": {"other": 1}}),
        json!({"custom_params": {}}),
        json!({"thinking_token_budget": 5, "chat_template_kwargs": off}),
    ] {
        for (path, body) in requests(&fields) {
            let (constraint, _) = asked(&tools, path, &body, "Ok").await;
            assert_eq!(constraint, None, "{body}");
        }
    }
}

/// A mark with a word behind it is awaited as a whole.
#[tokio::test]
async fn the_mark_of_a_format_has_its_label() {
    let front = start_with(|engine, _| {
        engine.server.answers.reasoning_parser = "gemma4".to_owned();
    });
    let front = front.await;
    for fields in [
        json!({"thinking_token_budget": 5}),
        json!({"response_format": {"type": "json_object"}}),
    ] {
        let body = chat(&fields);
        let scheduler = async {
            let job = front.mock.job().await;
            job.finish(FinishReason::Stop, 0);
            job.submit.constraint.clone().expect("a constraint")
        };
        let (_, constraint) = tokio::join!(front.ok(CHAT, &body), scheduler);
        let after = constraint.after.expect("reasoning");
        assert_eq!(after.open.as_deref(), Some("<|channel>thought"));
        assert_eq!((&*after.close, after.again), ("<channel|>", false));
    }
}

/// A constraint of the answer keeps its place behind the reasoning.
#[tokio::test]
async fn a_budget_goes_with_a_constraint() {
    let tools = start("hermes").await;
    let on = json!({"enable_thinking": true});
    let tool = json!({"type": "function", "function": {"name": "look"}});
    for (fields, kind) in [
        (
            json!({"response_format": {"type": "json_object"}}),
            ConstraintKind::JsonSchema,
        ),
        (json!({"regex": "[0-9]"}), ConstraintKind::Regex),
        (
            json!({"tools": [tool], "tool_choice": "required"}),
            ConstraintKind::Lark,
        ),
        (json!({"tools": [tool]}), ConstraintKind::Lark),
        (json!({}), ConstraintKind::Anything),
    ] {
        let fields = with(
            fields,
            &json!({"thinking_token_budget": 0, "chat_template_kwargs": on}),
        );
        let (constraint, _) = asked(&tools, CHAT, &chat(&fields), "</think>7").await;
        let constraint = constraint.expect("a constraint");
        assert_eq!(constraint.kind(), kind, "{fields}");
        assert_eq!(constraint.after.expect("reasoning").limit, Some(0));
    }
}

/// Calls that a model makes inside its thought end that, where nothing holds them to a grammar.
#[tokio::test]
async fn calls_are_not_cut_by_a_budget() {
    let tools = start("hermes").await;
    let tool = json!({"type": "function", "function": {"name": "look"}});
    for (fields, breaks) in [
        (json!({"tools": [tool]}), vec!["<tool_call>"]),
        (json!({"tools": [tool], "tool_choice": "none"}), vec![]),
        (json!({"tools": [tool], "tool_choice": "required"}), vec![]),
        (json!({}), vec![]),
    ] {
        let fields = with(fields, &json!({"thinking_token_budget": 5}));
        let (constraint, _) = asked(&tools, CHAT, &chat(&fields), "Ok").await;
        let after = constraint.and_then(|own| own.after).expect("reasoning");
        assert_eq!(after.breaks, breaks, "{fields}");
    }
}

/// Reasoning that a budget has cut is counted with its mark, as other reasoning.
#[tokio::test]
async fn usage_counts_what_a_budget_has_cut() {
    let tools = start("none").await;
    let thought = "One, two, three</think>";
    let count = tools.ids(thought).len();
    let fields = json!({"thinking_token_budget": 4,
        "chat_template_kwargs": {"enable_thinking": true}});
    for (path, body) in requests(&fields) {
        let (_, answer) = asked(&tools, path, &body, &format!("{thought}\n\nFour")).await;
        let usage = &answer["usage"];
        let found = match path {
            CHAT => &usage["completion_tokens_details"]["reasoning_tokens"],
            RESPONSES => &usage["output_tokens_details"]["reasoning_tokens"],
            _ => {
                let content = json!([
                    {"type": "thinking", "thinking": "One, two, three", "signature": "lockstep"},
                    {"type": "text", "text": "Four"}
                ]);
                assert_eq!(answer["content"], content);
                continue;
            }
        };
        assert_eq!(*found, json!(count), "{answer}");
    }
}

#[tokio::test]
async fn budgets_that_cannot_be_obeyed_are_refused_by_name() {
    let tools = start("none").await;
    let two = json!({"thinking_token_budget": 5, "thinking_budget": 6});
    let custom = json!({"custom_params": {"thinking_budget": "many"}});
    for (fields, param) in [
        (
            json!({"thinking_token_budget": -2}),
            "thinking_token_budget",
        ),
        (json!({"thinking_budget": 1u64 << 40}), "thinking_budget"),
        (two, "thinking_budget"),
        (custom, "custom_params.thinking_budget"),
    ] {
        for (path, body) in requests(&fields) {
            let (status, text) = tools.front.post(path, &body).await;
            assert!(status == 400 && text.contains(param), "{path} {text}");
        }
    }
    // The end of a prompt that the client wrote says nothing about reasoning for certain.
    for name in [
        "thinking_token_budget",
        "thinking_budget_tokens",
        "reasoning_budget_tokens",
        "thinking_budget",
    ] {
        let fields = json!({name: 5});
        for (path, body) in [
            ("/v1/completions", completion(&fields)),
            ("/generate", with(json!({"text": "ab"}), &fields)),
            (
                "/generate",
                json!({"text": "ab", "sampling_params": fields}),
            ),
        ] {
            let (status, text) = tools.front.post(path, &body).await;
            let told = text.contains(name) && text.contains("/v1/chat/completions");
            assert!(status == 400 && told, "{path} {text}");
        }
    }
}

/// A model without marks of reasoning can't be limited. Anthropic's clients send their budget to
/// every model, and one that never reasons keeps it.
#[tokio::test]
async fn a_budget_needs_marks_of_reasoning() {
    let front = start_with(|engine, _| {
        engine.server.answers.reasoning_parser = "none".to_owned();
    });
    let front = front.await;
    for (path, body) in requests(&json!({"thinking_token_budget": 5})) {
        let (status, text) = front.post(path, &body).await;
        assert!(
            status == 400 && text.contains("--reasoning-parser"),
            "{text}"
        );
    }
    let thinking = json!({"type": "enabled", "budget_tokens": 1024});
    let body = message(&json!({"max_tokens": 1500, "thinking": thinking}));
    let scheduler = async {
        let job = front.mock.job().await;
        job.finish(FinishReason::Stop, 0);
        job.submit.constraint.clone()
    };
    let (_, constraint) = tokio::join!(front.ok(MESSAGES, &body), scheduler);
    assert_eq!(constraint, None);
}
