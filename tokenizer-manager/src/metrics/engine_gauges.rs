//! The scheduler's counters in Prometheus' text format. They carry no
//! tokenizer-manager's index, since each tokenizer-manager reports the same series.

use std::fmt::Write;

use lockstep_proto::pb::lockstep::{DepthLoad, GetLoadResponse, SpeculationLoad, StepTimes};

use super::{adapters, constraint_work::constrained, dp_ranks};
use series::{COUNTERS, GAUGES};

mod series;

/// Renders the scheduler's load.
pub fn render_load(load: &GetLoadResponse) -> String {
    let mut out = String::with_capacity(4096);
    for (kind, all) in [("gauge", GAUGES), ("counter", COUNTERS)] {
        for (name, help, value) in all {
            series(&mut out, name, kind, help, value(load));
        }
    }
    let ratio = load.kv_tokens_used as f64 / load.kv_tokens_total.max(1) as f64;
    let _ = write!(
        out,
        "# HELP lockstep_kv_cache_usage_perc Share of the KV slots that requests hold, 1 = all.\n\
         # TYPE lockstep_kv_cache_usage_perc gauge\nlockstep_kv_cache_usage_perc {ratio}\n"
    );
    dp_ranks::render(&mut out, &load.dp_ranks);
    adapters::render(&mut out, &load.adapters);
    for (name, help, counted) in [
        (
            "step_seconds",
            "Forward steps on rank 0, from plan taken to tokens known.",
            &load.step_times,
        ),
        (
            "request_queue_time_seconds",
            "From a request's arrival at the scheduler to its place in the batch.",
            &load.queue_times,
        ),
        (
            "request_prefill_time_seconds",
            "From a request's place in the batch to its first token.",
            &load.prefill_times,
        ),
    ] {
        if let Some(counted) = counted {
            times(&mut out, name, help, counted);
        }
    }
    ranks(&mut out, &load.rank_us);
    constrained(&mut out, &load.constraints.unwrap_or_default());
    if let Some(speculation) = &load.speculation {
        speculated(&mut out, speculation);
        if let Some(depths) = &speculation.depths {
            drafted_deep(&mut out, depths);
        }
    }
    out
}

fn series(out: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "# HELP lockstep_{name} {help}\n# TYPE lockstep_{name} {kind}\nlockstep_{name} {value}\n"
    );
}

/// Renders the time of each rank's steps, by its own clock. The times show a slow rank,
/// for which the other ranks wait.
fn ranks(out: &mut String, us: &[u64]) {
    let name = "lockstep_rank_step_seconds_total";
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "# HELP {name} Time of this rank's forward steps, from plan taken to tokens known.\n\
         # TYPE {name} counter\n"
    );
    for (rank, us) in us.iter().enumerate() {
        let _ = writeln!(out, "{name}{{rank=\"{rank}\"}} {}", *us as f64 / 1e6);
    }
}

/// Renders the counts of speculation, in total and by position; positions count from 1.
fn speculated(out: &mut String, load: &SpeculationLoad) {
    let accepted = load.accepted.iter().sum();
    for (name, help, value) in [
        (
            "spec_verify_steps_total",
            "Verifications of a request's drafted tokens, also where the request had ended meanwhile.",
            load.verify_steps,
        ),
        (
            "spec_draft_tokens_total",
            "Drafted tokens that were verified, also where the request had ended meanwhile.",
            load.draft_tokens,
        ),
        (
            "spec_accepted_tokens_total",
            "Drafted tokens that were accepted.",
            accepted,
        ),
        (
            "spec_wasted_tokens_total",
            "Drafted tokens that were verified for nothing: not accepted, or their request had ended meanwhile.",
            load.draft_tokens.saturating_sub(accepted),
        ),
        (
            "spec_forced_tokens_total",
            "Drafted tokens that a constraint forced, so that no drafter proposed them.",
            load.forced_tokens,
        ),
        (
            "spec_accepted_forced_tokens_total",
            "Forced tokens that were accepted.",
            load.accepted_forced_tokens,
        ),
    ] {
        series(out, name, "counter", help, value);
    }
    for (name, help, counts) in [
        (
            "lockstep_spec_proposed_total",
            "Verifications with a drafted token at this position, of requests that went on.",
            &load.proposed,
        ),
        (
            "lockstep_spec_accepted_total",
            "Verifications that accepted a drafted token at this position.",
            &load.accepted,
        ),
    ] {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} counter\n");
        for (at, count) in counts.iter().enumerate() {
            let _ = writeln!(out, "{name}{{position=\"{}\"}} {count}", at + 1);
        }
    }
}

/// Renders the depths of drafting and their times; depths that never ran are left out.
fn drafted_deep(out: &mut String, load: &DepthLoad) {
    let depth = load.depth.into();
    series(
        out,
        "spec_depth",
        "gauge",
        "Draft steps of the newest step that decodes.",
        depth,
    );
    series(
        out,
        "spec_depth_switches_total",
        "counter",
        "Steps with other draft steps than the one before.",
        load.switches,
    );
    let by_depth = |out: &mut String, name, help, counts: &[String]| {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} counter\n");
        for (depth, count) in counts.iter().enumerate() {
            if load.steps.get(depth).is_some_and(|steps| *steps > 0) {
                let _ = writeln!(out, "{name}{{depth=\"{depth}\"}} {count}");
            }
        }
    };
    let steps: Vec<_> = load.steps.iter().map(u64::to_string).collect();
    by_depth(
        out,
        "lockstep_spec_depth_steps_total",
        "Steps that decode, by their draft steps.",
        &steps,
    );
    let seconds = |us: &u64| format!("{}", *us as f64 / 1e6);
    let times: Vec<_> = load.us.iter().map(seconds).collect();
    by_depth(
        out,
        "lockstep_spec_depth_seconds_total",
        "Time of steps that decode, by their draft steps.",
        &times,
    );
    for (name, help, us) in [
        (
            "lockstep_spec_predicted_seconds_total",
            "Time that the policy expected of steps that decode alone.",
            load.predicted_us,
        ),
        (
            "lockstep_spec_measured_seconds_total",
            "Time of the steps of `lockstep_spec_predicted_seconds_total`.",
            load.measured_us,
        ),
    ] {
        let _ = write!(
            out,
            "# HELP {name} {help}\n# TYPE {name} counter\n{name} {}\n",
            seconds(&us)
        );
    }
}

fn times(out: &mut String, name: &str, help: &str, times: &StepTimes) {
    let name = format!("lockstep_{name}");
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} histogram\n");
    let mut total = 0;
    for (at, count) in times.counts.iter().enumerate() {
        total += count;
        let bound = times
            .bounds_us
            .get(at)
            .map_or_else(|| "+Inf".to_owned(), |us| format!("{}", *us as f64 / 1e6));
        let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {total}");
    }
    let sum = times.sum_us as f64 / 1e6;
    let _ = write!(out, "{name}_sum {sum}\n{name}_count {total}\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speculation_is_told_in_all_and_by_position() {
        let text = render_load(&GetLoadResponse {
            speculation: Some(SpeculationLoad {
                verify_steps: 4,
                draft_tokens: 13,
                proposed: vec![4, 4, 3],
                accepted: vec![3, 1, 1],
                depths: Some(DepthLoad {
                    depth: 3,
                    switches: 2,
                    steps: vec![0, 4, 0, 9],
                    us: vec![0, 1_500_000, 0, 20],
                    predicted_steps: 2,
                    predicted_us: 500_000,
                    measured_us: 250_000,
                    range: None,
                }),
                forced_tokens: 4,
                accepted_forced_tokens: 3,
            }),
            ..GetLoadResponse::default()
        });
        for line in [
            "lockstep_spec_verify_steps_total 4",
            "lockstep_spec_draft_tokens_total 13",
            "lockstep_spec_accepted_tokens_total 5",
            "lockstep_spec_wasted_tokens_total 8",
            "lockstep_spec_forced_tokens_total 4",
            "lockstep_spec_accepted_forced_tokens_total 3",
            "lockstep_spec_proposed_total{position=\"3\"} 3",
            "lockstep_spec_accepted_total{position=\"1\"} 3",
            "lockstep_spec_depth 3",
            "lockstep_spec_depth_switches_total 2",
            "lockstep_spec_depth_steps_total{depth=\"1\"} 4",
            "lockstep_spec_depth_seconds_total{depth=\"1\"} 1.5",
            "lockstep_spec_predicted_seconds_total 0.5",
            "lockstep_spec_measured_seconds_total 0.25",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("depth=\"2\""), "it never ran");
        assert!(!render_load(&GetLoadResponse::default()).contains("spec_"));
    }

    #[test]
    fn step_times_are_cumulative() {
        let load = GetLoadResponse {
            steps_total: 6,
            step_times: Some(StepTimes {
                bounds_us: vec![1000, 2000],
                counts: vec![1, 2, 3],
                sum_us: 12_000,
            }),
            kv_tokens_used: 16,
            kv_tokens_total: 64,
            rank_us: vec![11_000, 12_000],
            queue_times: Some(StepTimes {
                bounds_us: vec![500_000],
                counts: vec![4, 0],
                sum_us: 1,
            }),
            ..GetLoadResponse::default()
        };
        let text = render_load(&load);
        for line in [
            "lockstep_steps_total 6",
            "lockstep_step_seconds_bucket{le=\"0.001\"} 1",
            "lockstep_step_seconds_bucket{le=\"0.002\"} 3",
            "lockstep_step_seconds_bucket{le=\"+Inf\"} 6",
            "lockstep_step_seconds_sum 0.012",
            "lockstep_step_seconds_count 6",
            "lockstep_rank_step_seconds_total{rank=\"1\"} 0.012",
            "lockstep_kv_cache_usage_perc 0.25",
            "lockstep_request_queue_time_seconds_bucket{le=\"0.5\"} 4",
            "lockstep_request_queue_time_seconds_count 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
