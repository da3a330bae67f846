//! Texts to draft from.

use serde_json::{Value, json};

use super::{
    harness::{Front, start_with},
    mock::{EOS, ids},
};

async fn drafting_from_texts() -> Front {
    start_with(|engine, _| {
        engine.speculation.algorithm = Some("TEXTS".to_owned());
        engine.speculation.drafts_from_texts = true;
    })
    .await
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("json")
}

#[tokio::test]
async fn corpora_come_are_listed_and_go() {
    let front = drafting_from_texts().await;
    let text = front.ok("/tokenize", &json!({"prompt": "abab"})).await["tokens"].clone();
    for (fields, tokens) in [
        (json!({"text": "abab"}), text),
        (json!({"token_ids": [5, 6, 7]}), json!([5, 6, 7])),
    ] {
        let mut body = json!({"name": "new/one"});
        body.as_object_mut()
            .expect("an object")
            .extend(fields.as_object().expect("an object").clone());
        let (answer, sent) = tokio::join!(front.ok("/ngram/corpus", &body), front.mock.corpus());
        assert_eq!(json!(sent), tokens);
        assert_eq!(answer["tokens"], sent.len());
        assert_eq!(
            answer["corpora"],
            json!([{"name": "new/one", "tokens": sent.len()}, {"name": "old", "tokens": 2}])
        );
    }
    let (status, text) = front.get("/ngram/corpus").await;
    assert_eq!(status, 200, "{text}");
    assert_eq!(
        parsed(&text),
        json!({"corpora": [{"name": "old", "tokens": 2}]})
    );
    for (name, status) in [("old", 200), ("none/such", 400)] {
        let url = format!("{}/ngram/corpus/{name}", front.url);
        let response = front.client.delete(url).send().await.expect("answered");
        assert_eq!(response.status(), status, "{name}");
    }
}

#[tokio::test]
async fn sglangs_routes_do_the_same() {
    let front = drafting_from_texts().await;
    let body = json!({"corpus_id": "docs", "documents": ["a", "b"]});
    let (answer, sent) = tokio::join!(front.ok("/add_external_corpus", &body), front.mock.corpus());
    let expected = [ids("a"), vec![EOS], ids("b")].concat();
    assert_eq!(sent, expected, "texts do not run into each other");
    assert_eq!(answer["success"], true);
    assert_eq!(answer["corpus_id"], "docs");
    assert_eq!(answer["loaded_token_count"], 3);
    let body = json!({"token_chunks": [[5, 6], [7]]});
    let (answer, sent) = tokio::join!(front.ok("/add_external_corpus", &body), front.mock.corpus());
    assert_eq!(sent, [5, 6, 7]);
    assert!(answer["corpus_id"].is_string(), "a name is drawn");
    let (_, list) = front.get("/list_external_corpora").await;
    let list = parsed(&list);
    assert_eq!(list["corpus_ids"], json!(["old"]));
    assert_eq!(list["corpus_token_counts"], json!({"old": 2}));
    let path = "/remove_external_corpus";
    let removed = front.ok(path, &json!({"corpus_id": "old"})).await;
    assert_eq!(removed["success"], true);
    let (status, text) = front.post(path, &json!({"corpus_id": "none"})).await;
    assert_eq!(status, 400);
    assert_eq!(parsed(&text)["success"], false);
    assert_eq!(
        parsed(&text)["error"]["message"],
        "no corpus is called none"
    );
}

#[tokio::test]
async fn what_is_no_corpus_is_refused_by_name() {
    let front = drafting_from_texts().await;
    for (path, body, param) in [
        ("/ngram/corpus", json!({"text": "a"}), "name"),
        ("/ngram/corpus", json!({"name": "a b", "text": "a"}), "name"),
        ("/ngram/corpus", json!({"name": "a"}), "text"),
        (
            "/ngram/corpus",
            json!({"name": "a", "text": "a", "token_ids": [5]}),
            "text",
        ),
        (
            "/ngram/corpus",
            json!({"name": "a", "token_ids": [5, 4096]}),
            "token_ids",
        ),
        (
            "/ngram/corpus",
            json!({"name": "a", "token_ids": [-1]}),
            "token_ids[0]",
        ),
        ("/add_external_corpus", json!({}), "documents"),
        (
            "/add_external_corpus",
            json!({"file_path": "/etc/passwd"}),
            "file_path",
        ),
        ("/remove_external_corpus", json!({}), "corpus_id"),
    ] {
        let (status, text) = front.post(path, &body).await;
        assert_eq!(status, 400, "{path} {body}: {text}");
        assert_eq!(
            parsed(&text)["error"]["param"],
            param,
            "{path} {body}: {text}"
        );
    }
}

#[tokio::test]
async fn other_servers_have_no_corpora() {
    for algorithm in [None, Some("EAGLE3".to_owned())] {
        let front = start_with(|engine, _| engine.speculation.algorithm = algorithm).await;
        for (path, body) in [
            ("/ngram/corpus", json!({"name": "a", "text": "a b"})),
            ("/add_external_corpus", json!({"documents": ["a b"]})),
            ("/remove_external_corpus", json!({"corpus_id": "a"})),
        ] {
            let (status, text) = front.post(path, &body).await;
            assert_eq!(status, 400, "{path}: {text}");
            assert!(text.contains("--speculative-algorithm NGRAM"), "{text}");
        }
        for path in ["/ngram/corpus", "/list_external_corpora"] {
            assert_eq!(front.get(path).await.0, 400, "{path}");
        }
    }
}
