//! Measures the exchanges of ranks in a decode step: the exchanges of a model's steps one
//! after the other, with nothing computed between them.

mod ranks;
mod step;

use std::{path::PathBuf, str::FromStr};

use clap::ValueEnum;
use lockstep_types::ModelConfig;
use serde_json::json;

use crate::{DemoModel, report::Report};
use ranks::Took;
use step::{KINDS, Step};

/// What ranks exchange in a step, and how long it takes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model whose steps' exchanges run, a folder or a name of the hub; only its
    /// config.json is read [default: the demo model].
    #[arg(long, value_name = "MODEL")]
    model_path: Option<PathBuf>,
    /// Ranks, and the DP ranks that they form if attention is data-parallel.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "RANKS[/DP]",
        default_value = "2,2/2,4,4/4"
    )]
    ranks: Vec<Ranks>,
    /// Requests of a step, of all DP ranks together; one measurement each.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "COUNT",
        default_value = "4,32"
    )]
    requests: Vec<usize>,
    /// Draft tokens of each request; 0: nothing is drafted.
    #[arg(long, value_name = "TOKENS", default_value_t = 3)]
    drafts: usize,
    /// How ranks reach each other.
    #[arg(long, value_delimiter = ',', default_value = "shared-memory,tcp")]
    transport: Vec<Transport>,
    /// Steps per measurement.
    #[arg(long, default_value_t = 2000)]
    steps: usize,
}

/// What data travel by; ranks are threads of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// As on one node.
    SharedMemory,
    /// As between nodes, over loopback.
    Tcp,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shared memory",
            Self::Tcp => "tcp",
        }
    }
}

/// A number of ranks, and the number of DP ranks that they form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ranks {
    tp_size: usize,
    dp_size: usize,
}

impl FromStr for Ranks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (tp_size, dp_size) = text.split_once('/').unwrap_or((text, "1"));
        let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number > 0);
        match (number(tp_size), number(dp_size)) {
            (Some(tp_size), Some(dp_size)) if tp_size > 1 && tp_size.is_multiple_of(dp_size) => {
                Ok(Self { tp_size, dp_size })
            }
            _ => Err(
                "give ranks, at least 2, and after a slash the DP ranks that they form, \
                      which divide them: 4/2"
                    .to_owned(),
            ),
        }
    }
}

/// Runs the benchmark.
pub fn run(args: &Args, demo: DemoModel) -> anyhow::Result<Report> {
    require!(args.steps > 0, "--steps is at least 1");
    let folder = tempfile::tempdir()?;
    let path = crate::model_or_demo(args.model_path.clone(), demo, folder.path())?;
    let model = lockstep_model_folder::load(&path)?;
    let name = path.file_name().unwrap_or(path.as_os_str());
    let mut report = Report::new(
        "Exchanges of a decode step, nothing computed between them",
        &[
            "transport",
            "ranks",
            "DP ranks",
            "requests",
            "exchange",
            "per step",
            "bytes per step",
            "p50 us",
            "p99 us",
        ],
    );
    report.note("model", name.to_string_lossy());
    report.note("layers", model.layers.len() as u64);
    report.note("draft tokens per request", args.drafts as u64);
    report.note("steps", args.steps as u64);
    report.note(
        "bytes",
        "what a rank brings; p50 and p99 are of one exchange, and of all of a step",
    );
    for &transport in &args.transport {
        for &ranks in &args.ranks {
            for &requests in &args.requests {
                measure(args, &model, transport, ranks, requests, &mut report)?;
            }
        }
    }
    Ok(report)
}

fn measure(
    args: &Args,
    model: &ModelConfig,
    transport: Transport,
    ranks: Ranks,
    requests: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    require!(
        requests >= ranks.dp_size,
        "--requests {requests} leaves some of {} DP ranks without work",
        ranks.dp_size
    );
    let sharing = ranks.tp_size / ranks.dp_size;
    let undivided = model.undivided_heads(sharing).into_iter();
    let undivided: Vec<_> = undivided
        .map(|(heads, name)| format!("{heads} {name}"))
        .collect();
    require!(
        undivided.is_empty(),
        "--ranks {}/{}: the model's {} can't be divided among {sharing} ranks. Numbers that work: {:?}",
        ranks.tp_size,
        ranks.dp_size,
        undivided.join(" and "),
        model.head_splits()
    );
    let steps: Vec<Step> = (0..ranks.tp_size)
        .map(|rank| Step::new(model, rank, ranks, requests, args.drafts))
        .collect::<Result<_, _>>()?;
    let counts = KINDS.map(|kind| (steps[0].count(kind), steps[0].bytes(kind)));
    let Took { each, all } = ranks::run(steps, transport, ranks, args.steps)?;
    let mut row =
        |exchange: &str, (count, bytes): (usize, usize), took: &crate::stats::Durations| {
            report.row(vec![
                json!(transport.name()),
                json!(ranks.tp_size),
                json!(ranks.dp_size),
                json!(requests),
                json!(exchange),
                json!(count),
                json!(bytes),
                took.us(50.0),
                took.us(99.0),
            ]);
        };
    let found = KINDS.iter().zip(counts).zip(&each);
    for ((kind, of), took) in found.filter(|((_, (count, _)), _)| *count > 0) {
        row(kind.name(), of, took);
    }
    let add = |(count, bytes), (more, longer)| (count + more, bytes + longer);
    row("all", counts.into_iter().fold((0, 0), add), &all);
    Ok(())
}

#[cfg(test)]
mod tests;
