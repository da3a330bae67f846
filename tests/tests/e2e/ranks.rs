//! Options of servers whose ranks form DP ranks, and whose depth adapts.

use std::{fs, path::Path};

use lockstep_tests::server::Options;
use serde_json::{Value, json};

/// So many ranks, which form so many DP ranks.
pub fn data_parallel(options: Options, (ranks, dp_ranks): (usize, usize)) -> Options {
    let options = options.set("--tp-size", &ranks.to_string());
    match dp_ranks {
        1 => options,
        _ => options
            .flag("--enable-dp-attention")
            .set("--dp-size", &dp_ranks.to_string()),
    }
}

/// Chains of NGRAM, up to three tokens long.
pub fn drafting(options: Options) -> Options {
    options
        .set("--speculative-algorithm", "NGRAM")
        .set("--speculative-num-steps", "3")
}

/// A depth that adapts as `file` says, which lies in `folder`.
pub fn adapting(options: Options, file: &Value, folder: &Path) -> Options {
    let path = folder.join("adaptive.json");
    fs::write(&path, file.to_string()).expect("written");
    options.flag("--speculative-adaptive").set(
        "--speculative-adaptive-config",
        path.to_str().expect("UTF-8"),
    )
}

/// Another of `depths` in every step. No steps are timed for that before serving.
pub fn taking_turns(options: Options, depths: &[u32], folder: &Path) -> Options {
    let file = json!({"strategy": "turns", "candidate_steps": depths});
    adapting(options, &file, folder)
}
