//! Tests of `/v1/chat/completions`.

use lockstep_tests::{
    MODEL,
    body::{COUNTED, chat, counting},
    sse, turns,
};
use serde_json::{Value, json};

use crate::shared;

const PATH: &str = "/v1/chat/completions";

#[tokio::test]
async fn an_answer_has_openai_shape() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let answer = server.ok(PATH, &counting(&json!({}))).await;
    assert!(
        answer["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("chatcmpl-"))
    );
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], MODEL);
    assert!(
        answer["created"]
            .as_u64()
            .is_some_and(|time| time > 1_700_000_000)
    );
    assert_eq!(
        answer["choices"],
        json!([{
            "index": 0,
            "message": {"role": "assistant", "content": COUNTED, "refusal": null},
            "logprobs": null,
            "finish_reason": "stop",
        }])
    );
    let usage = &answer["usage"];
    let count = |name: &str| usage[name].as_u64().expect("a count");
    assert_eq!(
        count("total_tokens"),
        count("prompt_tokens") + count("completion_tokens")
    );
    assert_eq!(count("completion_tokens"), 32);
}

#[tokio::test]
async fn a_stream_follows_openai_chunk_rules() {
    let (_turn, server) = (turns::shared().await, shared().await);
    for options in [
        json!({"stream_options": {"include_usage": true}}),
        json!({"stream_options": {"include_usage": false}}),
        json!({"stream_options": {}}),
        json!({}),
    ] {
        let with_usage = options["stream_options"]["include_usage"] == json!(true);
        let mut body = counting(&options);
        body["stream"] = json!(true);
        let mut chunks = server.stream(PATH, &body).await.chunks().await;
        for chunk in &chunks {
            assert_eq!(chunk["object"], "chat.completion.chunk");
            for field in ["id", "created", "model", "system_fingerprint"] {
                assert_eq!(chunk[field], chunks[0][field], "{field}");
            }
        }
        if with_usage {
            let last = chunks.pop().expect("the usage chunk");
            assert_eq!(last["choices"], json!([]));
            assert_eq!(last["usage"]["completion_tokens"], 32);
        }
        for chunk in &chunks {
            let expected = with_usage.then_some(&Value::Null);
            assert_eq!(chunk.get("usage"), expected, "{chunk}");
            assert_eq!(chunk["choices"].as_array().map(Vec::len), Some(1));
        }
        let choice = |at: usize| chunks[at]["choices"][0].clone();
        assert_eq!(
            choice(0)["delta"],
            json!({"role": "assistant", "content": ""})
        );
        let last = choice(chunks.len() - 1);
        assert_eq!(last["delta"], json!({}));
        assert_eq!(last["finish_reason"], "stop");
        for at in 1..chunks.len() - 1 {
            let choice = choice(at);
            assert!(
                choice["delta"]["content"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty())
            );
            assert_eq!(
                choice["delta"].as_object().map(serde_json::Map::len),
                Some(1)
            );
            assert_eq!(choice["finish_reason"], Value::Null);
        }
        assert_eq!(sse::text(&chunks, 0), COUNTED);
    }
}

#[tokio::test]
async fn choices_are_numbered_and_counted_once() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let fields = json!({"n": 3, "temperature": 1.5, "seed": 11, "max_tokens": 12});
    // Seeds show only where several words are likely.
    let asked = |fields: &Value| chat("Tell me a story.", fields);
    let whole = server.ok(PATH, &asked(&fields)).await;
    let choices = whole["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 3);
    let texts: Vec<_> = choices
        .iter()
        .map(|choice| choice["message"]["content"].as_str().expect("a text"))
        .collect();
    let prompt = server.ok(PATH, &asked(&json!({"max_tokens": 1}))).await;
    assert_eq!(
        whole["usage"]["prompt_tokens"],
        prompt["usage"]["prompt_tokens"]
    );

    let mut body = asked(&fields);
    body["stream"] = json!(true);
    let chunks = server.stream(PATH, &body).await.chunks().await;
    for (index, text) in (0..).zip(&texts) {
        assert_eq!(sse::text(&chunks, index), *text, "seeded choice {index}");
        let of_this = |chunk: &&Value| chunk["choices"][0]["index"] == index;
        let ends = chunks
            .iter()
            .filter(of_this)
            .filter(|chunk| !chunk["choices"][0]["finish_reason"].is_null());
        assert_eq!(ends.count(), 1);
    }
    assert!(texts[0] != texts[1] || texts[1] != texts[2], "{texts:?}");
}

#[tokio::test]
async fn stop_strings_end_the_text_and_are_never_shown() {
    let (_turn, server) = (turns::shared().await, shared().await);
    // Stop strings within a token, across tokens, the first of several, and none.
    for (stop, expected) in [
        (json!("8"), "3, 4, 5, 6, 7, "),
        (json!(["7, 8, 9"]), "3, 4, 5, 6, "),
        (json!(["10", "5, 6"]), "3, 4, "),
        (json!(["3"]), ""),
        (json!(["forty"]), COUNTED),
        (Value::Null, COUNTED),
    ] {
        let whole = server.ok(PATH, &counting(&json!({"stop": stop}))).await;
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["content"], expected, "{stop}");
        assert_eq!(choice["finish_reason"], "stop");
        let body = counting(&json!({"stop": stop, "stream": true}));
        let chunks = server.stream(PATH, &body).await.chunks().await;
        assert_eq!(sse::text(&chunks, 0), expected, "{stop}, streamed");
    }
}

#[tokio::test]
async fn logprobs_describe_every_token() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let fields = json!({"logprobs": true, "top_logprobs": 3});
    let answer = server.ok(PATH, &counting(&fields)).await;
    let content = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("one per token");
    assert_eq!(answer["usage"]["completion_tokens"], content.len());
    let mut bytes = Vec::new();
    for token in content {
        let logprob = token["logprob"].as_f64().expect("a number");
        assert!(logprob <= 0.0);
        let top = token["top_logprobs"].as_array().expect("alternatives");
        assert_eq!(top.len(), 3);
        // Sampling is greedy: the token is the most likely one.
        assert_eq!(top[0]["token"], token["token"]);
        assert_eq!(top[0]["logprob"], token["logprob"]);
        let own = token["bytes"].as_array().expect("bytes");
        bytes.extend(own.iter().map(|byte| byte.as_u64().expect("a byte") as u8));
    }
    let text = String::from_utf8(bytes).expect("text");
    // The last token is the end of the turn.
    assert!(text.starts_with(COUNTED), "{text}");

    let mut body = counting(&fields);
    body["stream"] = json!(true);
    let chunks = server.stream(PATH, &body).await.chunks().await;
    let streamed: Vec<_> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .collect();
    assert_eq!(streamed, content.iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn lengths_are_kept() {
    let (_turn, server) = (turns::shared().await, shared().await);
    for name in ["max_tokens", "max_completion_tokens"] {
        let answer = server.ok(PATH, &counting(&json!({name: 5}))).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 5);
    }
    let beyond = json!({"max_tokens": 60, "ignore_eos": true});
    let answer = server.ok(PATH, &counting(&beyond)).await;
    assert_eq!(answer["usage"]["completion_tokens"], 60);
    let least = json!({"max_tokens": 60, "min_tokens": 50});
    let answer = server.ok(PATH, &counting(&least)).await;
    assert!(answer["usage"]["completion_tokens"].as_u64() >= Some(50));
}

#[tokio::test]
async fn seeds_and_biases_steer_the_choice() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let text = async |fields: Value| {
        let answer = server.ok(PATH, &chat("Tell me something.", &fields)).await;
        answer["choices"][0]["message"]["content"].clone()
    };
    let sampled = |seed: i64| json!({"temperature": 2.0, "seed": seed, "max_tokens": 24});
    let (one, again, other) = (
        text(sampled(1)).await,
        text(sampled(1)).await,
        text(sampled(2)).await,
    );
    assert_eq!(one, again);
    assert_ne!(one, other);

    let prompt = json!({"prompt": "7", "add_special_tokens": false});
    let seven = server.ok("/tokenize", &prompt).await["tokens"][0].clone();
    let fields = json!({"logit_bias": {seven.to_string(): -100}, "max_tokens": 40});
    let answer = server.ok(PATH, &counting(&fields)).await;
    let content = answer["choices"][0]["message"]["content"].as_str();
    assert!(content.is_some_and(|text| !text.contains('7')), "{answer}");
}

#[tokio::test]
async fn a_prompt_that_was_seen_comes_from_the_cache_and_answers_the_same() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let question = format!("{}Count from 3 to 12.", "Please be exact. ".repeat(20));
    let body = chat(&question, &json!({"logprobs": true, "max_tokens": 20}));
    let cold = server.ok(PATH, &body).await;
    let warm = server.ok(PATH, &body).await;
    assert!(cached(&warm) > cached(&cold), "{cold} {warm}");
    assert_eq!(cold["choices"], warm["choices"], "also the logprobs");
}

/// Returns the number of prompt tokens that came from the cache.
fn cached(answer: &Value) -> u64 {
    let details = &answer["usage"]["prompt_tokens_details"];
    details["cached_tokens"].as_u64().expect("a count")
}

#[tokio::test]
async fn a_prompt_is_not_found_under_another_salt() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let question = format!("{}Count from 3 to 12.", "Keep this secret. ".repeat(20));
    let ask = async |salt: &str| {
        let body = chat(&question, &json!({"cache_salt": salt, "max_tokens": 20}));
        server.ok(PATH, &body).await
    };
    let first = ask("one tenant's").await;
    assert_eq!(cached(&first), 0, "{first}");
    let again = ask("one tenant's").await;
    assert!(cached(&again) > 0, "{again}");
    let other = ask("another's").await;
    assert_eq!(cached(&other), 0, "{other}");
    let unsalted = chat(&question, &json!({"max_tokens": 20}));
    let unsalted = server.ok(PATH, &unsalted).await;
    for answer in [&again, &other, &unsalted] {
        assert_eq!(
            answer["choices"], first["choices"],
            "a salt changes no text"
        );
    }
}

#[tokio::test]
async fn parts_roles_and_unknown_fields_are_taken() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let parts = json!([{"type": "text", "text": "Count from 3 to 12."}]);
    let fields = json!({
        "messages": [{"role": "user", "content": parts}],
        "user": "somebody",
        "continuous_usage_stats": true,
        "no_such_field": {"a": [1]},
        "service_tier": "auto",
        "store": false,
        "metadata": {},
    });
    let answer = server.ok(PATH, &counting(&fields)).await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
}
