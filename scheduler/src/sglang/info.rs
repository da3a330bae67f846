//! What the gateway wants to know of the model and of the load.

use lockstep_process::RoleContext;
use lockstep_proto::pb::{
    lockstep::{GetLoadResponse, SpeculationLoad},
    sglang::grpc::scheduler::{
        AggregateMetrics, DisaggregationMetrics, GetLoadsRequest, GetLoadsResponse,
        GetModelInfoResponse, GetServerInfoResponse, MemoryMetrics, QueueMetrics, SchedulerLoad,
        SpeculativeMetrics,
    },
};
use prost_types::{Struct, Value, value::Kind};
use tonic::Status;

/// Bytes as SGLang tells them: "GB" of 2^30.
fn gb(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn int(value: impl TryInto<i32>) -> i32 {
    value.try_into().unwrap_or(i32::MAX)
}

/// The model.
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
        model_type: model.architecture.model_type().to_owned(),
        eos_token_ids: model.eos_token_ids.iter().copied().map(int).collect(),
        bos_token_id: model.bos_token_id.map_or(-1, int),
        pad_token_id: -1,
        architectures: vec![model.architecture.class_name().to_owned()],
        ..Default::default()
    }
}

/// The server's sizes, as SGLang names them.
pub fn server(ctx: &RoleContext, load: &GetLoadResponse) -> GetServerInfoResponse {
    let engine = &ctx.engine;
    let args = [
        ("tp_size", engine.parallel.tp_size),
        ("dp_size", 1),
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

fn speculative(load: &SpeculationLoad) -> SpeculativeMetrics {
    let accepted: u64 = load.accepted.iter().sum();
    let used = load.proposed.first().copied().unwrap_or(0);
    let ratio = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    SpeculativeMetrics {
        // Every verification brings the target's own token too. Those of
        // requests that had ended brought nothing, and proposed nothing.
        accept_length: ratio(accepted + used, used),
        accept_rate: ratio(accepted, load.draft_tokens),
    }
}

/// The load; there is one data-parallel rank, number 0.
///
/// # Errors
/// INVALID_ARGUMENT for another rank.
pub fn loads(
    ctx: &RoleContext,
    load: &GetLoadResponse,
    request: &GetLoadsRequest,
) -> Result<GetLoadsResponse, Status> {
    if request.dp_rank.is_some_and(|rank| rank != 0) {
        return Err(Status::invalid_argument(
            "dp_rank: there is one data-parallel rank, 0",
        ));
    }
    let wants = |section: &str| {
        request
            .include
            .iter()
            .any(|name| name == section || name == "all")
    };
    let total = load.kv_tokens_total.max(1) as f64;
    let usage = load.kv_tokens_used as f64 / total;
    let running = int(load.running_requests);
    let waiting = int(load.waiting_requests);
    let one = SchedulerLoad {
        dp_rank: 0,
        num_running_reqs: running,
        num_waiting_reqs: waiting,
        num_total_reqs: running + waiting,
        num_used_tokens: int(load.kv_tokens_used),
        num_waiting_uncached_tokens: int(load.waiting_tokens),
        max_total_num_tokens: int(load.kv_tokens_total),
        token_usage: usage,
        gen_throughput: load.generated_per_s,
        cache_hit_rate: load.cached_tokens_total as f64 / (load.prompt_tokens_total.max(1)) as f64,
        utilization: f64::from(running) / ctx.engine.schedule.max_running_requests.max(1) as f64,
        max_running_requests: int(ctx.engine.schedule.max_running_requests),
        memory: wants("memory").then(|| MemoryMetrics {
            weight_gb: gb(load.weight_bytes),
            kv_cache_gb: gb(load.kv_bytes),
            token_capacity: int(load.kv_tokens_total),
            ..Default::default()
        }),
        speculative: load
            .speculation
            .as_ref()
            .filter(|_| wants("spec"))
            .map(speculative),
        disaggregation: wants("disagg").then(|| DisaggregationMetrics {
            mode: "null".to_owned(),
            ..Default::default()
        }),
        queues: wants("queues").then(|| QueueMetrics {
            waiting,
            retracted: int(load.retracted_requests),
            ..Default::default()
        }),
        ..Default::default()
    };
    Ok(GetLoadsResponse {
        timestamp: jiff::Timestamp::now().to_string(),
        version: format!("lockstep-{}", env!("CARGO_PKG_VERSION")),
        dp_rank_count: 1,
        aggregate: Some(AggregateMetrics {
            total_running_reqs: running,
            total_waiting_reqs: waiting,
            total_reqs: running + waiting,
            avg_token_usage: one.token_usage,
            avg_throughput: one.gen_throughput,
            avg_utilization: one.utilization,
        }),
        loads: vec![one],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_count_the_targets_own_token() {
        let counted = speculative(&SpeculationLoad {
            depths: None,
            verify_steps: 5,
            draft_tokens: 12,
            proposed: vec![4, 4, 4],
            accepted: vec![3, 2, 1],
        });
        assert_eq!((counted.accept_length, counted.accept_rate), (2.5, 0.5));
        let nothing = speculative(&SpeculationLoad::default());
        assert_eq!((nothing.accept_length, nothing.accept_rate), (0.0, 0.0));
    }
}
