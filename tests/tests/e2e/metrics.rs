//! The page of metrics lists the series that a server really reports.

use std::fmt::Write;

use expect_test::expect_file;
use lockstep_proto::pb::lockstep::{GetModelInfoRequest, inference_client::InferenceClient};
use lockstep_tests::{body::chat, turns};
use serde_json::json;

use crate::shared;

const HEAD: &str = "\
# Metrics

`/metrics` on the HTTP port answers in Prometheus' text format.
Generated from a server's answer: after a change, `UPDATE_EXPECT=1 cargo test -p lockstep-tests metrics` writes this page anew.

With `--tokenizer-managers N` it answers for all of them, whichever takes the scrape, each with its number in the label `tokenizer_manager`; one that says nothing within a second is left out and counted by `lockstep_tokenizer_managers_silent`. Each asks the others once for all scrapes that come meanwhile, and again at the earliest a second after they have answered, so that figures of others may be a second old; an attempt that failed is not kept, and a scheduler that hangs costs each scrape 5 s at most, however many come. Figures without that label are the server's. All carry `model_name`, but for `process_*`, which tell of tokenizer-managers' processes.
Names are those of vLLM and SGLang, where they have the figure, after `lockstep_`.
Series whose name has `dp_rank_` have the label `dp_rank`: what belongs to one DP rank, of which there is one, 0, unless attention is data-parallel; the others are of all.
Series whose name has `constraint` tell of structured output: those with `front_` of compiling before the queue, the others of the workers, whose time for masks is a part of their steps'.
Series whose name has `adapter_` have the label `adapter`, the name of an adapter that is loaded; they go with it.
Series whose name has `spec_` are there where the server speculates; those by `position` count draft positions from 1, those by `depth` draft steps from 0.
With `--sglang-metrics` there are also SGLang's figures by its names, for its dashboards and recipes of autoscalers: `sglang:num_running_reqs`, `sglang:num_queue_reqs`, `sglang:token_usage`, `sglang:cache_hit_rate`, `sglang:gen_throughput`, `sglang:time_to_first_token_seconds`, `sglang:inter_token_latency_seconds`, `sglang:e2e_request_latency_seconds`, `sglang:queue_time_seconds`, `sglang:prompt_tokens_total`, `sglang:generation_tokens_total`, `sglang:cached_tokens_total`, `sglang:num_requests_total`, `sglang:num_aborted_requests_total`, `sglang:num_retracted_requests_total`, `sglang:num_retracted_reqs`, `sglang:num_used_tokens`, `sglang:max_total_num_tokens`, and where the server speculates `sglang:spec_accept_length`, `sglang:spec_accept_rate`, `sglang:spec_verify_calls_total`.
Series with labels appear with the first thing they count. Requests, their tokens and their times are those of clients alone; steps are all, with those that the server runs for itself, at start and for `/health`.

| Name | Kind | Meaning |
|---|---|---|
";

#[tokio::test]
async fn every_series_stands_on_the_page_of_metrics() {
    let (_turn, server) = (turns::shared().await, shared().await);
    // One request of every kind, so that all series exist.
    let body = chat("Count from 3 to 12.", &json!({"max_tokens": 9}));
    server.ok("/v1/chat/completions", &body).await;
    let constrained = chat(
        "Yes?",
        &json!({"max_tokens": 9, "guided_choice": ["yes", "no"]}),
    );
    server.ok("/v1/chat/completions", &constrained).await;
    let address = format!("http://127.0.0.1:{}", server.grpc_port);
    let mut grpc = InferenceClient::connect(address).await.expect("gRPC");
    let info = grpc.get_model_info(GetModelInfoRequest {}).await;
    info.expect("an answer");

    let text = server.get("/metrics").await.text;
    let comment = |word: &str| {
        let start = format!("# {word} ");
        let lines = text
            .lines()
            .filter_map(move |line| line.strip_prefix(&start));
        lines
            .filter_map(|rest| rest.split_once(' '))
            .collect::<Vec<_>>()
    };
    let helps = comment("HELP");
    let mut kinds = comment("TYPE");
    kinds.sort_unstable();
    let mut page = HEAD.to_owned();
    for (name, kind) in kinds {
        let help = helps.iter().find(|(of, _)| *of == name);
        let (_, help) = help.unwrap_or_else(|| panic!("{name} says nothing of itself"));
        let _ = writeln!(page, "| `{name}` | {kind} | {help} |");
    }
    expect_file![concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md")].assert_eq(&page);
}
