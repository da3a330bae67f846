//! `/openapi.json` agrees with the handlers, and the other descriptive routes have the
//! fields that clients of other servers read.

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    client::{chat, completion, with},
    harness::{CONTEXT, Front, MODEL, start, start_with},
    messages::message,
    responses::response,
};

async fn description(front: &Front) -> Value {
    let (status, text) = front.get("/openapi.json").await;
    assert_eq!(status, 200);
    serde_json::from_str(&text).expect("json")
}

#[tokio::test]
async fn every_described_route_is_there_and_no_other_method() {
    let front = start().await;
    let all = description(&front).await;
    let paths = all["paths"].as_object().expect("paths");
    assert!(paths.len() > 20);
    for (path, methods) in paths {
        let target = path.replace("{id}", MODEL).replace("{name}", "a");
        for method in [Method::GET, Method::POST, Method::DELETE, Method::PUT] {
            let described = !methods[method.as_str().to_lowercase()].is_null();
            let url = format!("{}{target}", front.url);
            let request = front.client.request(method.clone(), url).json(&json!({}));
            let answer = request.send().await.expect("answered");
            let status = answer.status().as_u16();
            let text = answer.text().await.expect("a body");
            assert_eq!(status != 405, described, "{method} {path}: {status} {text}");
            assert!(!text.contains("Invalid URL"), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn described_fields_are_read_as_described() {
    let front = start().await;
    let all = description(&front).await;
    let native = json!({"text": "a"});
    for (path, good, least) in [
        ("/v1/chat/completions", chat(&json!({})), 20),
        ("/v1/completions", completion(&json!({})), 20),
        ("/v1/responses", response(&json!({})), 25),
        ("/v1/messages", message(&json!({})), 20),
        ("/v1/messages/count_tokens", message(&json!({})), 20),
        ("/generate", native.clone(), 3),
    ] {
        let body = &all["paths"][path]["post"]["requestBody"];
        let schema = &body["content"]["application/json"]["schema"];
        let properties = schema["properties"].as_object().expect("fields");
        let refused = refuse_each(&front, path, properties, |name, value| {
            with(good.clone(), &json!({name: value}))
        });
        let refused = refused.await;
        assert!(refused >= least, "{path}: {refused}");
        if let Some(sampling) = properties.get("sampling_params") {
            let fields = sampling["anyOf"][0]["properties"]
                .as_object()
                .expect("fields");
            let refused = refuse_each(&front, path, fields, |name, value| {
                with(native.clone(), &json!({"sampling_params": {name: value}}))
            });
            assert!(refused.await > 12, "{path}");
        }
    }
}

/// Sends each field with a type other than the described one. Returns the number of
/// fields sent.
async fn refuse_each(
    front: &Front,
    path: &str,
    fields: &serde_json::Map<String, Value>,
    body: impl Fn(&str, Value) -> Value,
) -> usize {
    let mut count = 0;
    for (name, schema) in fields {
        let wrong = match schema["type"].as_str() {
            Some("integer" | "number" | "boolean" | "object" | "array") => json!("x"),
            Some("string") => json!(5),
            _ => continue,
        };
        let (status, text) = front.post(path, &body(name, wrong)).await;
        assert_eq!(status, 400, "{path} {name}: {text}");
        assert!(text.contains(name), "{path} {name}: {text}");
        count += 1;
    }
    count
}

#[tokio::test]
async fn dp_ranks_are_described_as_far_as_they_go() {
    for dp_size in [1, 4] {
        let front = start_with(|engine, _| {
            engine.parallel.tp_size = dp_size;
            engine.parallel.dp_size = dp_size;
        })
        .await;
        let all = description(&front).await;
        for (path, good) in [
            ("/v1/chat/completions", chat(&json!({}))),
            ("/v1/completions", completion(&json!({}))),
            ("/v1/responses", response(&json!({}))),
            ("/v1/messages", message(&json!({}))),
            ("/generate", json!({"text": "a"})),
        ] {
            let body = &all["paths"][path]["post"]["requestBody"];
            let schema = &body["content"]["application/json"]["schema"];
            let rank = &schema["properties"]["data_parallel_rank"];
            let most = dp_size - 1;
            let expected = json!({"type": "integer", "minimum": 0, "maximum": most});
            assert_eq!(*rank, expected, "{path}");
            // Ranks beyond the range are refused.
            for asked in [-1, dp_size as i64] {
                let body = with(good.clone(), &json!({"data_parallel_rank": asked}));
                let (status, text) = front.post(path, &body).await;
                assert_eq!(status, 400, "{path} {asked}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn keys_are_described_where_they_are_asked_for() {
    let front = start_with(|_, node| node.admin_api_key = Some("operator".to_owned())).await;
    let all = description(&front).await;
    let asks = |path: &str, method: &str| all["paths"][path][method]["security"].is_array();
    assert!(asks("/flush_cache", "post") && asks("/speculation", "post"));
    assert!(!asks("/speculation", "get") && !asks("/v1/chat/completions", "post"));
}

#[tokio::test]
async fn load_and_tokenizer_are_told_as_other_servers_do() {
    let front = start().await;
    let ask = async |path: &str| {
        let (status, text) = front.get(path).await;
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str::<Value>(&text).expect("json")
    };
    assert_eq!(ask("/load").await, json!({"server_load": 0}));
    let get_load = ask("/get_load").await;
    assert_eq!(get_load[0]["dp_rank"], 0);
    assert!(get_load[0]["num_reqs"].as_u64() >= Some(3), "{get_load}");
    let loads = ask("/v1/loads?include=core").await;
    assert_eq!(loads["dp_rank_count"], 1);
    let one = &loads["loads"][0];
    assert_eq!(
        (&one["num_running_reqs"], &one["max_total_num_tokens"]),
        (&json!(3), &json!(1024))
    );
    assert_eq!(loads["aggregate"]["total_running_reqs"], 3);
    let told = loads["timestamp"]
        .as_str()
        .map(str::parse::<jiff::Timestamp>);
    assert!(matches!(told, Some(Ok(_))), "{loads}");
    let info = ask("/tokenizer_info").await;
    assert_eq!(info["eos_token"], "<|im_end|>");
    let template = info["chat_template"].as_str().expect("a template");
    assert!(template.contains("messages"));
    let props = ask("/props").await;
    assert_eq!(props["default_generation_settings"]["n_ctx"], CONTEXT);
    assert_eq!(props["chat_template"], template);
}

#[tokio::test]
async fn loads_have_the_sections_and_the_format_that_were_asked_for() {
    let front = start().await;
    let sections = ["memory", "speculative", "disaggregation", "queues"];
    for (query, expected) in [
        ("", &sections[..]),
        ("?include=all", &sections),
        ("?include=core", &[]),
        ("?include=memory,spec&dp_rank=0", &["memory", "speculative"]),
        ("?include=queues&format=json", &["queues"]),
    ] {
        let (status, text) = front.get(&format!("/v1/loads{query}")).await;
        assert_eq!(status, 200, "{query}: {text}");
        let loads: Value = serde_json::from_str(&text).expect("json");
        let one = &loads["loads"][0];
        let given = sections.into_iter().filter(|name| !one[name].is_null());
        assert_eq!(given.collect::<Vec<_>>(), expected, "{query}");
        if expected.contains(&"memory") {
            let memory = json!({
                "weight_gb": 1.5, "kv_cache_gb": 0.5, "graph_gb": 0.0, "token_capacity": 1024
            });
            assert_eq!(one["memory"], memory);
        }
        assert_eq!(
            (&one["num_waiting_uncached_tokens"], &one["gen_throughput"]),
            (&json!(11), &json!(12.5)),
        );
    }
    for (query, field, named) in [
        ("include=core,x", "include", "disagg"),
        ("dp_rank=1", "dp_rank", "from 0 to 0"),
        ("dp_rank=x", "dp_rank", "0"),
        ("format=xml", "format", "prometheus"),
    ] {
        let (status, text) = front.get(&format!("/v1/loads?{query}")).await;
        let error: Value = serde_json::from_str(&text).expect("json");
        let error = &error["error"];
        assert_eq!((status, &error["param"]), (400, &json!(field)), "{query}");
        let message = error["message"].as_str().expect("text");
        assert!(message.contains(named), "{message}");
    }
    let (status, text) = front.get("/v1/loads?format=prometheus").await;
    assert_eq!(status, 200, "{text}");
    for line in [
        "# TYPE sglang_num_running_reqs gauge",
        "sglang_num_running_reqs{dp_rank=\"0\"} 3",
        "sglang_memory_weight_gb{dp_rank=\"0\"} 1.5",
        "sglang_queues_retracted{dp_rank=\"0\"} 2",
    ] {
        assert!(text.lines().any(|own| own == line), "{line}: {text}");
    }
}
