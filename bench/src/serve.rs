//! Load on an OpenAI-compatible server: streamed completions of random token ids or given
//! prompts. The load is a closed loop (a number of requests at once) or an open one (a
//! number of requests a second).

mod client;
mod load;
mod prompts;

use std::{path::PathBuf, time::Duration};

use serde_json::{Map, Value, json};

use crate::{report::Report, stats::Durations};

/// Load on a running OpenAI-compatible server.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Address of the server, with or without `/v1`.
    #[arg(long, default_value = "http://127.0.0.1:8000", value_parser = url)]
    pub base_url: String,
    /// Model name to ask for; the server's first one if absent.
    #[arg(long)]
    pub model: Option<String>,
    /// Bearer token.
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Requests in flight at once (closed loop), one measurement each.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,8,32",
        conflicts_with = "rate",
        value_parser = crate::positive()
    )]
    pub concurrency: Vec<usize>,
    /// Requests per second with random gaps (open loop), one measurement each.
    #[arg(long, value_delimiter = ',', value_parser = rate)]
    pub rate: Vec<f64>,
    /// Requests per measurement.
    #[arg(long, default_value_t = 200, value_parser = crate::positive())]
    pub requests: usize,
    /// Prompt tokens.
    #[arg(long, default_value_t = 128)]
    pub input_len: usize,
    /// Output tokens; the end token is ignored.
    #[arg(long, default_value_t = 128)]
    pub output_len: usize,
    /// Token ids are drawn below this.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(1..))]
    pub vocab: u32,
    /// All prompts begin with so many equal tokens.
    #[arg(long, default_value_t = 0)]
    pub shared_prefix: usize,
    /// Prompts of this file, in turn, instead of random ones: on each line a
    /// JSON string or an array of token ids.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["input_len", "vocab", "shared_prefix"]
    )]
    pub prompts: Option<PathBuf>,
    /// JSON object whose fields every request has too.
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub extra_body: Option<Map<String, Value>>,
    /// Seed of prompts and gaps.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Requests sent first and not counted.
    #[arg(long, default_value_t = 4)]
    pub warm_up: usize,
}

/// Load of one measurement.
#[derive(Debug, Clone, Copy)]
enum Loop {
    /// This number of requests at once.
    Closed(usize),
    /// This number of requests a second.
    Open(f64),
}

/// Sums over all requests of one measurement.
#[derive(Default)]
struct Outcome {
    wall: Duration,
    done: usize,
    failed: usize,
    output_tokens: usize,
    input_tokens: usize,
    cached_tokens: usize,
    first_error: Option<String>,
    ttft: Durations,
    itl: Durations,
    tpot: Durations,
    e2e: Durations,
}

/// Parses the address of a server.
fn url(text: &str) -> Result<String, String> {
    let known = reqwest::Url::parse(text)
        .is_ok_and(|url| url.has_host() && ["http", "https"].contains(&url.scheme()));
    let address = text.to_owned();
    known
        .then_some(address)
        .ok_or_else(|| "must begin with http:// or https:// and name a host".to_owned())
}

/// Parses requests per second.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("must be a number above 0".into()),
    }
}

/// Parses a JSON object.
fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("must be a JSON object: {error}"))
}

/// Runs the benchmark.
pub fn run(args: Args) -> anyhow::Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure(args))
}

async fn measure(args: Args) -> anyhow::Result<Report> {
    let prompts = prompts::Prompts::of(&args)?;
    let client = client::Client::connect(&args).await?;
    let mut report = Report::new(
        format!("Serving load on {}", args.base_url),
        &[
            "load",
            "done",
            "failed",
            "req/s",
            "out tok/s",
            "TTFT p50 ms",
            "TTFT p99 ms",
            "ITL p50 ms",
            "ITL p99 ms",
            "TPOT p50 ms",
            "TPOT p99 ms",
            "E2E p50 ms",
            "E2E p99 ms",
            "cached",
        ],
    );
    report.note("model", client.model());
    let input = match &args.prompts {
        Some(path) => path.display().to_string(),
        None => args.input_len.to_string(),
    };
    report.note("tokens in / out", format!("{input} / {}", args.output_len));
    let loops: Vec<Loop> = if args.rate.is_empty() {
        args.concurrency.iter().copied().map(Loop::Closed).collect()
    } else {
        args.rate.iter().copied().map(Loop::Open).collect()
    };
    load::warm_up(&client, &prompts, &args).await?;
    for (round, shape) in (1..).zip(loops) {
        let outcome = load::run(&client, &prompts, &args, shape, round).await;
        if let Some(error) = &outcome.first_error {
            report.note("first error", error.as_str());
        }
        report.row(row(shape, &outcome));
    }
    Ok(report)
}

fn row(shape: Loop, outcome: &Outcome) -> Vec<serde_json::Value> {
    let seconds = outcome.wall.as_secs_f64().max(1e-9);
    let cached = outcome.cached_tokens as f64 / outcome.input_tokens.max(1) as f64;
    vec![
        match shape {
            Loop::Closed(at_once) => json!(format!("{at_once} at once")),
            Loop::Open(rate) => json!(format!("{rate}/s")),
        },
        json!(outcome.done),
        json!(outcome.failed),
        json!(outcome.done as f64 / seconds),
        json!(outcome.output_tokens as f64 / seconds),
        outcome.ttft.ms(50.0),
        outcome.ttft.ms(99.0),
        outcome.itl.ms(50.0),
        outcome.itl.ms(99.0),
        outcome.tpot.ms(50.0),
        outcome.tpot.ms(99.0),
        outcome.e2e.ms(50.0),
        outcome.e2e.ms(99.0),
        json!(cached),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn rates_without_meaning_are_refused() {
        assert_eq!(super::rate("2.5"), Ok(2.5));
        for wrong in ["0", "-1", "inf", "NaN", "x"] {
            assert!(super::rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn added_fields_are_an_object() {
        assert!(super::object(r#"{"a": 1}"#).is_ok());
        for wrong in ["", "3", "[1]", "{"] {
            assert!(super::object(wrong).is_err(), "{wrong}");
        }
    }
}
