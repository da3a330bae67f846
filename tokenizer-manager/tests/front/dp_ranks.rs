//! DP ranks: a request may name one, the answer names one, and `/metrics` and load
//! routes report each.

use lockstep_proto::pb::lockstep::{
    DpRankLoad, FinishReason, GenerateRequest, Output, generate_request::Input,
};
use serde_json::{Value, json};
use tonic::Code;

use super::{
    client::{chat, chunks, completion, with},
    grpc::client,
    harness::{Front, start, start_with},
    mock::{ended, ids, tokens},
};

/// Starts a front whose engine has two DP ranks.
async fn two_dp_ranks() -> Front {
    let front = start_with(|engine, _| {
        engine.parallel.tp_size = 4;
        engine.parallel.dp_size = 2;
        engine.schedule.max_running_requests = 8;
    })
    .await;
    let load = |running_requests: u32, kv_tokens_used| DpRankLoad {
        running_requests,
        // All waiting requests wait for the second DP rank.
        waiting_requests: 4 * (running_requests / 2),
        waiting_tokens: 10 * u64::from(running_requests / 2),
        retracted_requests: 2 * (running_requests / 2),
        kv_tokens_used,
        kv_tokens_total: 512,
        prompt_tokens_total: 100,
        cached_tokens_total: kv_tokens_used,
        generated_per_s: 10.0,
        ..DpRankLoad::default()
    };
    *front.mock.dp_ranks.lock().expect("no panic") = vec![load(1, 64), load(2, 0)];
    front
}

fn native(fields: &Value) -> Value {
    with(json!({"text": "ab"}), fields)
}

fn bodies(fields: &Value) -> [(&'static str, Value); 3] {
    [
        ("/v1/chat/completions", chat(fields)),
        ("/v1/completions", completion(fields)),
        ("/generate", native(fields)),
    ]
}

fn grpc(data_parallel_rank: Option<u32>) -> GenerateRequest {
    GenerateRequest {
        input: Some(Input::Text("ab".to_owned())),
        max_new_tokens: Some(4),
        data_parallel_rank,
        ..GenerateRequest::default()
    }
}

#[tokio::test]
async fn a_request_names_its_dp_rank_on_every_surface() {
    let front = two_dp_ranks().await;
    let mut client = client(&front).await;
    for (fields, expected) in [
        (json!({}), None),
        (json!({"data_parallel_rank": null}), None),
        (json!({"data_parallel_rank": 0}), Some(0)),
        (json!({"data_parallel_rank": 1}), Some(1)),
        // Newer servers of SGLang use this name.
        (json!({"routed_dp_rank": 1}), Some(1)),
    ] {
        for (path, body) in bodies(&fields) {
            tokio::join!(front.ok(path, &body), async {
                let job = front.mock.job().await;
                assert_eq!(job.submit.data_parallel_rank, expected, "{path} {fields}");
                job.finish(FinishReason::Stop, 0);
            });
        }
        let (answer, ()) = tokio::join!(client.generate(grpc(expected)), async {
            let job = front.mock.job().await;
            assert_eq!(job.submit.data_parallel_rank, expected, "grpc {fields}");
            job.finish(FinishReason::Stop, 0);
        });
        answer.expect("served");
    }
    // The DP rank applies to all prompts of a list, and to all choices.
    let body = json!({
        "text": ["a", "b"], "data_parallel_rank": 1, "sampling_params": {"n": 2}
    });
    tokio::join!(front.ok("/generate", &body), async {
        for _ in 0..4 {
            let job = front.mock.job().await;
            assert_eq!(job.submit.data_parallel_rank, Some(1));
            job.finish(FinishReason::Stop, 0);
        }
    });
}

/// A request for a missing DP rank is not submitted.
#[tokio::test]
async fn a_dp_rank_that_is_not_there_is_refused_by_name() {
    let (two, one) = (two_dp_ranks().await, start().await);
    for (front, wrong, last) in [
        (&two, json!(2), "from 0 to 1"),
        (&two, json!(-1), "from 0 to 1"),
        (&two, json!(4_294_967_296_u64), "from 0 to 1"),
        (&one, json!(1), "from 0 to 0"),
        (&one, json!("0"), ""),
        (&one, json!(0.5), ""),
    ] {
        for (path, body) in bodies(&json!({"data_parallel_rank": wrong})) {
            let (status, text) = front.post(path, &body).await;
            let error: Value = serde_json::from_str(&text).expect("json");
            let error = &error["error"];
            assert_eq!(
                (status, &error["param"]),
                (400, &json!("data_parallel_rank")),
                "{path} {wrong}: {text}"
            );
            let message = error["message"].as_str().expect("text");
            assert!(message.contains(last), "{path} {wrong}: {message}");
        }
    }
    for (front, wrong) in [(&two, 2), (&one, 1)] {
        let status = client(front).await.generate(grpc(Some(wrong))).await;
        let status = status.expect_err("not there");
        assert_eq!(status.code(), Code::InvalidArgument);
        let param = status.metadata().get("param");
        assert_eq!(param.expect("a parameter"), "data_parallel_rank");
    }
    // Rank 0 is valid with one DP rank.
    let body = native(&json!({"data_parallel_rank": 0}));
    tokio::join!(one.ok("/generate", &body), async {
        one.mock.job().await.finish(FinishReason::Stop, 0);
    });
}

/// SGLang's field is in every answer; it is absent if there is one DP rank.
#[tokio::test]
async fn meta_info_tells_where_a_request_ran() {
    let front = two_dp_ranks().await;
    for stream in [false, true] {
        for dp_rank in [Some(1), None] {
            let body = native(&json!({"stream": stream}));
            let (answer, ()) = tokio::join!(front.post("/generate", &body), async {
                let job = front.mock.job().await;
                let at = |output| Output { dp_rank, ..output };
                job.send(at(tokens(&ids("x"))));
                job.send(at(ended(FinishReason::Stop, job.usage(1), None)));
            });
            let answers = match stream {
                true => chunks(&answer.1),
                false => vec![serde_json::from_str(&answer.1).expect("json")],
            };
            assert!(!answers.is_empty());
            for answer in answers {
                let told = answer["meta_info"].get("dp_rank");
                assert_eq!(told, dp_rank.map(Value::from).as_ref(), "{answer}");
            }
        }
    }
}

#[tokio::test]
async fn loads_tell_of_every_dp_rank() {
    let front = two_dp_ranks().await;
    let ask = async |path: &str| {
        let (status, text) = front.get(path).await;
        assert_eq!(status, 200, "{path}: {text}");
        text
    };
    let json =
        async |path: &str| -> Value { serde_json::from_str(&ask(path).await).expect("json") };
    // Five requests and eleven tokens wait; four and ten of them wait for the second DP
    // rank.
    let entry = |dp_rank, running: u32, waiting, tokens| {
        json!({
            "dp_rank": dp_rank, "num_reqs": running + waiting, "num_waiting_reqs": waiting,
            "num_tokens": tokens
        })
    };
    let expected = json!([entry(0, 1, 1, 64 + 1), entry(1, 2, 4, 10)]);
    assert_eq!(json("/get_load").await, expected);
    let loads = json("/v1/loads").await;
    assert_eq!(loads["dp_rank_count"], 2);
    assert_eq!(loads["num_accelerators"], 4);
    let of = |figure: &str| -> Vec<f64> {
        let loads = loads["loads"].as_array().expect("a list");
        loads
            .iter()
            .filter_map(|rank| rank[figure].as_f64())
            .collect()
    };
    for (figure, expected) in [
        ("dp_rank", [0.0, 1.0]),
        ("num_running_reqs", [1.0, 2.0]),
        ("max_running_requests", [4.0, 4.0]),
        ("max_total_num_tokens", [512.0, 512.0]),
        ("token_usage", [0.125, 0.0]),
        ("cache_hit_rate", [0.64, 0.0]),
        ("utilization", [0.25, 0.5]),
        ("num_waiting_reqs", [1.0, 4.0]),
        ("num_waiting_uncached_tokens", [1.0, 10.0]),
    ] {
        assert_eq!(of(figure), expected, "{figure}");
    }
    let aggregate = &loads["aggregate"];
    assert_eq!(aggregate["total_running_reqs"], 3);
    assert_eq!(aggregate["avg_utilization"], 0.375);
    let second = json("/v1/loads?dp_rank=1").await;
    assert_eq!(second["loads"], json!([loads["loads"][1]]));
    assert_eq!(
        (&second["dp_rank_count"], &second["aggregate"]),
        (&json!(2), aggregate)
    );
    let (status, text) = front.get("/v1/loads?dp_rank=2").await;
    assert_eq!(status, 400);
    assert!(text.contains("from 0 to 1"), "{text}");
    let text = ask("/v1/loads?format=prometheus").await;
    for line in [
        "sglang_num_running_reqs{dp_rank=\"0\"} 1",
        "sglang_num_running_reqs{dp_rank=\"1\"} 2",
        "sglang_memory_token_capacity{dp_rank=\"1\"} 512",
        "sglang_queues_retracted{dp_rank=\"0\"} 0",
        "sglang_queues_retracted{dp_rank=\"1\"} 2",
    ] {
        assert!(text.lines().any(|own| own == line), "{line}: {text}");
    }
    let types = text.matches("# TYPE sglang_num_running_reqs gauge").count();
    assert_eq!(types, 1);
    let metrics = ask("/metrics").await;
    for (name, value) in [("running", 2), ("waiting", 4)] {
        let name = format!("lockstep_dp_rank_num_requests_{name}");
        let line = format!("{name}{{model_name=\"demo\",dp_rank=\"1\"}} {value}");
        let mut found = metrics.lines().filter(|own| own.starts_with(&name));
        assert!(found.any(|own| own == line), "{line}: {metrics}");
    }
    assert_eq!(json("/server_info").await["dp_size"], 2);
}
