//! Series of each adapter that requests may name. An adapter that is unloaded takes its series
//! with it, so there are never more than places.

use std::fmt::Write;

use lockstep_proto::pb::lockstep::AdapterLoad;

type Series = (
    &'static str,
    &'static str,
    &'static str,
    fn(&AdapterLoad) -> u64,
);

const SERIES: &[Series] = &[
    (
        "adapter_requests_running",
        "gauge",
        "Requests of this adapter that have not ended.",
        |load| load.live_requests.into(),
    ),
    (
        "adapter_requests_total",
        "counter",
        "Requests that named this adapter since it was loaded.",
        |load| load.requests_total,
    ),
];

/// Renders each series with the adapter's name as label. Names have no characters that a label
/// would have to escape.
pub(super) fn render(out: &mut String, adapters: &[AdapterLoad]) {
    for (name, kind, help, value) in SERIES {
        let name = format!("lockstep_{name}");
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for load in adapters {
            let _ = writeln!(out, "{name}{{adapter=\"{}\"}} {}", load.name, value(load));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_an_adapter_has_its_name() {
        let adapters = ["a", "org/b"].map(|name| AdapterLoad {
            name: name.to_owned(),
            live_requests: 1,
            requests_total: name.len() as u64,
        });
        let mut text = String::new();
        render(&mut text, &adapters);
        for line in [
            "lockstep_adapter_requests_running{adapter=\"a\"} 1",
            "lockstep_adapter_requests_total{adapter=\"org/b\"} 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert_eq!(text.matches("# TYPE ").count(), 2, "{text}");
    }
}
