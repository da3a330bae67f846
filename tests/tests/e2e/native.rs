//! Tests of `/generate`, `/tokenize` and `/detokenize`.

use lockstep_tests::{body::completion, turns};
use serde_json::{Value, json};

use crate::shared;

/// Prompt that the demo model continues by counting.
const PROMPT: &str = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,";

#[tokio::test]
async fn generate_gives_what_completions_give() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let fields = json!({"max_tokens": 20});
    let expected = server
        .ok("/v1/completions", &completion(PROMPT, &fields))
        .await;
    let expected = &expected["choices"][0]["text"];
    let params = json!({"max_new_tokens": 20, "temperature": 0});
    let ids = server.ok("/tokenize", &json!({"prompt": PROMPT})).await["tokens"].clone();
    let text = json!({"text": PROMPT, "sampling_params": params});
    let ids = json!({"input_ids": ids, "sampling_params": params, "return_logprob": true});
    let (text, ids) = (
        server.ok("/generate", &text).await,
        server.ok("/generate", &ids).await,
    );
    assert_eq!(text["text"], *expected);
    assert_eq!(ids["text"], *expected);
    let meta = &ids["meta_info"];
    assert_eq!(meta["completion_tokens"], 20);
    assert_eq!(meta["finish_reason"]["type"], "length");
    assert_eq!(
        meta["output_token_logprobs"].as_array().map(Vec::len),
        Some(20)
    );
    assert!(
        ids["output_ids"]
            .as_array()
            .is_some_and(|ids| ids.len() == 20)
    );

    let list = json!({"text": [PROMPT, PROMPT], "sampling_params": params});
    let list = server.ok("/generate", &list).await;
    let texts: Vec<_> = list
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| &one["text"])
        .collect();
    assert_eq!(texts, [expected, expected]);
}

#[tokio::test]
async fn a_generate_stream_is_cumulative_and_ends() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let params = json!({"max_new_tokens": 20, "temperature": 0});
    let body = json!({"text": PROMPT, "sampling_params": params});
    let whole = server.ok("/generate", &body).await;
    let body = json!({"text": PROMPT, "sampling_params": params, "stream": true});
    let chunks = server.stream("/generate", &body).await.chunks().await;
    let texts: Vec<_> = chunks
        .iter()
        .filter_map(|chunk| chunk["text"].as_str())
        .collect();
    for pair in texts.windows(2) {
        assert!(pair[1].starts_with(pair[0]), "{pair:?}");
    }
    assert_eq!(texts.last().copied(), whole["text"].as_str());
    let last = chunks.last().expect("a last chunk");
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "length");
}

#[tokio::test]
async fn text_and_tokens_go_round() {
    let (_turn, server) = (turns::shared().await, shared().await);
    for text in ["", "plain", "Zwölf Boxkämpfer 🥊", "日本語", "a\n\n\tb  c"] {
        let fields = json!({"prompt": text, "add_special_tokens": false});
        let tokenized = server.ok("/tokenize", &fields).await;
        let count = tokenized["tokens"].as_array().map(Vec::len);
        assert_eq!(
            tokenized["count"].as_u64().map(|count| count as usize),
            count
        );
        assert_eq!(tokenized["max_model_len"], 2048);
        let back = server
            .ok("/detokenize", &json!({"tokens": tokenized["tokens"]}))
            .await;
        assert_eq!(back["text"], text);
        assert_eq!(back["prompt"], text);
    }
    let messages = json!([{"role": "user", "content": PROMPT}]);
    let chat = server.ok("/tokenize", &json!({"messages": messages})).await;
    let fields = json!({"messages": messages, "max_tokens": 1, "model": lockstep_tests::MODEL});
    let answer: Value = server.ok("/v1/chat/completions", &fields).await;
    assert_eq!(answer["usage"]["prompt_tokens"], chat["count"]);
}
