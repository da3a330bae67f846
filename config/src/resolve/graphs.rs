//! Passes that a GPU records.

use std::collections::BTreeSet;

use lockstep_types::{
    CollectiveBackend, ConfigError, DeviceKind, ParallelConfig, ScheduleConfig, SpeculationConfig,
};

use super::{device::Device, parallel::Ranks};
use crate::args::{GraphArgs, ServeArgs};

/// Default number of tokens of the largest recorded pass. In larger passes launches matter less
/// and padding matters more. No GPU was measured for this number.
const MOST_TOKENS: usize = 256;
const DISABLED: &str = "--disable-cuda-graph";

/// Numbers of tokens of the recorded passes, ascending; empty if nothing is recorded.
pub(super) fn resolve(
    args: &ServeArgs,
    device: &Device,
    ranks: &Ranks,
    schedule: &ScheduleConfig,
    speculation: &SpeculationConfig,
) -> Result<Vec<usize>, ConfigError> {
    let (args, device, parallel) = (&args.graphs, device.config.kind, &ranks.parallel);
    for option in given(args) {
        check(args, &option, device, parallel)?;
    }
    let disabled = args.disable_cuda_graph || device != DeviceKind::Cuda;
    if disabled || exchanged(parallel).is_some() {
        return Ok(Vec::new());
    }
    let most = args.cuda_graph_max_bs.unwrap_or(MOST_TOKENS);
    // A pass has as many rows of each DP rank.
    let most = most.min(schedule.of_dp_rank(parallel.dp_size).max_running_requests);
    let batches: Vec<usize> = match args.cuda_graph_bs.is_empty() {
        true => batches(most),
        false => args.cuda_graph_bs.clone(),
    };
    let row = speculation.max_speculative_num_draft_tokens.max(1);
    let named = !given(args).is_empty();
    let tokens: BTreeSet<usize> = batches
        .iter()
        .flat_map(|batch| [*batch, batch.saturating_mul(row)])
        .filter(|tokens| named || *tokens <= MOST_TOKENS)
        .collect();
    Ok(tokens.into_iter().collect())
}

/// Numbers of requests up to `most`: finer than powers of two, since padding is computed.
fn batches(most: usize) -> Vec<usize> {
    let smaller = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96].into_iter();
    let all = smaller.chain((128..).step_by(32));
    all.take_while(|batch| *batch < most)
        .chain([most])
        .collect()
}

/// Each given option, with true if it asks for recorded passes.
fn given(args: &GraphArgs) -> Vec<(String, bool)> {
    let most = args.cuda_graph_max_bs;
    let most = most.map(|most| (format!("--cuda-graph-max-bs {most}"), true));
    let list: Vec<_> = args.cuda_graph_bs.iter().map(usize::to_string).collect();
    let list = (!list.is_empty()).then(|| (format!("--cuda-graph-bs {}", list.join(",")), true));
    let disabled = args.disable_cuda_graph;
    let disabled = disabled.then(|| (DISABLED.to_owned(), false));
    [list, most, disabled].into_iter().flatten().collect()
}

/// Refuses an option that would have no effect.
fn check(
    args: &GraphArgs,
    (option, records): &(String, bool),
    device: DeviceKind,
    parallel: &ParallelConfig,
) -> Result<(), ConfigError> {
    if device != DeviceKind::Cuda {
        return Err(ConfigError::conflict(
            option.clone(),
            format!("--device {}", device.name()),
            "only a GPU records graphs",
            "Leave it out, or give --device cuda",
        ));
    }
    if *records && args.disable_cuda_graph {
        return Err(ConfigError::conflict(
            option.clone(),
            DISABLED,
            "one asks for graphs and the other for none",
            "Leave one of them out",
        ));
    }
    if let (true, Some((with, why))) = (*records, exchanged(parallel)) {
        let remedy = "Leave it out, or give --tp-size 1";
        return Err(ConfigError::conflict(option.clone(), with, why, remedy));
    }
    Ok(())
}

/// The option that makes ranks exchange data in a way that no graph can record, and the reason;
/// `None` if there is none.
fn exchanged(parallel: &ParallelConfig) -> Option<(String, &'static str)> {
    let tp_size = parallel.tp_size;
    let host = parallel.collectives.backend == CollectiveBackend::Host;
    let why = "ranks exchange through their hosts in every layer, which no graph can do";
    (tp_size > 1 && host).then(|| (format!("--tp-size {tp_size}"), why))
}

#[cfg(test)]
mod tests;
