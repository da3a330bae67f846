//! Closed and open loops of requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::{
    Args, Loop, Outcome,
    client::{Client, Timing},
    prompts::Prompts,
};

/// Sends a few requests, to fill the server's connections and caches.
pub async fn warm_up(client: &Client, prompts: &Prompts, args: &Args) -> anyhow::Result<()> {
    for index in 0..args.warm_up {
        client
            .complete(&prompts.get(0, index), args.output_len.min(8))
            .await?;
    }
    Ok(())
}

/// Runs one measurement.
pub async fn run(
    client: &Client,
    prompts: &Prompts,
    args: &Args,
    shape: Loop,
    round: u64,
) -> Outcome {
    let start = Instant::now();
    let mut outcome = match shape {
        Loop::Closed(at_once) => closed(client, prompts, args, at_once, round).await,
        Loop::Open(rate) => open(client, prompts, args, rate, round).await,
    };
    outcome.wall = start.elapsed();
    outcome
}

async fn closed(
    client: &Client,
    prompts: &Prompts,
    args: &Args,
    at_once: usize,
    round: u64,
) -> Outcome {
    let next = Arc::new(AtomicUsize::new(0));
    let one = |_| {
        let next = next.clone();
        async move {
            let mut outcome = Outcome::default();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= args.requests {
                    return outcome;
                }
                let prompt = prompts.get(round, index);
                outcome.add(client.complete(&prompt, args.output_len).await);
            }
        }
    };
    let users: FuturesUnordered<_> = (0..at_once).map(one).collect();
    users
        .fold(Outcome::default(), |mut sum, outcome| async {
            sum.merge(outcome);
            sum
        })
        .await
}

async fn open(client: &Client, prompts: &Prompts, args: &Args, rate: f64, round: u64) -> Outcome {
    let mut random = StdRng::seed_from_u64(args.seed ^ 0x0A11_71ED);
    let mut at = Duration::ZERO;
    let start = tokio::time::Instant::now();
    let mut arrivals = FuturesUnordered::new();
    for index in 0..args.requests {
        // Exponential gaps: arrivals are independent of each other.
        let gap = -(1.0 - random.random::<f64>()).ln() / rate;
        at += Duration::try_from_secs_f64(gap).unwrap_or(Duration::ZERO);
        let due = start + at;
        arrivals.push(async move {
            tokio::time::sleep_until(due).await;
            client
                .complete(&prompts.get(round, index), args.output_len)
                .await
        });
    }
    let mut outcome = Outcome::default();
    while let Some(result) = arrivals.next().await {
        outcome.add(result);
    }
    outcome
}

impl Outcome {
    fn add(&mut self, result: anyhow::Result<Timing>) {
        let timing = match result {
            Ok(timing) => timing,
            Err(error) => {
                self.failed += 1;
                self.first_error.get_or_insert_with(|| format!("{error:#}"));
                return;
            }
        };
        self.done += 1;
        self.output_tokens += timing.output_tokens;
        self.input_tokens += timing.input_tokens;
        self.cached_tokens += timing.cached_tokens;
        self.ttft.record(timing.ttft);
        self.e2e.record(timing.e2e);
        if timing.output_tokens > 1 {
            let after_first = timing.e2e.saturating_sub(timing.ttft);
            let tokens = u32::try_from(timing.output_tokens - 1).unwrap_or(u32::MAX);
            self.tpot.record(after_first / tokens);
        }
        timing.gaps.iter().for_each(|gap| self.itl.record(*gap));
    }

    fn merge(&mut self, other: Self) {
        self.done += other.done;
        self.failed += other.failed;
        self.output_tokens += other.output_tokens;
        self.input_tokens += other.input_tokens;
        self.cached_tokens += other.cached_tokens;
        self.first_error = self.first_error.take().or(other.first_error);
        self.ttft.merge(&other.ttft);
        self.itl.merge(&other.itl);
        self.tpot.merge(&other.tpot);
        self.e2e.merge(&other.e2e);
    }
}
