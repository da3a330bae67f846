//! Experts split by number.

use lockstep_types::{ConfigError, EngineConfig};
use serde_json::json;

use crate::testing::{folder, llama, machine, resolve_line, resolve_model, with};

/// Resolves a command line for a model with 6 experts of 48 columns in each layer.
fn of_six_experts(line: &str) -> Result<EngineConfig, ConfigError> {
    let shape = json!({"architectures": ["MixtralForCausalLM"], "intermediate_size": 48,
        "num_local_experts": 6, "num_experts_per_tok": 2});
    let model = folder(&with(llama(), &shape), None);
    resolve_model(line, model.path(), &machine()).map(|resolved| resolved.0)
}

#[test]
fn ranks_form_groups_with_experts_of_their_own() {
    for (line, expected) in [
        ("--tp 4", 1),
        ("--tp 4 --ep-size 1", 1),
        ("--tp 4 --ep-size 2", 2),
        ("--tp 4 --ep 4", 4),
        ("--tp 2 --expert-parallel-size 2", 2),
        ("--tp 4 --ep-size 4 --enable-dp-attention --dp-size 2", 4),
    ] {
        let engine = of_six_experts(line).expect(line);
        assert_eq!(engine.parallel.ep_size, expected, "{line}");
        assert_eq!(engine.shape().ep_size, expected, "{line}");
    }
    let dense = resolve_line("--tp 2 --ep-size 1").expect("the default").0;
    assert_eq!(dense.parallel.ep_size, 1);
}

#[test]
fn groups_that_do_not_fit_are_refused_with_sizes_that_do() {
    for (line, texts) in [
        (
            "--tp 4 --ep-size 3",
            ["--ep-size 3", "--tp-size 4", "Sizes that work: 1, 2, 4"],
        ),
        (
            "--tp 8 --ep-size 8",
            ["--ep-size 8", "6 experts", "Sizes that work: 1, 2, 4"],
        ),
        (
            "--ep-size 2",
            ["--ep-size 2", "--tp-size 1", "Sizes that work: 1"],
        ),
    ] {
        let text = of_six_experts(line).expect_err(line).to_string();
        assert!(texts.iter().all(|part| text.contains(part)), "{text}");
    }
}
