use lockstep_types::{CheckpointFormat, ModelConfig, Mxfp4Checkpoint};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::testing::{folder, llama, with};

mod beside;
mod gguf;
mod integers;
mod modelopt;

fn model(quantization: &Value) -> TempDir {
    folder(
        &with(llama(), &json!({ "quantization_config": quantization })),
        None,
    )
}

fn load(quantization: &Value) -> Result<ModelConfig, String> {
    crate::load(model(quantization).path()).map_err(|error| error.to_string())
}

fn block(quantization: &Value) -> Option<[usize; 2]> {
    match load(quantization).expect("served").checkpoint {
        CheckpointFormat::Fp8(fp8) => {
            assert!(!fp8.mixed, "{quantization}");
            fp8.block
        }
        CheckpointFormat::Floats
        | CheckpointFormat::Mxfp4(_)
        | CheckpointFormat::Integers(_)
        | CheckpointFormat::Gguf(_) => {
            panic!("{quantization} is FP8")
        }
    }
}

/// As llm-compressor writes it, with keys of the group's weights replaced.
fn compressed(weights: &Value) -> Value {
    let plain = json!({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true,
        "dynamic": false, "observer": "minmax", "group_size": null, "actorder": null});
    json!({
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "kv_cache_scheme": null,
        "transform_config": {},
        "sparsity_config": {},
        "version": "0.12.2",
        "config_groups": {"group_0": {
            "targets": ["Linear"],
            "weights": with(plain, weights),
            "input_activations": {"num_bits": 8, "dynamic": true},
            "output_activations": null,
        }},
    })
}

/// Keys that the Model Optimizer writes into `config.json`, some of them replaced.
fn modelopt(own: &Value) -> Value {
    let floats = json!({"dynamic": false, "num_bits": 8, "type": "float"});
    let plain = json!({
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "ignore": ["lm_head", "model.layers.*.mlp.gate"],
        "kv_cache_scheme": floats,
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": floats, "input_activations": floats,
        }},
    });
    with(plain, own)
}

#[test]
fn blocks_rows_and_whole_matrices_have_scales() {
    let fp8 = |own: Value| with(json!({"quant_method": "fp8", "fmt": "e4m3"}), &own);
    for (quantization, expected) in [
        (
            fp8(json!({"weight_block_size": [128, 128], "activation_scheme": "dynamic"})),
            Some([128, 128]),
        ),
        (
            fp8(
                json!({"weight_block_size": [64, 256], "scale_fmt": "ue8m0", "ignored_layers": null}),
            ),
            Some([64, 256]),
        ),
        (
            fp8(
                json!({"weight_block_size": null, "activation_scheme": "static",
                "modules_to_not_convert": ["lm_head"]}),
            ),
            None,
        ),
        (compressed(&json!({})), None),
        (compressed(&json!({"strategy": "tensor"})), None),
        (
            compressed(&json!({"strategy": "block", "block_structure": [128, 128]})),
            Some([128, 128]),
        ),
        (modelopt(&json!({})), None),
        (
            modelopt(&json!({"quant_algo": "fp8_per_channel_per_token"})),
            None,
        ),
        (
            modelopt(&json!({"quant_algo": "FP8_PB_WO", "group_size": 128, "config_groups": null})),
            Some([128, 128]),
        ),
    ] {
        assert_eq!(block(&quantization), expected, "{quantization}");
    }
}

#[test]
fn what_is_not_served_is_refused_by_name() {
    let of_group = |own: Value| {
        let mut all = compressed(&json!({}));
        let group = all["config_groups"]["group_0"].take();
        all["config_groups"]["group_0"] = with(group, &own);
        all
    };
    let fp8 = |own: Value| with(json!({"quant_method": "fp8"}), &own);
    for (quantization, key) in [
        (
            json!({"quant_method": "hqq", "bits": 4}),
            "`quantization_config.quant_method` is \"hqq\"",
        ),
        (
            json!({"bits": 4}),
            "`quantization_config.quant_method` is absent",
        ),
        (
            json!({"quant_method": 8}),
            "`quantization_config.quant_method`",
        ),
        (json!([1]), "`quantization_config`"),
        (fp8(json!({"fmt": "e5m2"})), "`quantization_config.fmt`"),
        (
            fp8(json!({"weight_block_size": [128]})),
            "`quantization_config.weight_block_size`",
        ),
        (
            fp8(json!({"weight_block_size": [0, 128]})),
            "`quantization_config.weight_block_size`",
        ),
        (
            fp8(json!({"weight_block_size": 128})),
            "`quantization_config.weight_block_size`",
        ),
        (
            fp8(json!({"activation_scheme": "odd"})),
            "`quantization_config.activation_scheme`",
        ),
        (
            fp8(json!({"rotated": true})),
            "`quantization_config.rotated`",
        ),
        (
            fp8(json!({"scale_fmt": "odd"})),
            "`quantization_config.scale_fmt`",
        ),
        (
            fp8(json!({"modules_to_not_convert": "lm_head"})),
            "`quantization_config.modules_to_not_convert`",
        ),
        (compressed(&json!({"num_bits": 4})), "weights.num_bits`"),
        (compressed(&json!({"type": "int"})), "weights.type`"),
        (
            compressed(&json!({"strategy": "group", "group_size": 32})),
            "weights.group_size`",
        ),
        (
            compressed(&json!({"strategy": "group"})),
            "weights.strategy`",
        ),
        (
            compressed(&json!({"strategy": "block"})),
            "weights.block_structure`",
        ),
        (
            compressed(&json!({"symmetric": false})),
            "weights.symmetric`",
        ),
        (
            compressed(&json!({"actorder": "group"})),
            "weights.actorder`",
        ),
        (of_group(json!({"weights": null})), "group_0.weights`"),
        (
            of_group(json!({"format": "nvfp4-pack-quantized"})),
            "group_0.format`",
        ),
        (
            with(compressed(&json!({})), &json!({"format": "marlin-24"})),
            "config.format`",
        ),
        (
            with(
                compressed(&json!({})),
                &json!({"transform_config": {"a": 1}}),
            ),
            "`quantization_config.transform_config`",
        ),
        (
            with(
                compressed(&json!({})),
                &json!({"sparsity_config": {"format": "dense"}}),
            ),
            "`quantization_config.sparsity_config`",
        ),
        (
            with(
                compressed(&json!({})),
                &json!({"quantization_status": "frozen"}),
            ),
            "`quantization_config.quantization_status`",
        ),
        (
            with(compressed(&json!({})), &json!({"config_groups": {}})),
            "`quantization_config",
        ),
    ] {
        let error = load(&quantization).expect_err("refused");
        assert!(error.contains(key), "{key}: {error}");
    }
}

/// Tensors by their types, all of them `[2, 2]` but norms.
fn write(dir: &TempDir, tensors: &[(&str, &str)]) {
    let (mut header, mut end) = (Map::new(), 0);
    for (name, dtype) in tensors {
        let begin = end;
        let shape = if name.contains("norm") {
            vec![2]
        } else {
            vec![2, 2]
        };
        let elements: usize = shape.iter().product();
        end += elements * if *dtype == "BF16" { 2 } else { 1 };
        let place = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]});
        header.insert((*name).to_owned(), place);
    }
    let text = Value::from(header).to_string();
    let length = (text.len() as u64).to_le_bytes();
    let file = [&length[..], text.as_bytes(), &vec![0; end]].concat();
    std::fs::write(dir.path().join("model.safetensors"), file).expect("written");
}

/// The lists of exceptions in `config.json` do not count, whatever the tool that wrote them.
#[test]
fn tensors_say_which_projections_are_floats() {
    for quantization in [
        json!({"quant_method": "fp8", "modules_to_not_convert": ["down_proj"]}),
        with(
            compressed(&json!({})),
            &json!({"ignore": ["re:.*down_proj", "model.layers.0.mlp.down_proj", "Linear"]}),
        ),
        modelopt(&json!({"ignore": ["model.layers.*.mlp.down_proj*"]})),
    ] {
        let dir = model(&quantization);
        write(
            &dir,
            &[
                ("lm_head.weight", "BF16"),
                ("model.embed_tokens.weight", "BF16"),
                ("model.layers.0.input_layernorm.weight", "BF16"),
                ("model.layers.0.mlp.down_proj.weight", "F8_E4M3"),
                ("model.layers.1.mlp.down_proj.weight", "F8_E4M3"),
                ("model.layers.1.mlp.up_proj.weight", "BF16"),
                ("model.layers.1.self_attn.o_proj.weight", "BF16"),
                ("model.visual.layers.0.proj.weight", "BF16"),
            ],
        );
        let model = crate::load(dir.path()).expect("served");
        let CheckpointFormat::Fp8(fp8) = model.checkpoint else {
            panic!("it is FP8");
        };
        assert_eq!(fp8.floats, ["1.mlp.up_proj", "1.self_attn.o_proj"]);
    }
}

/// Scales that an engine needs only if it rounds inputs or caches as the checkpoint allows.
#[test]
fn scales_that_are_not_used_are_named() {
    let dir = model(&modelopt(&json!({})));
    let projection = "model.layers.0.mlp.down_proj";
    let inputs = [0, 1].map(|layer| format!("model.layers.{layer}.mlp.down_proj.input_scale"));
    write(
        &dir,
        &[
            (&format!("{projection}.weight"), "F8_E4M3"),
            (&inputs[0], "BF16"),
            (&inputs[1], "BF16"),
            ("model.layers.0.self_attn.k_proj.k_scale", "BF16"),
        ],
    );
    let notes = |dir: &TempDir| {
        let described = crate::Described::of(dir.path()).expect("served");
        described.with_names().expect("served").notes
    };
    let found = notes(&dir);
    let said = |parts: &[&str]| {
        let fits = |note: &&String| parts.iter().all(|part| note.contains(part));
        assert_eq!(found.iter().filter(fits).count(), 1, "{parts:?}: {found:?}");
    };
    said(&["scales of inputs", "2 tensors", &inputs[0], "not used"]);
    said(&["scales of keys and values", "1 tensors", "--kv-cache-dtype"]);
    write(&dir, &[("model.layers.0.mlp.down_proj.weight", "F8_E4M3")]);
    assert!(!notes(&dir).iter().any(|note| note.contains("not used")));
}

/// The exceptions among stacks of experts are floats. Other tensors do not count.
#[test]
fn tensors_say_which_stacks_are_floats() {
    let dir = tempfile::tempdir().expect("a folder");
    let stack = |layer: usize, name: &str, dtype: &str, shape: &[usize]| {
        let name = format!("model.layers.{layer}.{name}");
        let bytes = shape.iter().product::<usize>() * if dtype == "U8" { 1 } else { 2 };
        (name, dtype.to_owned(), shape.to_vec(), bytes)
    };
    let tensors = [
        stack(0, "mlp.experts.gate_up_proj_blocks", "U8", &[2, 4, 1, 16]),
        stack(0, "mlp.experts.gate_up_proj_scales", "U8", &[2, 4, 1]),
        stack(0, "mlp.experts.gate_up_proj_bias", "BF16", &[2, 4]),
        stack(1, "mlp.experts.down_proj", "BF16", &[2, 2, 4]),
        stack(1, "self_attn.q_proj.weight", "BF16", &[4, 4]),
    ];
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, dtype, shape, bytes) in tensors {
        let place = json!({"dtype": dtype, "shape": shape, "data_offsets": [end, end + bytes]});
        header.insert(name, place);
        end += bytes;
    }
    let text = Value::from(header).to_string();
    let file = [
        &(text.len() as u64).to_le_bytes()[..],
        text.as_bytes(),
        &vec![0; end],
    ]
    .concat();
    std::fs::write(dir.path().join("model.safetensors"), file).expect("written");
    let mut found = crate::load(folder(&llama(), None).path()).expect("served");
    found.path = dir.path().to_owned();
    found.checkpoint = CheckpointFormat::Mxfp4(Mxfp4Checkpoint { floats: Vec::new() });
    assert!(super::read_stored(&mut found).is_empty());
    let floats = vec!["1.mlp.experts.down_proj".to_owned()];
    assert_eq!(
        found.checkpoint,
        CheckpointFormat::Mxfp4(Mxfp4Checkpoint { floats })
    );
}

#[test]
fn a_wrapper_may_say_it_for_its_text_model() {
    let quantization = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    let text = with(llama(), &json!({"architectures": "(absent)"}));
    for (inner, outer) in [
        (json!({ "quantization_config": quantization }), json!({})),
        (json!({}), json!({ "quantization_config": quantization })),
    ] {
        let wrapper = json!({"architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava", "text_config": with(text.clone(), &inner)});
        let dir = folder(&with(wrapper, &outer), None);
        let model = crate::load(dir.path()).expect("served");
        assert!(matches!(model.checkpoint, CheckpointFormat::Fp8(_)));
    }
}
