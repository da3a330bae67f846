//! Routes that describe this server: for people, for SGLang's tools, for load
//! balancers.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{console, json, loads::accept_length, openapi::Route};
use crate::{app::App, error::ApiResult};

/// Returns the page for people, which lists the routes.
pub(super) fn index<'a>(app: &App, routes: impl Iterator<Item = &'a Route>) -> Response {
    let mut text = format!(
        "lockstep {} serves {}\n\n",
        env!("CARGO_PKG_VERSION"),
        app.model()
    );
    for Route {
        method,
        path,
        summary,
    } in routes
    {
        let path = path.replace("{*", "{");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:6} {path:26} {summary}", method.to_uppercase());
    }
    if app.config.server.web.console {
        let _ = writeln!(
            text,
            "GET    {:26} This server in a browser.",
            console::PATH
        );
    }
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

/// Roles of special tokens.
const ROLES: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

/// `GET /tokenizer_info`, as in vLLM and as lm_eval reads it. Returns the parts of
/// `tokenizer_config.json` that clients need to write prompts themselves.
pub(super) async fn tokenizer_info(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let mut info = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": app.config.server.context_length,
        "chat_template": app.text.template_source,
    });
    for role in ROLES {
        info[role] = json!(app.text.tokenizer.special_tokens().get(role));
    }
    json(&info)
}

/// `GET /props`, as in llama.cpp.
pub(super) async fn props(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let special = app.text.tokenizer.special_tokens();
    json(&json!({
        "default_generation_settings": {"n_ctx": app.config.server.context_length},
        "total_slots": app.config.schedule.max_running_requests,
        "model_alias": app.model(),
        "model_path": app.weights().model_path,
        "chat_template": app.text.template_source,
        "bos_token": special.get("bos_token"),
        "eos_token": special.get("eos_token"),
        "modalities": {"vision": false, "audio": false},
        "build_info": concat!("lockstep-", env!("CARGO_PKG_VERSION")),
    }))
}

/// `GET /version`, as in vLLM.
pub(super) async fn version() -> ApiResult<Response> {
    json(&json!({"version": env!("CARGO_PKG_VERSION")}))
}

#[derive(Serialize)]
struct ModelInfo<'a> {
    model_path: &'a str,
    tokenizer_path: String,
    served_model_name: &'a str,
    is_generation: bool,
    architecture: Value,
    model_type: &'a str,
    architectures: [&'a str; 1],
    vocab_size: usize,
    max_model_len: usize,
    eos_token_ids: &'a [u32],
    dtype: Value,
    quantization: Value,
    /// Form of weights that are codes in the checkpoint, in words.
    checkpoint: Option<String>,
    speculative: Option<Speculation<'a>>,
    has_chat_template: bool,
    weight_version: &'a str,
}

/// Speculation settings, under the names of the options.
#[derive(Serialize)]
struct Speculation<'a> {
    algorithm: &'a str,
    draft_model_path: Option<&'a str>,
    num_steps: usize,
    eagle_topk: usize,
    num_draft_tokens: usize,
    verification: &'static str,
}

/// `GET /model_info`, with SGLang's fields and a few more.
pub(super) async fn model_info(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let config = &app.config;
    let weights = app.weights();
    let speculation = &config.speculation;
    json(&ModelInfo {
        tokenizer_path: config.model.path.display().to_string(),
        model_path: &weights.model_path,
        served_model_name: app.model(),
        is_generation: true,
        architecture: json!(config.model.architecture.model_type),
        model_type: &config.model.architecture.model_type,
        architectures: [&config.model.architecture.class_name],
        vocab_size: config.model.vocab_size,
        max_model_len: config.server.context_length,
        eos_token_ids: &config.model.eos_token_ids,
        dtype: json!(config.dtype),
        quantization: json!(config.model.quantization),
        checkpoint: config.model.checkpoint.describe(),
        speculative: speculation
            .algorithm
            .as_deref()
            .map(|algorithm| Speculation {
                algorithm,
                draft_model_path: weights.draft_path.as_deref(),
                num_steps: speculation.num_steps,
                eagle_topk: speculation.topk,
                num_draft_tokens: speculation.num_draft_tokens,
                verification: speculation.verification.name(),
            }),
        has_chat_template: app.text.template.is_some(),
        weight_version: &weights.version,
    })
}

/// `GET /server_info`: the resolved configuration, which holds no secret, and the
/// scheduler's load. The load is `null` without a scheduler.
pub(super) async fn server_info(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let load = app.scheduler.load().await.ok();
    let speculation = load.as_ref().and_then(|load| load.speculation.as_ref());
    let depth = speculation.and_then(|load| load.depths.as_ref());
    let depth = depth.map(|depths| depths.depth as usize);
    // SGLang's tools look for these figures here.
    let internal_states = json!([{
        "speculative_num_steps": depth.unwrap_or(app.config.speculation.num_steps),
        "avg_spec_accept_length": speculation.and_then(accept_length),
    }]);
    let load = load.map(|load| {
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
    let weights = app.weights();
    let config = &app.config;
    json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        // SGLang's gateway looks for the path here.
        "model_path": weights.model_path,
        "served_model_name": app.model(),
        "tp_size": config.parallel.tp_size,
        "dp_size": config.parallel.dp_size,
        "ep_size": config.parallel.ep_size,
        "max_total_tokens": config.kv_tokens(),
        "max_running_requests": config.schedule.max_running_requests,
        "weights": {
            "model_path": weights.model_path,
            "draft_model_path": weights.draft_path,
            "version": weights.version,
        },
        "config_hash": app.config_hash,
        "config": &**config,
        "tokenizer_manager": app.index,
        "load": load,
        "internal_states": internal_states,
    }))
}
