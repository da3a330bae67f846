//! What load balancers ask about: how busy this server is.

mod prometheus;

use std::sync::Arc;

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    response::{IntoResponse, Response},
};
use lockstep_proto::pb::lockstep::{GetLoadResponse, SpeculationLoad};
use serde::Deserialize;
use serde_json::{Value, json};

use super::json;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

/// Sections that may be asked for, as SGLang names them; `core` always comes.
/// There is no LoRA here, and what is not there has no section.
const SECTIONS: [&str; 7] = ["core", "memory", "spec", "lora", "disagg", "queues", "all"];

/// `GET /load`, as vLLM has it: requests in progress, at all tokenizer-managers.
pub(super) async fn in_flight(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let fronts = app.all_figures(false).await;
    let load: u64 = fronts.iter().map(|front| front.in_progress).sum();
    json(&json!({"server_load": load}))
}

/// `GET /get_load`, as SGLang's router reads it: one entry per data-parallel
/// rank, of which there is one.
pub(super) async fn get_load(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let load = app.scheduler.load().await?;
    json(&json!([{
        "dp_rank": 0,
        "num_reqs": load.running_requests + load.waiting_requests,
        "num_waiting_reqs": load.waiting_requests,
        "num_tokens": load.kv_tokens_used + load.waiting_tokens,
    }]))
}

/// What may be asked of `/v1/loads`.
pub(super) const PARAMETERS: [(&str, &str); 3] = [
    (
        "include",
        "Sections, comma separated: core, memory, spec, lora, disagg, queues, all; default all.",
    ),
    (
        "dp_rank",
        "The data-parallel rank, of which there is one: 0.",
    ),
    ("format", "json, the default, or prometheus."),
];

#[derive(Deserialize)]
pub(super) struct LoadsQuery {
    include: Option<String>,
    dp_rank: Option<String>,
    format: Option<String>,
}

/// `GET /v1/loads`, as SGLang has them and its gateway reads them.
pub(super) async fn loads(
    State(app): State<Arc<App>>,
    query: Result<Query<LoadsQuery>, QueryRejection>,
) -> ApiResult<Response> {
    let Query(query) = query.map_err(|error| ApiError::bad_request(error.body_text()))?;
    let sections = sections(query.include.as_deref())?;
    if let Some(rank) = query.dp_rank.as_deref().filter(|rank| *rank != "0") {
        let message = format!("Unknown 'dp_rank' {rank:?}: there is one data-parallel rank, 0.");
        return Err(ApiError::invalid("dp_rank", message));
    }
    let format = query.format.as_deref().unwrap_or("json");
    if !["json", "prometheus"].contains(&format) {
        let message = format!("Unknown 'format' {format:?}: expected json or prometheus.");
        return Err(ApiError::invalid("format", message));
    }
    let load = app.scheduler.load().await?;
    let one = rank(&app, &load, &sections);
    if format == "prometheus" {
        return Ok(prometheus::render(&one).into_response());
    }
    json(&json!({
        "timestamp": jiff::Timestamp::now().to_string(),
        "version": concat!("lockstep-", env!("CARGO_PKG_VERSION")),
        // SGLang has none either where it does not know the device.
        "accelerator": null,
        "num_accelerators": app.config.parallel.tp_size,
        "dp_rank_count": 1,
        "aggregate": {
            "total_running_reqs": one["num_running_reqs"],
            "total_waiting_reqs": one["num_waiting_reqs"],
            "total_reqs": one["num_total_reqs"],
            "avg_token_usage": one["token_usage"],
            "avg_throughput": one["gen_throughput"],
            "avg_utilization": one["utilization"],
        },
        "loads": [one],
    }))
}

/// The sections asked for.
fn sections(include: Option<&str>) -> ApiResult<Vec<&str>> {
    let sections: Vec<&str> = include.unwrap_or("all").split(',').map(str::trim).collect();
    let unknown = sections.iter().find(|name| !SECTIONS.contains(name));
    unknown.map_or(Ok(()), |name| {
        let known = SECTIONS.join(", ");
        let message = format!("Unknown section {name:?} in 'include': expected {known}.");
        Err(ApiError::invalid("include", message))
    })?;
    Ok(sections)
}

/// The load of the one data-parallel rank.
fn rank(app: &App, load: &GetLoadResponse, sections: &[&str]) -> Value {
    let wants = |name: &str| sections.contains(&name) || sections.contains(&"all");
    let most = app.config.schedule.max_running_requests;
    let (running, waiting) = (load.running_requests, load.waiting_requests);
    let share = |part: f64, whole: f64| part / whole.max(1.0);
    let mut one = json!({
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_total_reqs": running + waiting,
        "num_waiting_uncached_tokens": load.waiting_tokens,
        "num_used_tokens": load.kv_tokens_used,
        "num_total_tokens": load.kv_tokens_used + load.waiting_tokens,
        "max_total_num_tokens": load.kv_tokens_total,
        "max_running_requests": most,
        "token_usage": share(load.kv_tokens_used as f64, load.kv_tokens_total as f64),
        "gen_throughput": load.generated_per_s,
        "cache_hit_rate": share(load.cached_tokens_total as f64, load.prompt_tokens_total as f64),
        "utilization": share(f64::from(running), most as f64),
    });
    if wants("memory") {
        one["memory"] = json!({
            "weight_gb": gb(load.weight_bytes),
            "kv_cache_gb": gb(load.kv_bytes),
            "graph_gb": 0.0,
            "token_capacity": load.kv_tokens_total,
        });
    }
    if let Some(counted) = load.speculation.as_ref().filter(|_| wants("spec")) {
        let accepted: u64 = counted.accepted.iter().sum();
        one["speculative"] = json!({
            "accept_length": accept_length(counted).unwrap_or(0.0),
            "accept_rate": share(accepted as f64, counted.draft_tokens as f64),
        });
    }
    if wants("disagg") {
        one["disaggregation"] = json!({"mode": "null"});
    }
    if wants("queues") {
        one["queues"] = json!({
            "waiting": waiting,
            "grammar": 0,
            "paused": 0,
            "retracted": load.retracted_requests,
        });
    }
    one
}

/// Tokens per verification of a request that had not ended: accepted drafts, and
/// the target's own; `None` before the first.
pub(super) fn accept_length(load: &SpeculationLoad) -> Option<f64> {
    let accepted: u64 = load.accepted.iter().sum();
    let used = load.proposed.first().copied().filter(|used| *used > 0)?;
    Some(1.0 + accepted as f64 / used as f64)
}

/// Bytes as SGLang tells them: "GB" of 2^30.
fn gb(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
