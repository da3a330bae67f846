//! The planner's part of the resolved configuration.

use lockstep_planner::PlannerConfig;
use lockstep_types::{EngineConfig, SchedulePolicy};

/// What the planner needs to know of the engine. `kv_events`: changes of the
/// prefix cache are recorded for subscribers.
pub fn planner_config(config: &EngineConfig, kv_events: bool) -> PlannerConfig {
    let schedule = &config.schedule;
    PlannerConfig {
        max_running_requests: to_u32(schedule.max_running_requests),
        max_queued_requests: to_u32(schedule.max_queued_requests),
        max_queued_tokens: schedule.max_queued_tokens as u64,
        max_prefill_tokens: to_u32(schedule.max_prefill_tokens),
        chunked_prefill_size: schedule.chunked_prefill_size.map(to_u32),
        page_size: to_u32(config.kv.page_size),
        num_pages: to_u32(config.kv.num_pages),
        context_length: to_u32(config.server.context_length),
        overlap: schedule.overlap,
        radix_cache: config.kv.radix_cache,
        schedule_policy: match schedule.policy {
            SchedulePolicy::Fcfs => lockstep_planner::SchedulePolicy::Fcfs,
            SchedulePolicy::Lpm => lockstep_planner::SchedulePolicy::Lpm,
        },
        priority_scheduling: schedule.priorities,
        request_timeout_ms: config.timeouts.request_s.map(|s| s * 1000),
        queue_timeout_ms: config.timeouts.queue_s.map(|s| s * 1000),
        reserve: config.speculation.reserve(),
        draft_kv: config.speculation.draft_kv,
        kv_events,
    }
}

/// Sizes are checked to fit when the configuration is resolved.
fn to_u32(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
