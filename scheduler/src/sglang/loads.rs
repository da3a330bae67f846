//! The load, for the gateway.

use lockstep_process::RoleContext;
use lockstep_proto::pb::{
    lockstep::{DpRankLoad, GetLoadResponse, SpeculationLoad},
    sglang::grpc::scheduler::{
        AggregateMetrics, DisaggregationMetrics, GetLoadsRequest, GetLoadsResponse, LoRaMetrics,
        MemoryMetrics, QueueMetrics, SchedulerLoad, SpeculativeMetrics,
    },
};
use tonic::Status;

use super::info::int;

/// Converts bytes to SGLang's "GB" of 2^30.
fn gb(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn speculative(load: &SpeculationLoad) -> SpeculativeMetrics {
    let accepted: u64 = load.accepted.iter().sum();
    let used = load.proposed.first().copied().unwrap_or(0);
    let ratio = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    SpeculativeMetrics {
        // Every verification brings one token of the target too. Verifications of requests that
        // had ended bring nothing and are not in `proposed`.
        accept_length: ratio(accepted + used, used),
        accept_rate: ratio(accepted, load.draft_tokens),
    }
}

/// Returns the load of all DP ranks, or of the one that is asked for.
///
/// # Errors
/// INVALID_ARGUMENT for a DP rank that does not exist.
pub fn loads(
    ctx: &RoleContext,
    load: &GetLoadResponse,
    request: &GetLoadsRequest,
) -> Result<GetLoadsResponse, Status> {
    let ranks = load.dp_ranks.len();
    let wanted = match request.dp_rank {
        None => 0..ranks,
        Some(asked) => {
            let at = usize::try_from(asked).ok().filter(|at| *at < ranks);
            let at = at.ok_or_else(|| {
                let last = ranks.saturating_sub(1);
                Status::invalid_argument(format!(
                    "dp_rank: there is no DP rank {asked}; they are numbered from 0 to {last}"
                ))
            })?;
            at..at + 1
        }
    };
    let of_all = (0..).zip(&load.dp_ranks).map(|(at, own)| {
        let rank = Rank { ctx, load, at };
        rank.load(own, &request.include)
    });
    let of_all: Vec<_> = of_all.collect();
    let mean = |figure: fn(&SchedulerLoad) -> f64| {
        of_all.iter().map(figure).sum::<f64>() / ranks.max(1) as f64
    };
    let (running, waiting) = (int(load.running_requests), int(load.waiting_requests));
    Ok(GetLoadsResponse {
        timestamp: jiff::Timestamp::now().to_string(),
        version: format!("lockstep-{}", env!("CARGO_PKG_VERSION")),
        dp_rank_count: int(ranks),
        aggregate: Some(AggregateMetrics {
            total_running_reqs: running,
            total_waiting_reqs: waiting,
            total_reqs: running + waiting,
            avg_token_usage: mean(|rank| rank.token_usage),
            avg_throughput: mean(|rank| rank.gen_throughput),
            avg_utilization: mean(|rank| rank.utilization),
        }),
        loads: of_all
            .into_iter()
            .skip(wanted.start)
            .take(wanted.len())
            .collect(),
    })
}

/// A DP rank, with the load that it is reported from.
struct Rank<'a> {
    ctx: &'a RoleContext,
    load: &'a GetLoadResponse,
    at: usize,
}

impl Rank<'_> {
    fn load(&self, own: &DpRankLoad, include: &[String]) -> SchedulerLoad {
        let Self { ctx, load, at } = *self;
        let ranks = load.dp_ranks.len();
        let wants = |section: &str| include.iter().any(|name| name == section || name == "all");
        let share = |all: u64| lockstep_types::share_of_dp_rank(all, at, ranks);
        let running = int(own.running_requests);
        let waiting = load.waiting_at(at);
        let most = ctx.engine.schedule.of_dp_rank(ranks).max_running_requests;
        let places = ctx.engine.adapters.places;
        let ratio = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        SchedulerLoad {
            dp_rank: int(at),
            num_running_reqs: running,
            num_waiting_reqs: int(waiting.requests),
            num_total_reqs: running + int(waiting.requests),
            num_used_tokens: int(own.kv_tokens_used),
            num_waiting_uncached_tokens: int(waiting.tokens),
            max_total_num_tokens: int(own.kv_tokens_total),
            token_usage: ratio(own.kv_tokens_used, own.kv_tokens_total),
            gen_throughput: own.generated_per_s,
            cache_hit_rate: ratio(own.cached_tokens_total, own.prompt_tokens_total),
            utilization: f64::from(running) / most.max(1) as f64,
            max_running_requests: int(most),
            memory: wants("memory").then(|| MemoryMetrics {
                weight_gb: gb(share(load.weight_bytes)),
                kv_cache_gb: gb(share(load.kv_bytes)),
                token_capacity: int(own.kv_tokens_total),
                ..Default::default()
            }),
            speculative: load
                .speculation
                .as_ref()
                .filter(|_| wants("spec"))
                .map(speculative),
            // Every DP rank has all adapters.
            lora: (places > 0 && wants("lora")).then(|| LoRaMetrics {
                slots_used: int(load.adapters_in_memory),
                slots_total: places.into(),
                utilization: f64::from(load.adapters_in_memory) / f64::from(places.max(1)),
            }),
            disaggregation: wants("disagg").then(|| DisaggregationMetrics {
                mode: "null".to_owned(),
                ..Default::default()
            }),
            queues: wants("queues").then(|| QueueMetrics {
                waiting: int(waiting.requests),
                retracted: int(waiting.retracted),
                ..Default::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_count_the_targets_own_token() {
        let counted = speculative(&SpeculationLoad {
            verify_steps: 5,
            draft_tokens: 12,
            proposed: vec![4, 4, 4],
            accepted: vec![3, 2, 1],
            ..SpeculationLoad::default()
        });
        assert_eq!((counted.accept_length, counted.accept_rate), (2.5, 0.5));
        let nothing = speculative(&SpeculationLoad::default());
        assert_eq!((nothing.accept_length, nothing.accept_rate), (0.0, 0.0));
    }
}
