//! Texts that clients give to a server as a source of drafts.

use lockstep_tests::{body::chat, server::Server, turns};
use serde_json::{Value, json};

use crate::options;

const PATH: &str = "/ngram/corpus";

/// The answer of the demo model that counts ten numbers from `first`.
fn counted(first: u32) -> String {
    let numbers: Vec<String> = (first..first + 10).map(|n| n.to_string()).collect();
    numbers.join(", ")
}

/// Lets the demo model count from `first`. Returns the number of accepted draft tokens
/// and the text.
async fn count(server: &Server, first: u32) -> (u64, String) {
    let prompt = format!("Count from {first} to {}.", first + 9);
    let answer = server
        .ok("/v1/chat/completions", &chat(&prompt, &json!({})))
        .await;
    let text = answer["choices"][0]["message"]["content"].as_str();
    let accepted = answer["usage"]["speculative"]["accepted_tokens"].as_u64();
    (accepted.unwrap_or(0), text.expect("a text").to_owned())
}

fn corpora(answer: &Value) -> Vec<&str> {
    let all = answer["corpora"].as_array().expect("a list").iter();
    all.map(|corpus| corpus["name"].as_str().expect("a name"))
        .collect()
}

#[tokio::test]
async fn a_corpus_is_drafted_from_until_it_is_removed() {
    let _turn = turns::shared().await;
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../models");
    let options = options()
        .set("--speculative-algorithm", "NGRAM")
        .flag("--speculative-adaptive=false")
        .set("--weight-update-dir", models);
    let server = Server::start(options).await;
    let (without, text) = count(&server, 3).await;
    assert_eq!(text, counted(3));
    let body = json!({"name": "numbers/teens", "text": counted(14)});
    let added = server.ok(PATH, &body).await;
    assert_eq!(corpora(&added), ["numbers/teens"]);
    let body = json!({"corpus_id": "more", "documents": ["one text", "another text"]});
    let more = server.ok("/add_external_corpus", &body).await;
    assert_eq!(more["success"], true);
    assert_eq!(
        corpora(&server.get(PATH).await.ok()),
        ["more", "numbers/teens"]
    );
    let (with, text) = count(&server, 14).await;
    assert_eq!(text, counted(14));
    assert!(
        with > without + 5,
        "{with} drafts were right, {without} before"
    );
    let info = server.get("/server_info").await.ok();
    let length = &info["internal_states"][0]["avg_spec_accept_length"];
    assert!(length.as_f64().is_some_and(|length| length > 1.0), "{info}");
    let update = json!({"model_path": "lockstep-demo-7m"});
    server.ok("/update_weights_from_disk", &update).await;
    let kept = server.get(PATH).await.ok();
    assert_eq!(
        corpora(&kept),
        ["more", "numbers/teens"],
        "other weights, the same texts"
    );
    let url = server.url("/ngram/corpus/numbers/teens");
    let removed = server.client.delete(&url).send().await.expect("answered");
    assert_eq!(removed.status(), 200);
    assert_eq!(corpora(&server.get(PATH).await.ok()), ["more"]);
    let again = server.client.delete(&url).send().await.expect("answered");
    assert_eq!(again.status(), 400);
    let short = server
        .post(PATH, &json!({"name": "short", "token_ids": [5]}))
        .await;
    assert_eq!(short.status, 400, "{}", short.text);
}
