//! Options of servers whose ranks form DP ranks, and whose depth adapts.

use std::{fs, path::Path};

use lockstep_tests::server::Options;
use serde_json::{Value, json};

/// Sets the number of ranks and the number of DP ranks that they form.
pub fn data_parallel(options: Options, (ranks, dp_ranks): (usize, usize)) -> Options {
    let options = options.set("--tp-size", &ranks.to_string());
    match dp_ranks {
        1 => options,
        _ => options
            .flag("--enable-dp-attention")
            .set("--dp-size", &dp_ranks.to_string()),
    }
}

/// Drafts chains of up to three tokens with NGRAM.
pub fn drafting(options: Options) -> Options {
    options
        .set("--speculative-algorithm", "NGRAM")
        .set("--speculative-num-steps", "3")
}

/// Lets the depth adapt. Writes `file`, the configuration, into `folder`.
pub fn adapting(options: Options, file: &Value, folder: &Path) -> Options {
    let path = folder.join("adaptive.json");
    fs::write(&path, file.to_string()).expect("written");
    options.flag("--speculative-adaptive").set(
        "--speculative-adaptive-config",
        path.to_str().expect("UTF-8"),
    )
}

/// Takes the next of `depths` in every step. This strategy times no steps before
/// serving.
pub fn taking_turns(options: Options, depths: &[u32], folder: &Path) -> Options {
    let file = json!({"strategy": "turns", "candidate_steps": depths});
    adapting(options, &file, folder)
}
