//! Tests of `/v1/completions` and `/v1/models`.

use lockstep_tests::{MODEL, body::completion, sse, turns};
use serde_json::{Value, json};

use crate::shared;

const PATH: &str = "/v1/completions";
/// Prompt that the demo model continues by counting.
const PROMPT: &str = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,";

#[tokio::test]
async fn every_form_of_a_prompt_means_the_same() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let tokens = server.ok("/tokenize", &json!({"prompt": PROMPT})).await["tokens"].clone();
    let mut texts = Vec::new();
    for prompt in [
        json!(PROMPT),
        json!([PROMPT]),
        tokens.clone(),
        json!([tokens]),
    ] {
        let answer = server.ok(PATH, &completion(prompt, &json!({}))).await;
        assert_eq!(answer["object"], "text_completion");
        assert!(
            answer["id"]
                .as_str()
                .is_some_and(|id| id.starts_with("cmpl-"))
        );
        // The default of OpenAI's API.
        assert_eq!(answer["usage"]["completion_tokens"], 16);
        texts.push(answer["choices"][0]["text"].clone());
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");

    let two = completion(json!([PROMPT, "7 x 1 = 7\n7 x 2 = 14\n"]), &json!({"n": 2}));
    let answer = server.ok(PATH, &two).await;
    let choices = answer["choices"].as_array().expect("choices");
    let indices: Vec<_> = choices.iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(choices[0]["text"], texts[0]);
    assert_eq!(choices[1]["text"], texts[0]);
    assert_eq!(choices[2]["text"], choices[3]["text"]);
    assert_ne!(choices[0]["text"], choices[2]["text"]);
}

#[tokio::test]
async fn an_echo_with_logprobs_scores_the_prompt_as_lm_eval_needs_it() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let tokens = server.ok("/tokenize", &json!({"prompt": PROMPT})).await["tokens"].clone();
    let length = tokens.as_array().map_or(0, Vec::len);
    let fields = json!({"echo": true, "logprobs": 1, "max_tokens": 1, "seed": 1234});
    let answer = server.ok(PATH, &completion(json!([tokens]), &fields)).await;
    let choice = &answer["choices"][0];
    let text = choice["text"].as_str().expect("a text");
    assert!(text.starts_with(PROMPT), "{text}");
    let logprobs = &choice["logprobs"];
    let list = |name: &str| logprobs[name].as_array().expect("a list").clone();
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(list(name).len(), length + 1, "{name}");
    }
    assert_eq!(list("token_logprobs")[0], Value::Null);
    assert_eq!(list("top_logprobs")[0], Value::Null);
    for (token, top) in list("token_logprobs")
        .iter()
        .zip(list("top_logprobs"))
        .skip(1)
    {
        let most = top.as_object().expect("a map").values();
        let most = most.filter_map(Value::as_f64).fold(f64::MIN, f64::max);
        assert!(token.as_f64().is_some_and(|own| own <= most));
    }
    assert_eq!(list("text_offset")[0], 0);
    let joined: String = list("tokens").iter().filter_map(Value::as_str).collect();
    assert_eq!(joined, text);

    let scored = json!({"echo": true, "logprobs": 1, "max_tokens": 0});
    let scored = server.ok(PATH, &completion(json!([tokens]), &scored)).await;
    assert_eq!(scored["choices"][0]["text"], PROMPT);
    let own = scored["choices"][0]["logprobs"]["token_logprobs"].as_array();
    assert_eq!(own, Some(&list("token_logprobs")[..length].to_vec()));
    assert_eq!(scored["usage"]["completion_tokens"], 0);
}

#[tokio::test]
async fn a_stream_is_the_whole_answer_in_pieces() {
    let (_turn, server) = (turns::shared().await, shared().await);
    for echo in [false, true] {
        let fields = json!({"max_tokens": 24, "n": 2, "temperature": 1, "seed": 3, "echo": echo});
        let whole = server.ok(PATH, &completion(PROMPT, &fields)).await;
        let mut body = completion(PROMPT, &fields);
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let chunks = server.stream(PATH, &body).await.chunks().await;
        let last = chunks.last().expect("the usage chunk");
        assert_eq!(last["choices"], json!([]));
        for field in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(last["usage"][field], whole["usage"][field], "{field}");
        }
        for index in 0..2u64 {
            let text = &whole["choices"][index as usize]["text"];
            assert_eq!(json!(sse::text(&chunks, index)), *text);
        }
    }
}

#[tokio::test]
async fn stop_tokens_and_penalties_are_obeyed() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let plain = server
        .ok(PATH, &completion(PROMPT, &json!({"logprobs": 0})))
        .await;
    let third = plain["choices"][0]["logprobs"]["tokens"][2].clone();
    let ask = json!({"prompt": third, "add_special_tokens": false});
    let id = server.ok("/tokenize", &ask).await["tokens"][0].clone();
    let stopped = json!({"stop_token_ids": [id]});
    let stopped = server.ok(PATH, &completion(PROMPT, &stopped)).await;
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert!(stopped["usage"]["completion_tokens"].as_u64() <= Some(3));

    let repeated = json!({"max_tokens": 40, "ignore_eos": true});
    let repeated = server.ok(PATH, &completion("a a a a a a", &repeated)).await;
    let penalised = json!({
        "max_tokens": 40, "ignore_eos": true,
        "frequency_penalty": 2, "presence_penalty": 2, "repetition_penalty": 1.8,
    });
    let penalised = server
        .ok(PATH, &completion("a a a a a a", &penalised))
        .await;
    assert_ne!(
        repeated["choices"][0]["text"],
        penalised["choices"][0]["text"]
    );
}

#[tokio::test]
async fn the_model_is_listed() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let list = server.get("/v1/models").await.ok();
    assert_eq!(list["object"], "list");
    let model = &list["data"][0];
    assert_eq!(
        (&model["id"], &model["object"]),
        (&json!(MODEL), &json!("model"))
    );
    assert_eq!(list["data"].as_array().map(Vec::len), Some(1));
    let same = server.get(&format!("/v1/models/{MODEL}")).await.ok();
    assert_eq!(same, *model);
}
