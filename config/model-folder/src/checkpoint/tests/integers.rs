//! Checkpoints of integers: what configurations say, and what tensors show.

use std::fs;
use std::path::Path;

use lockstep_types::{CheckpointFormat, IntegerCheckpoint, IntegerLayout, ModuleForm};
use serde_json::{Value, json};

use super::{compressed, load};
use crate::testing::with;

fn integers(quantization: &Value) -> IntegerCheckpoint {
    match load(quantization).expect("served").checkpoint {
        CheckpointFormat::Integers(integers) => integers,
        other => panic!("{quantization} is {other:?}"),
    }
}

/// A configuration as GPTQModel writes it, with keys replaced.
fn gptq(own: &Value) -> Value {
    let plain = json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false,
        "sym": true, "checkpoint_format": "gptq", "pack_dtype": "int32", "lm_head": true,
        "meta": {"quantizer": ["gptqmodel:7.3.4"], "damp_percent": 0.05}});
    with(plain, own)
}

fn awq(own: &Value) -> Value {
    let plain = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm",
        "zero_point": true, "modules_to_not_convert": ["lm_head"], "damp_percent": 0.1,
        "desc_act": false, "true_sequential": true, "backend": "auto"});
    with(plain, own)
}

fn auto_round(own: &Value) -> Value {
    let plain = json!({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq",
        "bits": 4, "group_size": 128, "sym": true, "data_type": "int", "act_bits": 16,
        "act_dynamic": true, "iters": 200, "autoround_version": "0.13.0"});
    with(plain, own)
}

/// A group of integers, as llm-compressor writes it.
fn packed(weights: &Value, group: &Value) -> Value {
    let plain = json!({"type": "int", "num_bits": 4, "strategy": "group", "group_size": 128});
    let mut all = compressed(&with(plain, weights));
    all["format"] = "pack-quantized".into();
    let own = all["config_groups"]["group_0"].take();
    all["config_groups"]["group_0"] = with(own, group);
    all
}

#[test]
fn tools_say_bits_groups_and_zero_points() {
    let (v1, v2) = (
        IntegerLayout::Gptq { less_one: true },
        IntegerLayout::Gptq { less_one: false },
    );
    let (tensors, of_awq) = (IntegerLayout::CompressedTensors, IntegerLayout::Awq);
    let none = json!({});
    for (quantization, layout, bits, groups, zeros) in [
        (gptq(&none), v1, &[4][..], &[Some(128)][..], &[false][..]),
        (
            gptq(&json!({"checkpoint_format": "gptq_v2"})),
            v2,
            &[4],
            &[Some(128)],
            &[false],
        ),
        (
            gptq(&json!({"checkpoint_format": null, "format": "gptq_v2"})),
            v2,
            &[4],
            &[Some(128)],
            &[false],
        ),
        (
            gptq(&json!({"checkpoint_format": null, "sym": null, "group_size": -1, "bits": 8})),
            v1,
            &[8],
            &[None],
            &[true],
        ),
        (
            gptq(
                &json!({"dynamic": {"-:.*up_proj": {}, "+:.*down": {"bits": 8},
                "gate": {"group_size": 32, "sym": false}}}),
            ),
            v1,
            &[4, 8],
            &[Some(128), Some(32)],
            &[false, true],
        ),
        (awq(&none), of_awq, &[4], &[Some(128)], &[true]),
        (
            awq(&json!({"zero_point": false, "sym": true})),
            of_awq,
            &[4],
            &[Some(128)],
            &[true],
        ),
        (auto_round(&none), v1, &[4], &[Some(128)], &[false]),
        (
            auto_round(&json!({"quant_method": "inc", "sym": false})),
            v1,
            &[4],
            &[Some(128)],
            &[true],
        ),
        (
            auto_round(&json!({"packing_format": "auto_round"})),
            v2,
            &[4],
            &[Some(128)],
            &[false],
        ),
        (
            auto_round(
                &json!({"packing_format": "auto_round:auto_awq", "sym": false,
                "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}}}),
            ),
            of_awq,
            &[4],
            &[Some(128)],
            &[true],
        ),
        (packed(&none, &none), tensors, &[4], &[Some(128)], &[false]),
        (
            packed(
                &json!({"strategy": "channel", "group_size": -1, "symmetric": false,
                "actorder": "static"}),
                &json!({"format": "int-quantized"}),
            ),
            tensors,
            &[4],
            &[None],
            &[true],
        ),
    ] {
        let found = integers(&quantization);
        assert_eq!(found.layout, layout, "{quantization}");
        let kinds = (&found.bits[..], &found.groups[..], &found.zeros[..]);
        assert_eq!(kinds, (bits, groups, zeros), "{quantization}");
        assert!(found.fp8.is_none());
    }
}

#[test]
fn order_of_activations_counts_where_there_are_groups() {
    let scattered = |quantization: &Value| match integers(quantization).forms[..] {
        [ModuleForm::Integers(form)] => form.scattered,
        _ => panic!("one form is expected"),
    };
    for (quantization, expected) in [
        (gptq(&json!({"desc_act": true})), true),
        (gptq(&json!({"desc_act": true, "group_size": -1})), false),
        (
            gptq(&json!({"dynamic": {"down": {"desc_act": true}}})),
            true,
        ),
        (packed(&json!({"actorder": true}), &json!({})), true),
        (packed(&json!({"actorder": "group"}), &json!({})), true),
        (packed(&json!({"actorder": "weight"}), &json!({})), false),
        (
            packed(
                &json!({"actorder": "group", "strategy": "channel", "group_size": null}),
                &json!({}),
            ),
            false,
        ),
    ] {
        assert_eq!(scattered(&quantization), expected, "{quantization}");
    }
}

#[test]
fn what_is_not_served_is_refused_by_name() {
    let none = json!({});
    for (quantization, key) in [
        (gptq(&json!({"bits": 3})), "`quantization_config.bits` is 3"),
        (
            gptq(&json!({"bits": null})),
            "`quantization_config.bits` is missing",
        ),
        (gptq(&json!({"group_size": null})), "group_size` is missing"),
        (gptq(&json!({"group_size": 0})), "group_size`"),
        (gptq(&json!({"group_size": -2})), "group_size`"),
        (
            gptq(&json!({"checkpoint_format": "marlin"})),
            "checkpoint_format` is \"marlin\"",
        ),
        (gptq(&json!({"format": "gptq_v2"})), "format`"),
        (
            gptq(&json!({"is_marlin_format": true})),
            "is_marlin_format`",
        ),
        (gptq(&json!({"pack_dtype": "int64"})), "pack_dtype`"),
        (gptq(&json!({"rotation": "hadamard"})), "rotation`"),
        (
            gptq(&json!({"dynamic": {"a": {"bits": 2}}})),
            "dynamic.a.bits`",
        ),
        (
            gptq(&json!({"dynamic": {"a": {"adapter": 1}}})),
            "dynamic.a.adapter`",
        ),
        (
            gptq(&json!({"dynamic": {"a": {"format": "bitblas"}}})),
            "dynamic.a.format`",
        ),
        (gptq(&json!({"desc_act": "yes"})), "desc_act`"),
        (awq(&json!({"bits": 8})), "`quantization_config.bits` is 8"),
        (awq(&json!({"version": "gemv"})), "version` is \"gemv\""),
        (awq(&json!({"format": "gemv_fast"})), "format`"),
        (awq(&json!({"backend": "llm-awq"})), "backend`"),
        (awq(&json!({"desc_act": true})), "desc_act`"),
        (awq(&json!({"pre_quant_scale": true})), "pre_quant_scale`"),
        (
            auto_round(&json!({"packing_format": "auto_round:fp8"})),
            "packing_format`",
        ),
        (
            auto_round(&json!({"packing_format": null, "backend": "auto_round:exllamav2"})),
            "packing_format`",
        ),
        (
            auto_round(&json!({"packing_format": "auto_round:auto_awq", "bits": 8})),
            "bits`",
        ),
        (auto_round(&json!({"data_type": "mx_fp"})), "data_type`"),
        (auto_round(&json!({"act_bits": 8})), "act_bits`"),
        (
            auto_round(&json!({"rotation_config": {"a": 1}})),
            "rotation_config`",
        ),
        (packed(&json!({"num_bits": 6}), &none), "weights.num_bits`"),
        (
            packed(&json!({"group_size": null}), &none),
            "weights.group_size`",
        ),
        (
            packed(&json!({"strategy": "channel"}), &none),
            "weights.group_size`",
        ),
        (
            packed(&json!({"strategy": "block", "group_size": null}), &none),
            "weights.strategy`",
        ),
        (
            packed(&json!({"actorder": "odd"}), &none),
            "weights.actorder`",
        ),
        (packed(&json!({"dynamic": true}), &none), "weights.dynamic`"),
        (
            packed(&none, &json!({"format": "float-quantized"})),
            "weights.type`",
        ),
        (
            packed(&none, &json!({"format": "nvfp4-pack-quantized"})),
            "group_0.format`",
        ),
    ] {
        let error = load(&quantization).expect_err("refused");
        assert!(error.contains(key), "{key}: {error}");
    }
}

fn fixture(name: &str) -> IntegerCheckpoint {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = repository.join("tests/fixtures/architectures").join(name);
    match crate::load(&folder).expect("served").checkpoint {
        CheckpointFormat::Integers(integers) => integers,
        other => panic!("{name} is {other:?}"),
    }
}

/// Form of a module, in few words.
fn told(found: &IntegerCheckpoint, module: &str) -> String {
    let form = match module.starts_with("model.layers") {
        true => found.form(module),
        false => found.outer_form(module),
    };
    match form {
        ModuleForm::Integers(form) => format!(
            "{} {:?}{}{} {:?}",
            form.bits,
            form.group,
            if form.zeros { " zeros" } else { "" },
            if form.scattered { " scattered" } else { "" },
            form.scales
        ),
        other => format!("{other:?}"),
    }
}

#[test]
fn tensors_say_the_form_of_every_module() {
    for (name, module, expected) in [
        ("llama_gptq", "model.layers.0.mlp.up_proj", "4 Some(32) F16"),
        (
            "llama_gptq",
            "model.layers.0.mlp.down_proj",
            "8 Some(64) F16",
        ),
        ("llama_gptq", "model.layers.1.self_attn.o_proj", "Floats"),
        ("llama_gptq", "lm_head", "4 Some(32) F16"),
        ("llama_gptq", "model.embed_tokens", "Floats"),
        (
            "qwen2_gptq_act_order",
            "model.layers.1.self_attn.o_proj",
            "4 Some(32) zeros scattered F16",
        ),
        (
            "deepseek_v3_awq",
            "model.layers.0.self_attn.kv_b_proj",
            "4 Some(32) zeros F16",
        ),
        ("deepseek_v3_awq", "model.layers.1.mlp.up_proj", "Floats"),
        (
            "qwen3_compressed",
            "model.layers.0.self_attn.q_proj",
            "4 Some(32) zeros Bf16",
        ),
        (
            "qwen3_compressed",
            "model.layers.1.self_attn.v_proj",
            "Floats",
        ),
        ("qwen3_compressed", "model.layers.0.self_attn.o_proj", "Fp8"),
        (
            "qwen3_compressed",
            "model.layers.0.mlp.gate_proj",
            "8 None Bf16",
        ),
        (
            "qwen3_compressed",
            "model.layers.1.mlp.down_proj",
            "4 None Bf16",
        ),
        (
            "qwen3_moe_auto_round",
            "model.layers.0.mlp.experts.1.up_proj",
            "4 Some(32) zeros F16",
        ),
        (
            "qwen3_moe_auto_round",
            "model.layers.0.mlp.experts.2.down_proj",
            "8 Some(32) zeros F16",
        ),
        ("qwen3_moe_auto_round", "model.layers.0.mlp.gate", "Floats"),
    ] {
        assert_eq!(told(&fixture(name), module), expected, "{name} {module}");
    }
}

/// Matrices that are kept as floats take many times the memory, which the operator should know. A
/// stored head that is integers counts, whatever `config.json` says.
#[test]
fn notes_tell_of_wide_matrices_and_of_heads() {
    let described = |folder: &Path| {
        let described = crate::Described::of(folder).expect("served");
        described.with_names().expect("served")
    };
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = |name: &str| repository.join("tests/fixtures/architectures").join(name);
    let wide = "14 projections are kept as 32-bit floats";
    let has = |notes: &[String], part: &str| notes.iter().any(|note| note.contains(part));
    assert!(has(&described(&folder("qwen2_gptq_act_order")).notes, wide));
    let plain = described(&folder("llama_gptq"));
    assert!(!has(&plain.notes, "kept as 32-bit floats") && !has(&plain.notes, "output head"));
    let copy = tempfile::tempdir().expect("a folder");
    let text = fs::read_to_string(folder("llama_gptq").join("config.json")).expect("read");
    let tied = text.replace(
        "\"tie_word_embeddings\": false",
        "\"tie_word_embeddings\": true",
    );
    fs::write(copy.path().join("config.json"), tied).expect("written");
    let weights = "model.safetensors";
    fs::copy(
        folder("llama_gptq").join(weights),
        copy.path().join(weights),
    )
    .expect("copied");
    let found = described(copy.path());
    assert!(
        has(&found.notes, "output head (lm_head)"),
        "{:?}",
        found.notes
    );
    assert!(!found.model.tie_word_embeddings);
}
