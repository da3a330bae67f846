//! A rank's load as Prometheus reads it, under SGLang's names.

use std::fmt::Write as _;

use axum::{http::header, response::IntoResponse};
use serde_json::{Map, Value};

/// What the names of a section's figures begin with; those of the core have no
/// more than `sglang_`.
const PREFIXES: [(&str, &str); 4] = [
    ("memory", "memory_"),
    ("speculative", "spec_"),
    ("disaggregation", "disagg_"),
    ("queues", "queues_"),
];

/// One gauge for each figure of a rank's load. What is no number is left out.
pub(super) fn render(rank: &Value) -> impl IntoResponse {
    let mut text = String::new();
    if let Some(core) = rank.as_object() {
        gauges(&mut text, "", core);
    }
    for (section, prefix) in PREFIXES {
        if let Some(figures) = rank[section].as_object() {
            gauges(&mut text, prefix, figures);
        }
    }
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text)
}

fn gauges(text: &mut String, prefix: &str, figures: &Map<String, Value>) {
    let numbers = figures.iter().filter(|(_, figure)| figure.is_number());
    for (name, figure) in numbers.filter(|(name, _)| *name != "dp_rank") {
        let name = format!("sglang_{prefix}{name}");
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "# TYPE {name} gauge\n{name}{{dp_rank=\"0\"}} {figure}"
        );
    }
}
