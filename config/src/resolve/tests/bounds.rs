//! Values at the limits of their ranges, and defaults that follow from other values.

use lockstep_types::TimeoutConfig;
use serde_json::json;

use crate::args::ServeArgs;
use crate::resolve::schedule;
use crate::testing::{folder, llama, machine, resolve_line, resolve_model, with};

#[test]
fn the_last_values_that_are_allowed_are_taken() {
    for line in [
        "--max-running-requests 65536 --max-total-tokens 4096",
        "--max-json-depth 127",
        "--tokenizer-managers 64",
        "--mem-fraction-static 1",
        "--page-size 4096 --max-total-tokens 8192",
        "--max-connections 9 --max-connections-per-peer 9",
    ] {
        if let Err(error) = resolve_line(line) {
            panic!("{line}: {error}");
        }
    }
}

#[test]
fn times_have_their_defaults() {
    let times = |line| resolve_line(line).expect("good").0.timeouts;
    let defaults = TimeoutConfig {
        request_s: None,
        queue_s: None,
        step_watchdog_s: 120,
        health_s: 20,
        drain_s: 30,
        drain_delay_s: 0,
        startup_s: 600,
        weight_update_s: 600,
    };
    assert_eq!(times(""), defaults);
    // Weights may load again for as long as at the start.
    let slow = TimeoutConfig {
        startup_s: 900,
        weight_update_s: 900,
        ..defaults
    };
    assert_eq!(times("--startup-timeout 900"), slow);
}

#[test]
fn the_longest_prompt_may_wait() {
    let longest = schedule::resolve(&ServeArgs::default(), 3 << 20);
    assert_eq!(longest.max_queued_tokens, 3 << 20);
}

/// Line ends are those of editors on all systems.
#[test]
fn a_keys_file_may_end_in_a_line_break() {
    for end in ["", "\n", "\r\n"] {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), format!("sesame{end}")).expect("written");
        let line = format!("--api-key-file {}", file.path().display());
        let (_, node) = resolve_line(&line).expect("good");
        assert_eq!(node.api_key.as_deref(), Some("sesame"), "{end:?}");
    }
}

#[test]
fn every_rank_needs_something_of_the_mlp_and_the_vocabulary() {
    for key in ["intermediate_size", "vocab_size"] {
        let model = folder(&with(llama(), &json!({ key: 3 })), None);
        let refused = resolve_model("--tp-size 4", model.path(), &machine());
        let error = refused.expect_err("a rank without any").to_string();
        assert!(error.starts_with("--tp-size 4: "), "{error}");
        assert!(error.contains("has 3 rows"), "{error}");
        assert!(error.contains("work: 1, 2."), "{error}");
    }
}

#[test]
fn a_model_deeper_than_any_is_damage() {
    for (layers, believed) in [(10_000, true), (10_001, false)] {
        let changes = json!({"num_hidden_layers": layers, "hidden_size": 16});
        let model = folder(&with(llama(), &changes), None);
        let read = lockstep_model_folder::load(model.path());
        match read {
            Ok(_) => assert!(believed),
            Err(error) => {
                let error = error.to_string();
                assert!(
                    !believed && error.contains("`num_hidden_layers` is 10001"),
                    "{error}"
                );
            }
        }
    }
}

/// Public files of such models keep the original number of positions.
#[test]
fn a_model_with_yarn_may_reach_further_by_its_file() {
    let stretched = |longest: usize| {
        let yarn = json!({"type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 512});
        let own = json!({"rope_scaling": yarn, "max_position_embeddings": longest});
        let model = folder(&with(llama(), &own), None);
        let line = "--context-length 2049";
        let error = resolve_model(line, model.path(), &machine()).map(|_| ());
        error.expect_err("refused").to_string()
    };
    let error = stretched(512);
    for part in ["512", "max_position_embeddings", "config.json", "2048"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!stretched(2048).contains("YaRN"));
}
