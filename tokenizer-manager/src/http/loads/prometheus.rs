//! Loads of DP ranks in the text format of Prometheus, under SGLang's names.

use std::fmt::Write as _;

use axum::{http::header, response::IntoResponse};
use serde_json::{Map, Value};

/// Sections and the prefixes of their figures' names, after `sglang_`. Figures of the
/// core section have no further prefix.
const PREFIXES: [(&str, &str); 5] = [
    ("memory", "memory_"),
    ("speculative", "spec_"),
    ("disaggregation", "disagg_"),
    ("queues", "queues_"),
    ("lora", "lora_"),
];

/// Returns one gauge for each figure, with a sample per DP rank. Figures that are not
/// numbers are left out.
pub(super) fn render(ranks: &[Value]) -> impl IntoResponse + use<> {
    let mut text = String::new();
    gauges(&mut text, "", ranks, |rank| rank.as_object());
    for (section, prefix) in PREFIXES {
        gauges(&mut text, prefix, ranks, |rank| rank[section].as_object());
    }
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text)
}

/// Writes the gauges of one section. The first rank has the section if all ranks have
/// it.
fn gauges(
    text: &mut String,
    prefix: &str,
    ranks: &[Value],
    section: impl Fn(&Value) -> Option<&Map<String, Value>>,
) {
    let Some(figures) = ranks.first().and_then(&section) else {
        return;
    };
    let numbers = figures.iter().filter(|(_, figure)| figure.is_number());
    for (key, _) in numbers.filter(|(name, _)| *name != "dp_rank") {
        let name = format!("sglang_{prefix}{key}");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# TYPE {name} gauge");
        for rank in ranks {
            if let Some(figure) = section(rank).and_then(|figures| figures.get(key)) {
                let _ = writeln!(text, "{name}{{dp_rank=\"{}\"}} {figure}", rank["dp_rank"]);
            }
        }
    }
}
