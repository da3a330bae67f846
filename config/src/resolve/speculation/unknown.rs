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
        format!("Known are none (nothing is drafted){names}"),
    )
}
