//! Figures under SGLang's names, so that its dashboards and recipes of autoscalers for
//! it work unchanged.

use std::fmt::Write as _;

use lockstep_proto::pb::lockstep::GetLoadResponse;

/// Families with the same meaning: this project's name, and SGLang's name.
const SAME: &[(&str, &str)] = &[
    ("lockstep_num_requests_running", "num_running_reqs"),
    ("lockstep_num_requests_waiting", "num_queue_reqs"),
    ("lockstep_kv_cache_usage_perc", "token_usage"),
    ("lockstep_kv_tokens_used", "num_used_tokens"),
    ("lockstep_kv_tokens_total", "max_total_num_tokens"),
    ("lockstep_prompt_tokens_total", "prompt_tokens_total"),
    ("lockstep_generated_tokens_total", "generation_tokens_total"),
    ("lockstep_cached_tokens_total", "cached_tokens_total"),
    ("lockstep_requests_total", "num_requests_total"),
    (
        "lockstep_requests_aborted_total",
        "num_aborted_requests_total",
    ),
    ("lockstep_retractions_total", "num_retracted_requests_total"),
    (
        "lockstep_time_to_first_token_seconds",
        "time_to_first_token_seconds",
    ),
    (
        "lockstep_inter_token_latency_seconds",
        "inter_token_latency_seconds",
    ),
    (
        "lockstep_request_latency_seconds",
        "e2e_request_latency_seconds",
    ),
    ("lockstep_request_queue_time_seconds", "queue_time_seconds"),
    (
        "lockstep_spec_verify_steps_total",
        "spec_verify_calls_total",
    ),
];

/// Renders SGLang's families. Most are renamed families of `text`, which is in
/// Prometheus' format with each family under its comments. The rest comes from the
/// scheduler's `load`.
pub fn render_sglang(text: &str, load: Option<&GetLoadResponse>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut family: Option<&(&str, &str)> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let name = rest.split(' ').nth(1).unwrap_or_default();
            family = SAME.iter().find(|(ours, _)| *ours == name);
        }
        if let Some((ours, theirs)) = family {
            out.push_str(&line.replacen(ours, &format!("sglang:{theirs}"), 1));
            out.push('\n');
        }
    }
    if let Some(load) = load {
        figures(&mut out, load);
    }
    out
}

fn figures(out: &mut String, load: &GetLoadResponse) {
    let speculation = load.speculation.as_ref().map(|counted| {
        let accepted = counted.accepted.iter().sum::<u64>() as f64;
        let verified = counted.verify_steps.max(1) as f64;
        let drafted = counted.draft_tokens.max(1) as f64;
        (1.0 + accepted / verified, accepted / drafted)
    });
    for (name, help, value) in [
        (
            "gen_throughput",
            "Tokens generated per second, over the last second or more.",
            Some(load.generated_per_s),
        ),
        (
            "cache_hit_rate",
            "Share of the last prompts' tokens that the prefix cache had.",
            Some(load.cache_hit_rate),
        ),
        (
            "num_retracted_reqs",
            "Requests that had begun and wait again.",
            Some(load.retracted_requests.into()),
        ),
        (
            "spec_accept_length",
            "Tokens of a verification, its own included, since the start.",
            speculation.map(|(length, _)| length),
        ),
        (
            "spec_accept_rate",
            "Share of drafted tokens that were accepted, since the start.",
            speculation.map(|(_, rate)| rate),
        ),
    ] {
        let Some(value) = value else { continue };
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "# HELP sglang:{name} {help}\n# TYPE sglang:{name} gauge\nsglang:{name} {value}\n"
        );
    }
}

#[cfg(test)]
mod tests {
    use lockstep_proto::pb::lockstep::SpeculationLoad;

    use super::*;

    #[test]
    fn figures_stand_under_sglangs_names() {
        let text = "# HELP lockstep_num_requests_waiting In the queue.\n\
                    # TYPE lockstep_num_requests_waiting gauge\n\
                    lockstep_num_requests_waiting 3\n\
                    # HELP lockstep_scheduler_up Whether.\n\
                    # TYPE lockstep_scheduler_up gauge\n\
                    lockstep_scheduler_up 1\n\
                    # TYPE lockstep_time_to_first_token_seconds histogram\n\
                    lockstep_time_to_first_token_seconds_bucket{le=\"1\"} 2\n\
                    lockstep_time_to_first_token_seconds_sum 4\n";
        let expected = "# HELP sglang:num_queue_reqs In the queue.\n\
                        # TYPE sglang:num_queue_reqs gauge\n\
                        sglang:num_queue_reqs 3\n\
                        # TYPE sglang:time_to_first_token_seconds histogram\n\
                        sglang:time_to_first_token_seconds_bucket{le=\"1\"} 2\n\
                        sglang:time_to_first_token_seconds_sum 4\n";
        assert_eq!(render_sglang(text, None), expected);
    }

    #[test]
    fn what_no_series_of_ours_says_comes_from_the_load() {
        let load = GetLoadResponse {
            generated_per_s: 12.5,
            cache_hit_rate: 0.75,
            speculation: Some(SpeculationLoad {
                verify_steps: 4,
                draft_tokens: 12,
                accepted: vec![4, 2],
                ..SpeculationLoad::default()
            }),
            ..GetLoadResponse::default()
        };
        let text = render_sglang("", Some(&load));
        for line in [
            "sglang:gen_throughput 12.5",
            "sglang:cache_hit_rate 0.75",
            "sglang:spec_accept_length 2.5",
            "sglang:spec_accept_rate 0.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
