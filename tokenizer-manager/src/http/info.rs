//! What this server is: for people, for SGLang's tools, for load balancers.

use std::sync::Arc;

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::json;
use crate::{engine::Engine, error::ApiResult};

/// `GET /`.
pub(super) async fn index(State(engine): State<Arc<Engine>>) -> Response {
    let text = format!(
        "lockstep {} serves {}\n\n\
         POST /v1/chat/completions  POST /v1/completions  GET /v1/models\n\
         POST /generate  POST /tokenize  POST /detokenize\n\
         GET /health  GET /ping  GET /health_generate  GET /metrics\n\
         GET /version  GET /model_info  GET /server_info\n\
         POST or GET /flush_cache  POST /abort_request\n",
        env!("CARGO_PKG_VERSION"),
        engine.model()
    );
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

/// `GET /version`, as vLLM has it.
pub(super) async fn version() -> ApiResult<Response> {
    json(&json!({"version": env!("CARGO_PKG_VERSION")}))
}

#[derive(Serialize)]
struct ModelInfo<'a> {
    model_path: String,
    tokenizer_path: String,
    served_model_name: &'a str,
    is_generation: bool,
    architecture: Value,
    vocab_size: usize,
    max_model_len: usize,
    eos_token_ids: &'a [u32],
    dtype: Value,
    has_chat_template: bool,
    weight_version: &'static str,
}

/// `GET /model_info`, with SGLang's fields and a few more.
pub(super) async fn model_info(State(engine): State<Arc<Engine>>) -> ApiResult<Response> {
    let config = &engine.config;
    let path = config.model.path.display().to_string();
    json(&ModelInfo {
        tokenizer_path: path.clone(),
        model_path: path,
        served_model_name: engine.model(),
        is_generation: true,
        architecture: json!(config.model.architecture),
        vocab_size: config.model.vocab_size,
        max_model_len: config.server.context_length,
        eos_token_ids: &config.model.eos_token_ids,
        dtype: json!(config.dtype),
        has_chat_template: engine.text.template.is_some(),
        weight_version: "default",
    })
}

/// `GET /server_info`: the resolved configuration, which holds no secret, and
/// the scheduler's load, `null` without a scheduler.
pub(super) async fn server_info(State(engine): State<Arc<Engine>>) -> ApiResult<Response> {
    let load = engine.scheduler.load().await.ok().map(|load| {
        json!({
            "num_running_reqs": load.running_requests,
            "num_waiting_reqs": load.waiting_requests,
            "kv_tokens_used": load.kv_tokens_used,
            "kv_tokens_cached": load.kv_tokens_cached,
            "kv_tokens_total": load.kv_tokens_total,
            "leaked_pages": load.leaked_pages,
            "steps_total": load.steps_total,
        })
    });
    json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "config_hash": engine.config_hash,
        "config": &*engine.config,
        "tokenizer_manager": engine.index,
        "load": load,
    }))
}
