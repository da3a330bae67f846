//! Calls that generate nothing.

use lockstep_proto::pb::lockstep::{
    DetokenizeRequest, DetokenizeResponse, GetModelInfoResponse, GetServerInfoResponse,
    TokenizeRequest, TokenizeResponse,
};
use lockstep_types::sampling::token_in_vocabulary;

use crate::{
    app::App,
    error::{ApiError, ApiResult},
    submission::count,
    text::most_counted,
};

pub(super) async fn tokenize(app: &App, request: TokenizeRequest) -> ApiResult<TokenizeResponse> {
    let tokenizer = app.text.tokenizer.clone();
    let special = request.add_special_tokens.unwrap_or(true);
    let bytes = request.text.len();
    let most = most_counted(&app.config.server);
    let work = move || tokenizer.encode_bounded(&request.text, special, most);
    let ids = app.text.pool.run_aside(bytes, work).await?;
    Ok(TokenizeResponse {
        ids: ids.map_err(|error| ApiError::invalid("text", error.to_string()))?,
        max_model_len: narrow(app.config.server.context_length),
    })
}

pub(super) async fn detokenize(
    app: &App,
    request: DetokenizeRequest,
) -> ApiResult<DetokenizeResponse> {
    count("ids", request.ids.len(), most_counted(&app.config.server))?;
    let vocabulary = narrow(app.config.model.vocab_size);
    for id in &request.ids {
        token_in_vocabulary("ids", *id, vocabulary)?;
    }
    let tokenizer = app.text.tokenizer.clone();
    let skip = request.skip_special_tokens.unwrap_or(true);
    let bytes = request.ids.len().saturating_mul(4);
    let work = move || tokenizer.decode(&request.ids, skip);
    let text = app.text.pool.run_aside(bytes, work).await?;
    Ok(DetokenizeResponse { text })
}

pub(super) fn model(app: &App) -> GetModelInfoResponse {
    let model = &app.config.model;
    GetModelInfoResponse {
        served_model_name: app.model().to_owned(),
        model_path: model.path.display().to_string(),
        architecture: model.architecture.model_type.clone(),
        vocab_size: narrow(model.vocab_size),
        max_model_len: narrow(app.config.server.context_length),
        eos_token_ids: model.eos_token_ids.clone(),
        dtype: name(&app.config.dtype),
    }
}

pub(super) async fn server(app: &App) -> ApiResult<GetServerInfoResponse> {
    let load = app.scheduler.load().await?;
    let config_json = serde_json::to_string(&*app.config)
        .map_err(|error| ApiError::internal(format!("The configuration has no JSON: {error}")))?;
    Ok(GetServerInfoResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        config_json,
        config_hash: app.config_hash.clone(),
        running_requests: load.running_requests,
        waiting_requests: load.waiting_requests,
        kv_tokens_used: load.kv_tokens_used,
        kv_tokens_total: load.kv_tokens_total,
    })
}

/// Returns a configuration value's name in JSON.
fn name(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().map(str::to_owned).unwrap_or_default()
}

fn narrow(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
