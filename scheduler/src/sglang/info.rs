//! Descriptions of the model and of the server, for the gateway.

use lockstep_process::RoleContext;
use lockstep_proto::pb::{
    lockstep::GetLoadResponse,
    sglang::grpc::scheduler::{GetModelInfoResponse, GetServerInfoResponse},
};
use prost_types::{Struct, Value, value::Kind};

pub(super) fn int(value: impl TryInto<i32>) -> i32 {
    value.try_into().unwrap_or(i32::MAX)
}

/// Describes the model.
pub fn model(ctx: &RoleContext) -> GetModelInfoResponse {
    let (model, server) = (&ctx.engine.model, &ctx.engine.server);
    let path = model.path.display().to_string();
    GetModelInfoResponse {
        tokenizer_path: path.clone(),
        model_path: path,
        is_generation: true,
        weight_version: ctx.config_hash.chars().take(12).collect(),
        served_model_name: server.served_model_name.clone(),
        max_context_length: int(server.context_length),
        max_req_input_len: int(server.context_length.saturating_sub(1)),
        vocab_size: int(model.vocab_size),
        model_type: model.architecture.model_type.clone(),
        eos_token_ids: model.eos_token_ids.iter().copied().map(int).collect(),
        bos_token_id: model.bos_token_id.map_or(-1, int),
        pad_token_id: -1,
        architectures: vec![model.architecture.class_name.clone()],
        ..Default::default()
    }
}

/// Describes the server's sizes, by SGLang's names.
pub fn server(ctx: &RoleContext, load: &GetLoadResponse) -> GetServerInfoResponse {
    let engine = &ctx.engine;
    let args = [
        ("tp_size", engine.parallel.tp_size),
        ("dp_size", engine.parallel.dp_size),
        ("ep_size", engine.parallel.ep_size),
        ("pp_size", 1),
        ("nnodes", engine.parallel.nnodes),
        ("context_length", engine.server.context_length),
        ("max_total_tokens", engine.kv_tokens()),
        ("max_running_requests", engine.schedule.max_running_requests),
        ("page_size", engine.kv.page_size),
    ];
    let number = |value: usize| Value {
        kind: Some(Kind::NumberValue(value as f64)),
    };
    let text = |value: &str| Value {
        kind: Some(Kind::StringValue(value.to_owned())),
    };
    let mut fields: std::collections::BTreeMap<String, Value> = args
        .into_iter()
        .map(|(name, value)| (name.to_owned(), number(value)))
        .collect();
    fields.insert(
        "served_model_name".to_owned(),
        text(&engine.server.served_model_name),
    );
    fields.insert(
        "model_path".to_owned(),
        text(&engine.model.path.display().to_string()),
    );
    GetServerInfoResponse {
        server_args: Some(Struct { fields }),
        active_requests: int(load.running_requests + load.waiting_requests),
        sglang_version: format!("lockstep-{}", env!("CARGO_PKG_VERSION")),
        server_type: "grpc".to_owned(),
        max_total_num_tokens: int(engine.kv_tokens()),
        ..Default::default()
    }
}
