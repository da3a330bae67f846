//! What became of connections, of this process's ports and of the scheduler's,
//! in Prometheus' text format: together, since a series' name may stand only once.

use std::fmt::Write;

use lockstep_ports::PortReport;
use lockstep_proto::pb::lockstep::PortLoad;

/// Name without its prefix, kind, what it says, its values by further labels.
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

/// Renders the ports of tokenizer-manager `index`, and those of the engine,
/// which carry no number.
pub fn render_connections(index: usize, own: &[PortReport], engine: &[PortLoad]) -> String {
    let own = own.iter().cloned().map(|report| {
        let load = PortLoad::from(report);
        (format!("tokenizer_manager=\"{index}\","), load)
    });
    let engine = engine.iter().map(|load| (String::new(), load.clone()));
    let ports: Vec<_> = own.chain(engine).collect();
    let mut out = String::new();
    // Writing to a string cannot fail.
    for (name, kind, help, values) in SERIES {
        let name = format!("lockstep_connections_{name}");
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (front, load) in &ports {
            for (more, value) in values(load) {
                let port = &load.port;
                let _ = writeln!(out, "{name}{{{front}port=\"{port}\"{more}}} {value}");
            }
        }
    }
    out
}
