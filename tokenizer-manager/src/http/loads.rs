//! Routes by which load balancers ask how busy this server is.

mod prometheus;

use std::{ops::Range, sync::Arc};

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    response::{IntoResponse, Response},
};
use lockstep_proto::pb::lockstep::{DpRankLoad, GetLoadResponse, SpeculationLoad};
use lockstep_types::share_of_dp_rank;
use serde::Deserialize;
use serde_json::{Value, json};

use super::json;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

/// Sections that a client may ask for, by SGLang's names; `core` always comes. An
/// absent part, such as adapters, has no section in the answer.
const SECTIONS: [&str; 7] = ["core", "memory", "spec", "lora", "disagg", "queues", "all"];

/// `GET /load`, as in vLLM: the number of requests in progress at all
/// tokenizer-managers.
pub(super) async fn in_flight(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let fronts = app.all_figures(false).await;
    let load: u64 = fronts.iter().map(|front| front.in_progress).sum();
    json(&json!({"server_load": load}))
}

/// `GET /get_load`, as SGLang's router reads it: one entry per DP rank. Requests that
/// wait for any DP rank are counted in equal parts.
pub(super) async fn get_load(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let load = app.scheduler.load().await?;
    let entries = (0..).zip(&load.dp_ranks).map(|(at, own)| {
        let waiting = load.waiting_at(at);
        json!({
            "dp_rank": at,
            "num_reqs": u64::from(own.running_requests) + waiting.requests,
            "num_waiting_reqs": waiting.requests,
            "num_tokens": own.kv_tokens_used + waiting.tokens,
        })
    });
    json(&entries.collect::<Vec<_>>())
}

/// Names and descriptions of the query parameters of `/v1/loads`.
pub(super) const PARAMETERS: [(&str, &str); 3] = [
    (
        "include",
        "Sections, comma separated: core, memory, spec, lora, disagg, queues, all; default all.",
    ),
    ("dp_rank", "The number of a DP rank, from 0; default all."),
    ("format", "json, the default, or prometheus."),
];

#[derive(Deserialize)]
pub(super) struct LoadsQuery {
    include: Option<String>,
    dp_rank: Option<String>,
    format: Option<String>,
}

/// `GET /v1/loads`, as in SGLang and as its gateway reads it.
pub(super) async fn loads(
    State(app): State<Arc<App>>,
    query: Result<Query<LoadsQuery>, QueryRejection>,
) -> ApiResult<Response> {
    let Query(query) = query.map_err(|error| ApiError::bad_request(error.body_text()))?;
    let sections = sections(query.include.as_deref())?;
    let ranks = app.config.parallel.dp_size;
    let wanted = wanted(query.dp_rank.as_deref(), ranks)?;
    let format = query.format.as_deref().unwrap_or("json");
    if !["json", "prometheus"].contains(&format) {
        let message = format!("Unknown 'format' {format:?}: expected json or prometheus.");
        return Err(ApiError::invalid("format", message));
    }
    let load = app.scheduler.load().await?;
    let all = (0..).zip(&load.dp_ranks);
    let all: Vec<_> = all
        .map(|(at, own)| rank(&app, &load, (at, own), &sections))
        .collect();
    let mean = |figure: &str| {
        let figures = all.iter().filter_map(|rank| rank[figure].as_f64());
        figures.sum::<f64>() / all.len().max(1) as f64
    };
    let (running, waiting) = (load.running_requests, load.waiting_requests);
    let aggregate = json!({
        "total_running_reqs": running,
        "total_waiting_reqs": waiting,
        "total_reqs": running + waiting,
        "avg_token_usage": mean("token_usage"),
        "avg_throughput": mean("gen_throughput"),
        "avg_utilization": mean("utilization"),
    });
    let count = all.len();
    let loads: Vec<_> = all
        .into_iter()
        .skip(wanted.start)
        .take(wanted.len())
        .collect();
    if format == "prometheus" {
        return Ok(prometheus::render(&loads).into_response());
    }
    json(&json!({
        "timestamp": jiff::Timestamp::now().to_string(),
        "version": concat!("lockstep-", env!("CARGO_PKG_VERSION")),
        // SGLang sends null too if it does not know the device.
        "accelerator": null,
        "num_accelerators": app.config.parallel.tp_size,
        "dp_rank_count": count,
        "aggregate": aggregate,
        "loads": loads,
    }))
}

/// Returns the range of DP ranks that the client asks for.
fn wanted(asked: Option<&str>, ranks: usize) -> ApiResult<Range<usize>> {
    let Some(asked) = asked else {
        return Ok(0..ranks);
    };
    let at = asked.parse().ok().filter(|at: &usize| *at < ranks);
    at.map(|at| at..at + 1).ok_or_else(|| {
        let last = ranks.saturating_sub(1);
        let message =
            format!("Unknown 'dp_rank' {asked:?}: DP ranks are numbered from 0 to {last}.");
        ApiError::invalid("dp_rank", message)
    })
}

/// Returns the sections that the client asks for.
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

/// Returns the load of DP rank `at`, with its share of the figures that belong to all
/// DP ranks.
fn rank(
    app: &App,
    load: &GetLoadResponse,
    (at, own): (usize, &DpRankLoad),
    sections: &[&str],
) -> Value {
    let wants = |name: &str| sections.contains(&name) || sections.contains(&"all");
    let ranks = load.dp_ranks.len();
    let part = |all: u64| share_of_dp_rank(all, at, ranks);
    let most = app.config.schedule.of_dp_rank(ranks).max_running_requests;
    let (running, waiting) = (u64::from(own.running_requests), load.waiting_at(at));
    let share = |part: f64, whole: f64| part / whole.max(1.0);
    let mut one = json!({
        "dp_rank": at,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting.requests,
        "num_total_reqs": running + waiting.requests,
        "num_waiting_uncached_tokens": waiting.tokens,
        "num_used_tokens": own.kv_tokens_used,
        "num_total_tokens": own.kv_tokens_used + waiting.tokens,
        "max_total_num_tokens": own.kv_tokens_total,
        "max_running_requests": most,
        "token_usage": share(own.kv_tokens_used as f64, own.kv_tokens_total as f64),
        "gen_throughput": own.generated_per_s,
        "cache_hit_rate": share(own.cached_tokens_total as f64, own.prompt_tokens_total as f64),
        "utilization": share(running as f64, most as f64),
    });
    if wants("memory") {
        one["memory"] = json!({
            "weight_gb": gb(part(load.weight_bytes)),
            "kv_cache_gb": gb(part(load.kv_bytes)),
            "graph_gb": 0.0,
            "token_capacity": own.kv_tokens_total,
        });
    }
    if let Some(counted) = load.speculation.as_ref().filter(|_| wants("spec")) {
        let accepted: u64 = counted.accepted.iter().sum();
        one["speculative"] = json!({
            "accept_length": accept_length(counted).unwrap_or(0.0),
            "accept_rate": share(accepted as f64, counted.draft_tokens as f64),
        });
    }
    let places = app.config.adapters.places;
    if places > 0 && wants("lora") {
        // Every DP rank has all adapters.
        one["lora"] = json!({
            "slots_used": load.adapters_in_memory,
            "slots_total": places,
            "utilization": share(load.adapters_in_memory.into(), places.into()),
        });
    }
    if wants("disagg") {
        one["disaggregation"] = json!({"mode": "null"});
    }
    if wants("queues") {
        one["queues"] = json!({
            "waiting": waiting.requests,
            "grammar": 0,
            "paused": 0,
            "retracted": waiting.retracted,
        });
    }
    one
}

/// Returns the mean number of tokens per verification: the accepted drafts, and one
/// token of the target. Verifications of requests that had ended are not counted.
/// `None` before the first verification.
pub(super) fn accept_length(load: &SpeculationLoad) -> Option<f64> {
    let accepted: u64 = load.accepted.iter().sum();
    let used = load.proposed.first().copied().filter(|used| *used > 0)?;
    Some(1.0 + accepted as f64 / used as f64)
}

/// Converts bytes to SGLang's "GB" of 2^30 bytes.
fn gb(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
