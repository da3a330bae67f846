//! Checkpoints of the Model Optimizer, and groups of matrices with scales of different kinds.

use lockstep_types::CheckpointFormat;
use serde_json::{Value, json};

use super::{compressed, load, modelopt};

/// The blocks of a checkpoint whose groups have scales of different kinds.
fn mixed(quantization: &Value) -> Option<[usize; 2]> {
    let CheckpointFormat::Fp8(fp8) = load(quantization).expect("served").checkpoint else {
        panic!("{quantization} is FP8");
    };
    assert!(fp8.mixed, "{quantization}");
    fp8.block
}

fn layers(algorithms: &[&str]) -> Value {
    let layer = |(number, name): (usize, &&str)| {
        let module = format!("model.layers.{number}.mlp.down_proj");
        (module, json!({"quant_algo": name}))
    };
    let layers = algorithms.iter().enumerate().map(layer).collect();
    modelopt(&json!({"quant_algo": "MIXED_PRECISION", "quantized_layers": Value::Object(layers)}))
}

#[test]
fn groups_may_have_scales_of_different_kinds() {
    assert_eq!(mixed(&layers(&["FP8", "FP8_PB_WO"])), Some([128, 128]));
    let mut groups = compressed(&json!({}));
    let group = |weights: Value| compressed(&weights)["config_groups"]["group_0"].clone();
    groups["config_groups"]["group_1"] =
        group(json!({"strategy": "block", "block_structure": [64, 128]}));
    assert_eq!(mixed(&groups), Some([64, 128]));
    groups["config_groups"]["group_2"] = group(json!({"strategy": "tensor"}));
    assert_eq!(mixed(&groups), Some([64, 128]));
    groups["config_groups"]["group_3"] =
        group(json!({"strategy": "block", "block_structure": [128, 128]}));
    let error = load(&groups).expect_err("two sizes of blocks");
    assert!(
        error.contains("`quantization_config.config_groups`"),
        "{error}"
    );
}

#[test]
fn one_kind_in_all_layers_is_no_mixture() {
    let CheckpointFormat::Fp8(fp8) = load(&layers(&["FP8", "fp8"])).expect("served").checkpoint
    else {
        panic!("it is FP8");
    };
    assert_eq!((fp8.block, fp8.mixed), (None, false));
}

#[test]
fn other_formats_of_the_tool_are_refused_by_name() {
    let groups = |weights: Value| {
        modelopt(
            &json!({"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}),
        )
    };
    for (quantization, key) in [
        (
            modelopt(&json!({"quant_algo": "NVFP4"})),
            "config.quant_algo` is \"NVFP4\"",
        ),
        (
            modelopt(&json!({"quant_algo": "MXFP8"})),
            "config.quant_algo` is \"MXFP8\"",
        ),
        (
            modelopt(&json!({"quant_algo": null})),
            "config.quant_algo` is missing",
        ),
        (modelopt(&json!({"group_size": 16})), "config.group_size`"),
        (
            modelopt(&json!({"quant_algo": "FP8_PB_WO", "group_size": 64})),
            "config.group_size`",
        ),
        (
            modelopt(&json!({"pre_quant_scale": true})),
            "config.pre_quant_scale`",
        ),
        (
            modelopt(&json!({"exclude_modules": [1]})),
            "config.exclude_modules`",
        ),
        (
            modelopt(&json!({"quantized_layers": {"x": {}}})),
            "config.quantized_layers`",
        ),
        (layers(&[]), "config.quantized_layers` has no layer"),
        (
            layers(&["FP8", "NVFP4"]),
            "down_proj.quant_algo` is \"NVFP4\"",
        ),
        (
            groups(json!({"num_bits": 4, "type": "float"})),
            "weights.num_bits`",
        ),
        (
            groups(json!({"num_bits": 8, "type": "int"})),
            "weights.type`",
        ),
        (groups(Value::Null), "group_0.weights`"),
        (
            groups(json!({"num_bits": 8, "type": "float", "odd": 1})),
            "weights.odd`",
        ),
    ] {
        let error = load(&quantization).expect_err("refused");
        assert!(error.contains(key), "{key}: {error}");
    }
}
