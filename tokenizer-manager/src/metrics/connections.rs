//! Connection counts in Prometheus' text format.

use std::fmt::Write;

use lockstep_proto::pb::lockstep::PortLoad;

/// A series: name without prefix, kind, description, values by further labels.
type Series = (&'static str, &'static str, &'static str, Values);
type Values = fn(&PortLoad) -> Vec<(String, u64)>;

const SERIES: [Series; 3] = [
    ("open", "gauge", "Connections open, by port.", |port| {
        vec![(String::new(), port.open)]
    }),
    (
        "accepted_total",
        "counter",
        "Connections accepted, by port.",
        |port| vec![(String::new(), port.accepted)],
    ),
    (
        "closed_total",
        "counter",
        "Connections that the server ended for a reason, by port; for slow_body and over_budget it is requests, for stalled also answers.",
        |port| {
            let closed = port.closed.iter();
            closed
                .map(|closed| (format!(",reason=\"{}\"", closed.reason), closed.count))
                .collect()
        },
    ),
];

/// Renders the ports of tokenizer-manager `front`, or the scheduler's ports, which
/// carry no index.
pub fn render_connections(front: Option<usize>, ports: &[PortLoad]) -> String {
    let front = front.map_or_else(String::new, |index| {
        format!("tokenizer_manager=\"{index}\",")
    });
    let mut out = String::new();
    // Writing to a string cannot fail.
    for (name, kind, help, values) in SERIES {
        let name = format!("lockstep_connections_{name}");
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for load in ports {
            for (more, value) in values(load) {
                let port = &load.port;
                let _ = writeln!(out, "{name}{{{front}port=\"{port}\"{more}}} {value}");
            }
        }
    }
    out
}
