//! What load balancers ask about: how busy this server is.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use lockstep_proto::pb::lockstep::GetLoadResponse;
use serde_json::json;

use super::json;
use crate::{
    app::{App, now},
    error::ApiResult,
};

/// `GET /load`, as vLLM has it: requests in progress at this tokenizer-manager.
pub(super) async fn in_flight(State(app): State<Arc<App>>) -> ApiResult<Response> {
    json(&json!({"server_load": app.gate.inside()}))
}

/// `GET /get_load`, as SGLang's router reads it: one entry per data-parallel
/// rank, of which there is one.
pub(super) async fn get_load(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let load = app.scheduler.load().await?;
    json(&json!([{
        "dp_rank": 0,
        "num_reqs": load.running_requests + load.waiting_requests,
        "num_waiting_reqs": load.waiting_requests,
        "num_tokens": load.kv_tokens_used,
    }]))
}

/// `GET /v1/loads`, as SGLang has them and its gateway reads them.
pub(super) async fn loads(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let load = app.scheduler.load().await?;
    let most = app.config.schedule.max_running_requests;
    let (running, waiting) = (load.running_requests, load.waiting_requests);
    let share = f64::from(running) / most.max(1) as f64;
    let used = kv_share(&load);
    json(&json!({
        "timestamp": now(),
        "version": concat!("lockstep-", env!("CARGO_PKG_VERSION")),
        "dp_rank_count": 1,
        "loads": [{
            "dp_rank": 0,
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
            "num_total_reqs": running + waiting,
            "num_used_tokens": load.kv_tokens_used,
            "max_total_num_tokens": load.kv_tokens_total,
            "token_usage": used,
            "cache_hit_rate":
                load.cached_tokens_total as f64 / load.prompt_tokens_total.max(1) as f64,
            "utilization": share,
            "max_running_requests": most,
        }],
        "aggregate": {
            "total_running_reqs": running,
            "total_waiting_reqs": waiting,
            "total_reqs": running + waiting,
            "avg_token_usage": used,
            "avg_utilization": share,
        },
    }))
}

fn kv_share(load: &GetLoadResponse) -> f64 {
    load.kv_tokens_used as f64 / load.kv_tokens_total.max(1) as f64
}
