//! Adapters: requests of several share steps without a trace in their texts, and adapters come
//! and go under load.

use std::path::Path;

use futures::future::join_all;
use lockstep_tests::{
    MODEL,
    body::{completion, with},
    server::Server,
    sse, turns,
};
use serde_json::{Value, json};

use crate::options;

const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";
const COMPLETIONS: &str = "/v1/completions";
/// Prompt that the demo model continues by counting.
const PROMPT: &str = "1, 2, 3, 4, 5, 6, 7, 8,";

/// Starts a server with the adapter `a`, and loads `b` while it serves. Other folders beside
/// theirs have adapters of other models.
async fn server() -> Server {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/adapters");
    let path = |folder: &Path| folder.to_str().expect("UTF-8").to_owned();
    let options = options()
        .set(
            "--lora-paths",
            &format!("a={}", path(&root.join("demo_one"))),
        )
        .set("--lora-dir", &path(&root))
        .set("--max-loras-per-batch", "3")
        .set("--max-lora-rank", "4");
    let server = Server::start(options).await;
    server.ok(LOAD, &loading("b", "demo_two")).await;
    server
}

fn loading(name: &str, path: &str) -> Value {
    json!({"lora_name": name, "lora_path": path})
}

fn ask(model: &str, prompt: &str, fields: &Value) -> Value {
    let fields = with(
        json!({
            "model": model, "max_tokens": 12, "ignore_eos": true, "skip_special_tokens": false,
        }),
        fields,
    );
    completion(prompt, &fields)
}

async fn text(server: &Server, body: &Value) -> String {
    let answer = server.ok(COMPLETIONS, body).await;
    assert_eq!(answer["model"], body["model"]);
    answer["choices"][0]["text"]
        .as_str()
        .expect("a text")
        .to_owned()
}

#[tokio::test]
async fn texts_of_adapters_are_those_that_each_has_alone() {
    let _turn = turns::shared().await;
    let server = server().await;
    let models = [MODEL, "a", "b", "a"];
    let body = |at: usize| {
        let prompt = format!("{PROMPT} {}", at / models.len());
        // Some without drafts, which show in no text.
        let speculative = json!({"speculative": {"enabled": !at.is_multiple_of(3)}});
        ask(models[at % models.len()], &prompt, &speculative)
    };
    let bodies: Vec<Value> = (0..32).map(body).collect();
    let together = join_all(bodies.iter().map(|body| text(&server, body))).await;
    server.ok("/flush_cache", &json!({})).await;
    for (at, (body, together)) in bodies.iter().zip(&together).enumerate() {
        assert_eq!(text(&server, body).await, *together, "{at}");
    }
    let of = |model: usize| together.iter().skip(model).step_by(models.len());
    let [base, a, b] = [0, 1, 2].map(|model| of(model).collect::<Vec<_>>());
    assert!(base != a && a != b && b != base, "{base:?} {a:?} {b:?}");
    let native = json!({
        "text": format!("{PROMPT} 0"), "lora_path": "a",
        "sampling_params": {
            "max_new_tokens": 12, "temperature": 0, "ignore_eos": true,
            "skip_special_tokens": false,
        },
    });
    assert_eq!(server.ok("/generate", &native).await["text"], *together[1]);
    let metrics = server.metrics().await;
    assert_eq!(metrics.value("lockstep_kv_leaked_pages"), 0.0);
    assert_eq!(metrics.value("lockstep_adapters_in_memory"), 2.0);
}

#[tokio::test]
async fn adapters_come_and_go_while_requests_run() {
    let _turn = turns::shared().await;
    let server = server().await;
    let long = |model: &str| ask(model, PROMPT, &json!({"max_tokens": 300, "stream": true}));
    let begun = async |model: &str| {
        let mut stream = server.stream(COMPLETIONS, &long(model)).await;
        let sse::Event::Json(first) = stream.next().await else {
            panic!("no first event");
        };
        (first, stream)
    };
    let rest = async |(first, stream): (Value, sse::Events)| {
        let rest = stream.chunks().await;
        let chunks: Vec<Value> = std::iter::once(first).chain(rest).collect();
        sse::text(&chunks, 0)
    };
    let (of_a, of_b) = (rest(begun("a").await).await, rest(begun("b").await).await);
    let short = |model: &str| ask(model, PROMPT, &json!({}));
    let (a, b) = (
        text(&server, &short("a")).await,
        text(&server, &short("b")).await,
    );

    // Other bytes take the name, and what runs goes on with the first.
    let running = begun("a").await;
    server.ok(LOAD, &loading("a", "demo_two")).await;
    assert_ne!(a, b);
    let answer = server.ok(COMPLETIONS, &short("a")).await;
    assert_eq!(answer["choices"][0]["text"], b);
    // Prefixes are those of the bytes, whatever their names.
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64().is_some_and(|cached| cached > 0), "{answer}");
    assert_eq!(rest(running).await, of_a);

    // A name goes at once, and what runs goes on.
    let running = begun("b").await;
    server.ok(UNLOAD, &json!({"lora_name": "b"})).await;
    let gone = server.post(COMPLETIONS, &short("b")).await;
    assert_eq!(gone.status, 404, "{}", gone.text);
    assert_eq!(gone.error()["code"], "model_not_found");
    assert_eq!(rest(running).await, of_b);

    // An adapter of another model changes nothing.
    let other = server.post(LOAD, &loading("a", "llama")).await;
    assert_eq!(other.status, 400, "{}", other.text);
    assert_eq!(text(&server, &short("a")).await, b);
    let models = server.get("/v1/models").await.ok();
    let adapters = models["data"].as_array().expect("a list").iter();
    let adapters = adapters.filter(|model| model["parent"] == MODEL);
    let adapters: Vec<_> = adapters.map(|model| &model["id"]).collect();
    assert_eq!(adapters, ["a"]);
}
