//! Refusals of algorithms that the program does not know.

use lockstep_types::Algorithms;

use super::{ALGORITHM, ConfigError};

/// Refuses the algorithm `name`, and names those that are there.
pub(super) fn refused(name: &str, known: &Algorithms) -> ConfigError {
    let mut names = String::new();
    for algorithm in known.iter() {
        let summary = algorithm.summary().trim_end_matches('.');
        names.push_str(&format!("; {}: {summary}", algorithm.name()));
    }
    ConfigError::value(
        ALGORITHM,
        name,
        "this program knows no algorithm of that name",
        format!(
            "{}Known are none (nothing is drafted){names}",
            own_layer(name)
        ),
    )
}

/// Returns a sentence for the names by which other engines call a model's own draft layer:
/// vLLM's `mtp`, `deepseek_mtp`, `qwen3_next_mtp`.
fn own_layer(name: &str) -> &'static str {
    match name.to_ascii_lowercase().ends_with("mtp") {
        true => "A model's own draft layer is NEXTN here. ",
        false => "",
    }
}
