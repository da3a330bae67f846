//! Figures of each DP rank in Prometheus' text format.

use std::fmt::Write;

use lockstep_proto::pb::lockstep::DpRankLoad;

/// A series: name, kind, description, accessor of the value.
type Series = (
    &'static str,
    &'static str,
    &'static str,
    fn(&DpRankLoad) -> u64,
);

/// Series of one DP rank; the DP rank's number is a label.
const SERIES: &[Series] = &[
    (
        "dp_rank_num_requests_running",
        "gauge",
        "Requests in the batch of this DP rank.",
        |rank| rank.running_requests.into(),
    ),
    (
        "dp_rank_num_requests_waiting",
        "gauge",
        "Requests in the queue for this DP rank alone: they name it, or were retracted in it.",
        |rank| rank.waiting_requests.into(),
    ),
    (
        "dp_rank_kv_tokens_used",
        "gauge",
        "KV slots of this DP rank held by requests.",
        |rank| rank.kv_tokens_used,
    ),
    (
        "dp_rank_kv_tokens_cached",
        "gauge",
        "KV slots of this DP rank's evictable prefix cache.",
        |rank| rank.kv_tokens_cached,
    ),
    (
        "dp_rank_kv_tokens_total",
        "gauge",
        "KV slots of this DP rank.",
        |rank| rank.kv_tokens_total,
    ),
    (
        "dp_rank_prompt_tokens_total",
        "counter",
        "Prompt tokens of requests that this DP rank began.",
        |rank| rank.prompt_tokens_total,
    ),
    (
        "dp_rank_cached_tokens_total",
        "counter",
        "Prompt tokens served from this DP rank's prefix cache.",
        |rank| rank.cached_tokens_total,
    ),
    (
        "dp_rank_generated_tokens_total",
        "counter",
        "Tokens generated in this DP rank.",
        |rank| rank.generated_tokens_total,
    ),
    (
        "dp_rank_retractions_total",
        "counter",
        "Requests taken out of this DP rank's batch for lack of KV slots.",
        |rank| rank.retractions_total,
    ),
];

/// Renders each series with the DP rank's number as label.
pub(super) fn render(out: &mut String, ranks: &[DpRankLoad]) {
    if ranks.is_empty() {
        return;
    }
    for (name, kind, help, value) in SERIES {
        let name = format!("lockstep_{name}");
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (at, rank) in ranks.iter().enumerate() {
            let _ = writeln!(out, "{name}{{dp_rank=\"{at}\"}} {}", value(rank));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_dp_rank_has_its_number() {
        let ranks = [2, 3].map(|running_requests| DpRankLoad {
            running_requests,
            cached_tokens_total: 10 * u64::from(running_requests),
            ..DpRankLoad::default()
        });
        let mut text = String::new();
        render(&mut text, &ranks);
        for line in [
            "lockstep_dp_rank_num_requests_running{dp_rank=\"0\"} 2",
            "lockstep_dp_rank_num_requests_running{dp_rank=\"1\"} 3",
            "lockstep_dp_rank_cached_tokens_total{dp_rank=\"1\"} 30",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let types = text.matches("# TYPE lockstep_dp_rank_num_requests_running ");
        assert_eq!(types.count(), 1, "{text}");
    }
}
