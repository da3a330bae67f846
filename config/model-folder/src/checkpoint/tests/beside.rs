//! Files beside `config.json` that say how weights are stored.

use lockstep_types::CheckpointFormat;
use serde_json::{Value, json};

use super::modelopt;
use crate::testing::{folder, llama, with, write};

/// A `hf_quant_config.json` of the Model Optimizer, with another algorithm.
fn written(algorithm: &Value) -> Value {
    json!({
        "producer": {"name": "modelopt", "version": "0.29.0"},
        "quantization": {
            "quant_algo": algorithm,
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": ["lm_head"],
        },
    })
}

/// The form of a folder with a file beside `config.json`, or the error.
fn load(quantization: &Value, name: &str, file: &Value) -> Result<CheckpointFormat, String> {
    let config = with(llama(), &json!({ "quantization_config": quantization }));
    let dir = folder(&config, None);
    write(dir.path(), name, file);
    let loaded = crate::load(dir.path());
    loaded
        .map(|model| model.checkpoint)
        .map_err(|error| error.to_string())
}

#[test]
fn a_file_of_its_own_says_the_form() {
    let name = "hf_quant_config.json";
    let blocks = |loaded: Result<CheckpointFormat, String>| match loaded.expect("served") {
        CheckpointFormat::Fp8(fp8) => Some(fp8.block),
        CheckpointFormat::Floats | CheckpointFormat::Mxfp4(_) | CheckpointFormat::Gguf(_) => None,
    };
    let absent = Value::Null;
    for quantization in [&absent, &json!({}), &modelopt(&json!({}))] {
        let found = load(quantization, name, &written(&"FP8".into()));
        assert_eq!(blocks(found), Some(None), "{quantization}");
    }
    let found = load(&absent, name, &written(&"FP8_PB_WO".into()));
    assert_eq!(blocks(found), Some(Some([128, 128])));
    // Caches alone may be quantized.
    let found = load(&absent, name, &written(&Value::Null));
    assert_eq!(found, Ok(CheckpointFormat::Floats));
}

#[test]
fn files_that_contradict_or_are_not_served_are_refused_by_name() {
    let [old, awq, gptq] = [
        "hf_quant_config.json",
        "quant_config.json",
        "quantize_config.json",
    ];
    let fp8 = modelopt(&json!({}));
    for (quantization, name, file, part) in [
        (
            &Value::Null,
            old,
            written(&"NVFP4".into()),
            "quantization.quant_algo` is \"NVFP4\"",
        ),
        (
            &fp8,
            old,
            written(&"FP8_PB_WO".into()),
            "config.json says otherwise",
        ),
        (
            &Value::Null,
            old,
            json!({"producer": {}}),
            "`quantization` is missing",
        ),
        (
            &Value::Null,
            old,
            with(written(&"FP8".into()), &json!({"odd": 1})),
            "`odd`",
        ),
        (
            &Value::Null,
            gptq,
            json!({"bits": 4, "group_size": 128}),
            "`bits` is 4",
        ),
        (
            &Value::Null,
            awq,
            json!({"w_bit": 4, "version": "GEMM"}),
            "`w_bit` is 4",
        ),
        (&fp8, awq, json!({"bits": 4}), "`bits` is 4"),
        (&Value::Null, gptq, json!([]), "quantize_config.json"),
    ] {
        let error = load(quantization, name, &file).expect_err("refused");
        assert!(
            error.contains(name) && error.contains(part),
            "{part}: {error}"
        );
    }
}
