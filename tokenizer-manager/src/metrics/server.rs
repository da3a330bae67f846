//! Series that are the same for all tokenizer-managers of a server.

use std::fmt::Write as _;

use lockstep_proto::pb::lockstep::GetLoadResponse;
use lockstep_traces::SpanCounts;

use super::{
    connections::render_connections, engine_gauges::render_load, memory::render_memory,
    traces::render_traces,
};

/// Renders the server's own series. `load` is the scheduler's answer, `None` if it did
/// not answer. `silent` is the number of tokenizer-managers that did not answer, and
/// `lost` the number of lost log lines of this node.
pub fn render_server(load: Option<&GetLoadResponse>, silent: usize, lost: u64) -> String {
    let up = u64::from(load.is_some());
    let mut text = String::with_capacity(8192);
    for (name, kind, help, value) in [
        (
            "scheduler_up",
            "gauge",
            "Whether the scheduler answered.",
            up,
        ),
        (
            "tokenizer_managers_silent",
            "gauge",
            "Tokenizer-managers that did not tell their figures for this answer.",
            silent as u64,
        ),
        (
            "log_lines_lost_total",
            "counter",
            "Log lines of this node's processes that nobody read in time.",
            lost,
        ),
    ] {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "# HELP lockstep_{name} {help}\n# TYPE lockstep_{name} {kind}\nlockstep_{name} {value}\n"
        );
    }
    let version = env!("CARGO_PKG_VERSION");
    let _ = write!(
        text,
        "# HELP lockstep_build_info The program's version, as a label.\n\
         # TYPE lockstep_build_info gauge\nlockstep_build_info{{version=\"{version}\"}} 1\n"
    );
    if let Some(load) = load {
        text.push_str(&render_connections(None, &load.ports));
        text.push_str(&render_memory(None, load.request_memory));
        let traces = load.traces.unwrap_or_default();
        let traces = SpanCounts {
            exported: traces.exported,
            dropped: traces.dropped,
            failed: traces.failed,
        };
        text.push_str(&render_traces(None, traces));
        text.push_str(&render_load(load));
    }
    text
}
