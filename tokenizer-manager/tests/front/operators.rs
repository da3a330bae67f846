//! Requests of operators, load balancers and tools.

use std::{sync::atomic::Ordering, time::Instant};

use lockstep_proto::pb::lockstep::{FiguresWanted, FinishReason, FrontFigures};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::{
    client::chat,
    harness::{CONTEXT, HASH, MODEL, start, start_with},
    mock::ids,
};

#[tokio::test]
async fn health_is_the_schedulers() {
    let front = start().await;
    assert_eq!(front.get("/health").await.0, 200);
    assert_eq!(front.mock.steps_forced.load(Ordering::Relaxed), 0);
    assert_eq!(front.get("/health_generate").await.0, 200);
    assert_eq!(front.mock.steps_forced.load(Ordering::Relaxed), 1);
    front.mock.healthy.store(false, Ordering::Relaxed);
    for path in ["/health", "/ping"] {
        let (status, text) = front.get(path).await;
        assert_eq!(status, 503);
        assert!(text.contains("rank 1 is stuck"), "{text}");
    }
}

#[tokio::test]
async fn the_model_is_listed_and_described() {
    let front = start().await;
    let json = |text: String| serde_json::from_str::<Value>(&text).expect("json");
    let list = json(front.get("/v1/models").await.1);
    assert_eq!(list["data"][0]["id"], MODEL);
    assert_eq!(list["data"][0]["max_model_len"], CONTEXT);
    let (status, text) = front.get("/v1/models/demo").await;
    assert_eq!(
        (status, json(text)["object"].clone()),
        (200, json!("model"))
    );
    let (status, text) = front.get("/v1/models/some/other").await;
    assert_eq!(status, 404);
    assert_eq!(json(text)["error"]["code"], "model_not_found");
    for path in ["/model_info", "/get_model_info"] {
        let info = json(front.get(path).await.1);
        assert_eq!(info["is_generation"], true);
        assert_eq!(info["eos_token_ids"], json!([2]));
    }
    for path in ["/server_info", "/get_server_info"] {
        let info = json(front.get(path).await.1);
        assert_eq!(info["config_hash"], HASH);
        assert_eq!(info["load"]["num_running_reqs"], 3);
    }
    let version = json(front.get("/version").await.1);
    assert_eq!(version, json!({"version": env!("CARGO_PKG_VERSION")}));
    let (status, text) = front.get("/").await;
    assert_eq!(status, 200);
    assert!(text.contains(MODEL));
}

#[tokio::test]
async fn tokens_there_and_back() {
    let front = start().await;
    let text = "Hello wörld";
    let one = front.ok("/tokenize", &json!({"prompt": text})).await;
    let tokens = one["tokens"].as_array().expect("tokens").clone();
    assert_eq!(one["count"], tokens.len());
    assert_eq!(one["max_model_len"], CONTEXT);
    let back = front.ok("/detokenize", &json!({"tokens": tokens})).await;
    assert_eq!(back, json!({"prompt": text, "text": text}));
    let many = front.ok("/tokenize", &json!({"prompt": [text, ""]})).await;
    assert_eq!(many["tokens"], json!([tokens, []]));
    let chat = front
        .ok(
            "/tokenize",
            &json!({"messages": [{"role": "user", "content": "Hi"}], "return_token_strs": true}),
        )
        .await;
    assert_eq!(chat["token_strs"][0], "<|im_start|>");
    let none = front.ok("/detokenize", &json!({"tokens": []})).await;
    assert_eq!(none["text"], "");
}

#[tokio::test]
async fn what_is_tokenized_can_be_given_back() {
    let front = start_with(|engine, _| {
        engine.server.limits.body_bytes = 4 << 20;
        engine.server.limits.memory_bytes = 256 << 20;
    })
    .await;
    // More tokens than a body may have of other values.
    let text = "7".repeat(300_000);
    let given = json!({"prompt": text, "add_special_tokens": false});
    let tokens = front.ok("/tokenize", &given).await["tokens"].take();
    let back = front.ok("/detokenize", &json!({"tokens": tokens})).await;
    assert!(back["text"] == *text && back["prompt"] == *text);
}

#[tokio::test]
async fn metrics_count_requests_and_tokens() {
    let front = start().await;
    let scheduler = async {
        let job = front.mock.job().await;
        job.tokens(&ids("abc"));
        job.finish(FinishReason::Stop, 3);
    };
    let body = chat(&json!({}));
    tokio::join!(front.ok("/v1/chat/completions", &body), scheduler);
    let (status, text) = front.get("/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "lockstep_front_generated_tokens_total{model_name=\"demo\",tokenizer_manager=\"0\"} 3",
        "lockstep_front_cached_tokens_total{model_name=\"demo\",tokenizer_manager=\"0\"} 2",
        "lockstep_time_to_first_token_seconds_count{model_name=\"demo\",tokenizer_manager=\"0\"} 1",
        "lockstep_requests_in_flight{model_name=\"demo\",tokenizer_manager=\"0\"} 0",
        "lockstep_scheduler_up{model_name=\"demo\"} 1",
        "lockstep_request_success_total{model_name=\"demo\",tokenizer_manager=\"0\",finished_reason=\"stop\"} 1",
        "lockstep_request_generation_tokens_sum{model_name=\"demo\",tokenizer_manager=\"0\"} 3",
        "lockstep_request_prompt_tokens_count{model_name=\"demo\",tokenizer_manager=\"0\"} 1",
        "lockstep_request_decode_time_seconds_count{model_name=\"demo\",tokenizer_manager=\"0\"} 1",
        "lockstep_num_requests_running{model_name=\"demo\"} 3",
        "lockstep_kv_tokens_total{model_name=\"demo\"} 1024",
        "lockstep_request_memory_bytes{model_name=\"demo\"} 77",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(
        text.contains("route=\"/v1/chat/completions\",status=\"200\"")
            || text.contains("status=\"200\"")
    );
}

#[tokio::test]
async fn what_requests_hold_is_told() {
    let front = start().await;
    let holds = async || {
        let text = front.get("/metrics").await.1;
        let start = "lockstep_request_memory_bytes{model_name=\"demo\",tokenizer_manager=\"0\"} ";
        let value = text.lines().find_map(|line| line.strip_prefix(start));
        value.unwrap_or_else(|| panic!("{text}")).parse::<usize>()
    };
    let mut unfinished = TcpStream::connect(front.address).await.expect("connected");
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                content-length: 40000\r\n\r\n";
    let body = " ".repeat(30_000);
    for part in [head, body.as_str()] {
        let sent = unfinished.write_all(part.as_bytes()).await;
        sent.expect("sent");
    }
    while holds().await.expect("a number") < 30_000 {}
    drop(unfinished);
    while holds().await.expect("a number") >= 30_000 {}
}

#[tokio::test]
async fn the_figures_of_all_are_one_text() {
    let front = start_with(|engine, _| engine.parallel.tokenizer_managers = 3).await;
    let name = "lockstep_http_requests_total";
    let metrics = format!(
        "# TYPE {name} counter\n{name}{{tokenizer_manager=\"1\",route=\"/\",status=\"200\"}} 9\n"
    );
    *front.mock.others.lock().expect("no panic") = vec![FrontFigures {
        index: 1,
        in_progress: 5,
        metrics,
    }];
    assert_eq!(front.get("/health").await.0, 200);
    let text = front.get("/metrics").await.1;
    let lines = |start: &str| {
        let lines = text.lines().filter(|line| line.starts_with(start));
        lines.collect::<Vec<_>>()
    };
    assert_eq!(lines(&format!("# TYPE {name} ")).len(), 1, "{text}");
    let answered = lines(name);
    assert_eq!(answered.len(), 2, "{text}");
    for (line, figures) in answered.iter().zip(["\"0\",route=\"/health\"", "\"1\""]) {
        let start = format!("{name}{{model_name=\"demo\",tokenizer_manager={figures}");
        assert!(line.starts_with(&start), "{line}");
    }
    let silent = "lockstep_tokenizer_managers_silent{model_name=\"demo\"} 1";
    assert_eq!(lines(silent).len(), 1, "{text}");
    let (_, load) = front.get("/load").await;
    assert_eq!(load, "{\"server_load\":5}");
}

#[tokio::test]
async fn many_scrapers_ask_the_others_once_in_a_second() {
    let front = start_with(|engine, _| engine.parallel.tokenizer_managers = 2).await;
    *front.mock.others.lock().expect("no panic") = vec![FrontFigures {
        index: 1,
        in_progress: 5,
        ..FrontFigures::default()
    }];
    let begin = Instant::now();
    for _ in 0..8 {
        let scrapes = (0..8).map(|_| front.get("/load"));
        for (status, load) in futures::future::join_all(scrapes).await {
            assert_eq!((status, load.as_str()), (200, "{\"server_load\":5}"));
        }
    }
    let asked = front.mock.figures_asked.load(Ordering::Relaxed) as f64;
    let seconds = begin.elapsed().as_secs_f64();
    assert!(asked <= 1.0 + seconds, "{asked} times in {seconds} s");
}

/// They are two questions, whose answers are shared by who asks the same.
#[tokio::test]
async fn a_load_is_no_answer_to_who_asks_for_metrics() {
    let front = start_with(|engine, _| engine.parallel.tokenizer_managers = 2).await;
    *front.mock.others.lock().expect("no panic") = vec![FrontFigures {
        index: 1,
        metrics: "# TYPE of_another gauge\nof_another 1\n".to_owned(),
        ..FrontFigures::default()
    }];
    assert_eq!(front.get("/load").await.0, 200);
    let text = front.get("/metrics").await.1;
    assert!(text.contains("\nof_another{"), "{text}");
}

#[tokio::test]
async fn one_alone_asks_nobody() {
    let front = start().await;
    *front.mock.others.lock().expect("no panic") = vec![FrontFigures {
        index: 1,
        in_progress: 5,
        ..FrontFigures::default()
    }];
    assert_eq!(front.get("/load").await.1, "{\"server_load\":0}");
}

#[tokio::test]
async fn others_are_told_what_this_one_knows() {
    let front = start().await;
    let ask = async |query, metrics| {
        let answer = front.mock.figures(FiguresWanted { query, metrics }).await;
        assert_eq!(answer.query, query);
        answer.figures.expect("figures")
    };
    assert_eq!(ask(3, false).await, FrontFigures::default());
    let text = ask(4, true).await.metrics;
    for start in [
        "process_threads{",
        "lockstep_connections_open{",
        "lockstep_requests_in_flight{",
    ] {
        let start = format!("{start}tokenizer_manager=\"0\"");
        assert!(text.lines().any(|line| line.starts_with(&start)), "{text}");
    }
}

#[tokio::test]
async fn the_cache_is_flushed() {
    let front = start().await;
    assert_eq!(
        front.ok("/flush_cache", &json!({})).await,
        json!({"flushed": true, "tokens": 7})
    );
    assert_eq!(front.get("/flush_cache").await.0, 200);
}

#[tokio::test]
async fn a_key_closes_everything_but_health() {
    let front = start_with(|engine, node| {
        engine.server.api_key_required = true;
        node.api_key = Some("secret".to_owned());
    })
    .await;
    assert_eq!(front.get("/health").await.0, 200);
    assert_eq!(front.get("/ping").await.0, 200);
    for path in [
        "/v1/models",
        "/metrics",
        "/server_info",
        "/health_generate",
        "/nothing",
    ] {
        let (status, text) = front.get(path).await;
        assert_eq!(status, 401, "{path}");
        assert!(text.contains("invalid_api_key"));
    }
    let url = format!("{}/v1/models", front.url);
    for (key, status) in [("secret", 200), ("secreT", 401), ("", 401)] {
        let request = front.client.get(&url).bearer_auth(key);
        let response = request.send().await.expect("answered");
        assert_eq!(response.status(), status);
        let challenge = response.headers().get("www-authenticate");
        assert_eq!(
            challenge.is_some_and(|scheme| scheme == "Bearer"),
            status == 401
        );
    }
    // A missing key and a wrong key have different messages.
    let missing = front.get("/v1/models").await.1;
    let wrong = front.client.get(&url).bearer_auth("x").send().await;
    let wrong = wrong.expect("answered").text().await.expect("text");
    assert!(missing.contains("didn't provide an API key"), "{missing}");
    assert!(wrong.contains("Incorrect API key"), "{wrong}");
}

#[tokio::test]
async fn request_ids_come_back() {
    let front = start().await;
    let url = format!("{}/v1/chat/completions", front.url);
    let request = front
        .client
        .post(&url)
        .json(&chat(&json!({})))
        .header("x-request-id", "abc-1");
    let (response, ()) = tokio::join!(request.send(), async {
        let job = front.mock.job().await;
        assert_eq!(job.submit.trace_id, "chatcmpl-abc-1");
        job.finish(FinishReason::Stop, 0);
    });
    let response = response.expect("answered");
    assert_eq!(response.headers()["x-request-id"], "abc-1");
    let answer: Value = response.json().await.expect("json");
    assert_eq!(answer["id"], "chatcmpl-abc-1");
    // An id that is not fit for logs is replaced.
    let request = front
        .client
        .get(format!("{}/v1/models", front.url))
        .header("x-request-id", "a b");
    let response = request.send().await.expect("answered");
    assert_ne!(response.headers()["x-request-id"], "a b");
}

#[tokio::test]
async fn figures_have_sglangs_names_where_that_is_asked_for() {
    let names = [
        "num_running_reqs",
        "num_queue_reqs",
        "token_usage",
        "cache_hit_rate",
        "gen_throughput",
        "prompt_tokens_total",
        "generation_tokens_total",
        "num_requests_total",
        "num_used_tokens",
        "max_total_num_tokens",
    ];
    for asked in [false, true] {
        let front = start_with(|engine, _| engine.server.sglang_metrics = asked).await;
        let text = front.get("/metrics").await.1;
        for name in names {
            let sample = format!("\nsglang:{name}{{model_name=\"demo\"");
            assert_eq!(text.contains(&sample), asked, "{name}: {text}");
        }
        assert!(text.contains("\nlockstep_num_requests_running{"), "{text}");
    }
}
