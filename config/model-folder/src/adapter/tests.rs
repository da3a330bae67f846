use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{DescribedAdapter, load};

/// A configuration as PEFT writes it, with these keys beside the usual ones.
fn config(more: Value) -> Value {
    let mut config = json!({
        "peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"],
        "bias": "none", "use_dora": false, "modules_to_save": null, "loftq_config": {},
        "init_lora_weights": true, "inference_mode": true, "task_type": "CAUSAL_LM",
        "megatron_core": "megatron.core", "qalora_group_size": 16, "lora_dropout": 0.05,
    });
    let Value::Object(more) = more else {
        panic!("an object");
    };
    config.as_object_mut().unwrap().extend(more);
    config
}

/// A tensor of zeros: its name, type and shape.
type Tensor<'a> = (&'a str, &'a str, [usize; 2]);

/// A file of tensors of zeros.
fn tensors(tensors: &[Tensor<'_>]) -> Vec<u8> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, dtype, shape) in tensors {
        let each = if *dtype == "F32" || *dtype == "I32" {
            4
        } else {
            2
        };
        let first = end;
        end += each * shape[0] * shape[1];
        let place = json!({"dtype": dtype, "shape": shape, "data_offsets": [first, end]});
        header.insert((*name).to_owned(), place);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(file.len() + end, 0);
    file
}

fn folder(config: &Value, file: &[u8]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("adapter_config.json"),
        config.to_string(),
    )
    .unwrap();
    fs::write(folder.path().join("adapter_model.safetensors"), file).unwrap();
    folder
}

fn read(config: &Value, pairs: &[Tensor<'_>]) -> Result<DescribedAdapter, String> {
    let folder = folder(config, &tensors(pairs));
    load(folder.path()).map_err(|error| error.to_string())
}

const QUERY: [Tensor<'_>; 2] = [
    (
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
        "BF16",
        [2, 8],
    ),
    (
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
        "BF16",
        [4, 2],
    ),
];

/// Newer names have no prefix, some older ones the adapter's name.
#[test]
fn names_of_all_ages_are_read() {
    for (prefix, name) in [
        ("base_model.model.", ""),
        ("base_model.model.", ".default"),
        ("", ""),
        ("", ".default"),
    ] {
        let name =
            |side| format!("{prefix}model.layers.0.self_attn.q_proj.lora_{side}{name}.weight");
        let (down, up) = (name("A"), name("B"));
        let pairs = [(&*down, "F32", [2, 8]), (&*up, "F16", [4, 2])];
        let read = read(&config(json!({})), &pairs).unwrap();
        let module = &read.modules["model.layers.0.self_attn.q_proj"];
        assert_eq!(read.modules.len(), 1);
        assert_eq!((&module.down, &module.up), (&down, &up));
        assert_eq!((module.rank, module.scale), (2, 3.0));
    }
}

/// The factor is alpha over the rank, or over its root, each with the patterns of the module: first
/// ones count, and they are compared with whole parts of names.
#[test]
fn factors_follow_ranks_alphas_and_patterns() {
    let scale = |module: &str, rank: usize, more: Value| {
        let name = |side| format!("base_model.model.{module}.lora_{side}.weight");
        let (down, up) = (name("A"), name("B"));
        let pairs = [(&*down, "BF16", [rank, 8]), (&*up, "BF16", [4, rank])];
        let read = read(&config(more), &pairs)?;
        Ok::<_, String>(read.modules[module].scale)
    };
    let query = "model.layers.11.self_attn.q_proj";
    let root = |rank: f64| (6.0 / rank.sqrt()) as f32;
    for (rank, more, expected) in [
        (2, json!({}), 3.0),
        (2, json!({"use_rslora": true}), root(2.0)),
        (5, json!({"rank_pattern": {"q_proj": 5}}), 6.0 / 5.0),
        (
            5,
            json!({"rank_pattern": {"q_proj": 5}, "use_rslora": true}),
            root(5.0),
        ),
        (2, json!({"alpha_pattern": {"self_attn.q_proj": 1.5}}), 0.75),
        (2, json!({"alpha_pattern": {"1.self_attn.q_proj": 1}}), 3.0),
        (
            2,
            json!({"alpha_pattern": {"^model.layers.11.self_attn.q_proj": 1}}),
            0.5,
        ),
        (
            2,
            json!({"alpha_pattern": {"^layers.11.self_attn.q_proj": 1}}),
            3.0,
        ),
        (
            2,
            json!({"alpha_pattern": {"proj": 1, "q_proj": 4, "self_attn.q_proj": 2}}),
            2.0,
        ),
        (
            3,
            json!({"rank_pattern": {"layers.11.self_attn.q_proj": 3, "q_proj": 5}, "alpha_pattern": {"q_proj": 1}}),
            1.0 / 3.0,
        ),
    ] {
        assert_eq!(scale(query, rank, more.clone()), Ok(expected), "{more}");
    }
    let other = scale(query, 4, json!({"rank_pattern": {"q_proj": 5}})).unwrap_err();
    assert!(
        other.contains("is 5 for model.layers.11.self_attn.q_proj, whose matrices have rank 4")
    );
}

/// All that would change the result is refused by its name.
#[test]
fn other_adapters_are_refused_by_name() {
    for (more, words) in [
        (
            json!({"use_dora": true}),
            "`use_dora` is true, which is not served: merge",
        ),
        (json!({"modules_to_save": ["lm_head"]}), "`modules_to_save`"),
        (json!({"lora_bias": true}), "`lora_bias`"),
        (json!({"bias": "all"}), "`bias` is \"all\""),
        (
            json!({"trainable_token_indices": [7]}),
            "`trainable_token_indices`",
        ),
        (
            json!({"layer_replication": [[0, 2], [1, 3]]}),
            "`layer_replication`",
        ),
        (
            json!({"alora_invocation_tokens": [1, 2]}),
            "`alora_invocation_tokens`",
        ),
        (json!({"fan_in_fan_out": true}), "`fan_in_fan_out`"),
        (json!({"use_qalora": true}), "`use_qalora`"),
        (
            json!({"target_parameters": ["experts"]}),
            "`target_parameters`",
        ),
        (
            json!({"init_lora_weights": "pissa"}),
            "`init_lora_weights` is \"pissa\"",
        ),
        (
            json!({"init_lora_weights": "pissa_niter_16"}),
            "`init_lora_weights`",
        ),
        (json!({"init_lora_weights": "olora"}), "`init_lora_weights`"),
        (json!({"init_lora_weights": "corda"}), "`init_lora_weights`"),
        (json!({"init_lora_weights": "loftq"}), "`init_lora_weights`"),
        (json!({"loftq_config": {"loftq_bits": 4}}), "`loftq_config`"),
        (json!({"peft_type": "IA3"}), "`peft_type` is \"IA3\""),
        (json!({"peft_type": null}), "`peft_type` is missing"),
        (
            json!({"an_option_of_next_year": 3}),
            "`an_option_of_next_year` is 3",
        ),
        (json!({"r": 0}), "`r` is 0"),
        (json!({"lora_alpha": -1}), "`lora_alpha`"),
        (
            json!({"r": 3}),
            "`r` is 3 for model.layers.0.self_attn.q_proj, whose",
        ),
        (
            json!({"rank_pattern": {"(q|k)_proj": 2}}),
            "`rank_pattern` has the key (q|k)_proj",
        ),
        (
            json!({"alpha_pattern": {"q_proj": 0}}),
            "`alpha_pattern` is 0 for q_proj",
        ),
        (
            json!({"target_modules": ["v_proj"]}),
            "`target_modules` leaves out model.layers.0",
        ),
        (
            json!({"exclude_modules": ["q_proj"]}),
            "`exclude_modules` leaves out",
        ),
        (
            json!({"layers_to_transform": [1, 2]}),
            "`layers_to_transform` leaves out",
        ),
    ] {
        let error = read(&config(more.clone()), &QUERY).unwrap_err();
        assert!(error.contains(words), "{more}: {error}");
        assert!(error.contains("adapter_config.json"), "{error}");
    }
    for more in [
        json!({"target_modules": "all-linear"}),
        json!({"layers_to_transform": 0, "init_lora_weights": "gaussian"}),
        json!({"init_lora_weights": "eva", "eva_config": {"rho": 2.0}}),
    ] {
        assert!(read(&config(more.clone()), &QUERY).is_ok(), "{more}");
    }
}

#[test]
fn tensors_of_nothing_served_are_refused_by_name() {
    let prefix = "base_model.model.model.layers.0.self_attn.q_proj";
    let embedding = "base_model.model.model.embed_tokens";
    for (name, words) in [
        (format!("{prefix}.lora_magnitude_vector"), "belongs to DoRA"),
        (format!("{prefix}.lora_B.bias"), "is a bias of an adapter"),
        (
            format!("{embedding}.lora_embedding_A"),
            "adds to an embedding",
        ),
        (format!("{prefix}.weight"), "whole tensors beside adapters"),
        (
            "base_model.model.lm_head.weight".to_owned(),
            "whole tensors beside adapters",
        ),
        (
            format!("{prefix}.lora_A.other.weight"),
            "is no lora_A or lora_B",
        ),
    ] {
        let all = [QUERY[0], QUERY[1], (&*name, "F32", [2, 2])];
        let error = read(&config(json!({})), &all).unwrap_err();
        assert!(
            error.contains(words) && error.contains(&name),
            "{name}: {error}"
        );
    }
    let (down, up) = (QUERY[0].0, QUERY[1].0);
    let twice = down.replace("lora_A", "lora_A.default");
    for (all, words) in [
        (vec![QUERY[0]], "has no partner"),
        (vec![(down, "I32", [2, 8]), QUERY[1]], "is I32"),
        (vec![QUERY[0], (up, "BF16", [4, 3])], "they have no rank"),
        (
            vec![QUERY[0], QUERY[1], (&*twice, "BF16", [2, 8])],
            "is the same matrix as",
        ),
        (vec![], "it has no tensors"),
    ] {
        let error = read(&config(json!({})), &all).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn missing_and_damaged_files_are_named() {
    let empty = tempfile::tempdir().unwrap();
    let error = load(empty.path()).unwrap_err().to_string();
    assert!(
        error.contains("adapter_config.json") && error.contains("PEFT"),
        "{error}"
    );
    let only = tempfile::tempdir().unwrap();
    let text = config(json!({})).to_string();
    fs::write(only.path().join("adapter_config.json"), text).unwrap();
    let error = load(only.path()).unwrap_err().to_string();
    assert!(
        error.contains("adapter_model.safetensors: there is no such file"),
        "{error}"
    );
    fs::write(only.path().join("adapter_model.bin"), "pickle").unwrap();
    let error = load(only.path()).unwrap_err().to_string();
    assert!(error.contains("safe_serialization"), "{error}");
    let whole = tensors(&QUERY);
    let cut = folder(&config(json!({})), &whole[..whole.len() - 1]);
    let error = load(cut.path()).unwrap_err().to_string();
    assert!(error.contains("it is damaged"), "{error}");
}
