//! Counts of trace spans, in Prometheus' text format.

use std::fmt::Write as _;

use lockstep_traces::SpanCounts;

/// Renders the spans of tokenizer-manager `front`, or the scheduler's spans, which
/// carry no index. The counts are 0 if nothing is traced.
pub fn render_traces(front: Option<usize>, counts: SpanCounts) -> String {
    let name = "lockstep_trace_spans_total";
    let front = front.map_or_else(String::new, |index| {
        format!("tokenizer_manager=\"{index}\",")
    });
    let mut out = format!(
        "# HELP {name} Spans of traced requests by what became of them: the collector has them \
         (exported), they found the queue full (dropped), or the collector did not take them \
         (failed); without a tokenizer-manager's number those of scheduler and workers.\n\
         # TYPE {name} counter\n"
    );
    for (outcome, spans) in [
        ("exported", counts.exported),
        ("dropped", counts.dropped),
        ("failed", counts.failed),
    ] {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name}{{{front}outcome=\"{outcome}\"}} {spans}");
    }
    out
}
