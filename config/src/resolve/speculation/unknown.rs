//! Refusals of algorithms that the program does not know.

use lockstep_types::{Algorithms, ModelConfig};

use super::{ALGORITHM, ConfigError};

/// Refuses the algorithm `name`, and names those that are there.
pub(super) fn refused(name: &str, target: &ModelConfig, known: &Algorithms) -> ConfigError {
    if name.eq_ignore_ascii_case("NEXTN") {
        return ConfigError::conflict(
            format!("{ALGORITHM} NEXTN"),
            format!("a {} model", target.architecture),
            "it drafts with a model's own multi-token prediction layers, and no architecture \
             served here has any",
            "Give EAGLE3, EAGLE or STANDALONE with a --speculative-draft-model-path, or NGRAM, \
             which needs none",
        );
    }
    let mut names = String::new();
    for algorithm in known.iter() {
        let summary = algorithm.summary().trim_end_matches('.');
        names.push_str(&format!("; {}: {summary}", algorithm.name()));
    }
    ConfigError::value(
        ALGORITHM,
        name,
        "this program knows no algorithm of that name",
        format!("Known are none (nothing is drafted){names}"),
    )
}
