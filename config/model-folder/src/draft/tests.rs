mod dflash;
mod nextn;
mod norms;

use std::path::Path;

use lockstep_types::{ConfigError, DraftKind, DraftModel, Eagle3Norms, ModelConfig};
use serde_json::{Value, json};

use crate::testing::{Head, folder, head, llama, tensor_names, with};

/// The small Llama with `layers` layers.
fn target(layers: usize) -> ModelConfig {
    let config = with(llama(), &json!({"num_hidden_layers": layers}));
    crate::load(folder(&config, None).path()).expect("a served model")
}

fn eagle3(layers: usize, changes: &Value) -> Result<Vec<usize>, String> {
    let dir = head(Head::Eagle3, changes);
    let draft = crate::draft::eagle3(dir.path(), &target(layers)).map_err(|e| e.to_string())?;
    match draft.kind {
        DraftKind::Eagle3 {
            draft_vocab_size,
            capture_layers,
            norms,
        } => {
            assert_eq!(norms, Eagle3Norms::default());
            let wanted = changes.get("draft_vocab_size").map_or(50, |_| 100);
            assert_eq!(draft_vocab_size, wanted);
            Ok(capture_layers)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn captured_layers_are_safeailabs_unless_they_are_named() {
    let none = json!({});
    // (layers of the target, changes, layers whose input is captured)
    for (layers, changes, expected) in [
        (7, none.clone(), [2, 3, 4]),
        (16, none.clone(), [2, 8, 13]),
        (32, none, [2, 16, 29]),
        (7, json!({"draft_vocab_size": "(absent)"}), [2, 3, 4]),
        // Numbers of layers whose input is captured.
        (
            4,
            json!({"eagle_aux_hidden_state_layer_ids": [0, 2, 3]}),
            [0, 2, 3],
        ),
        // Numbers of layers whose output is captured.
        (
            6,
            json!({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 4],
                   "use_aux_hidden_state": true}}),
            [2, 3, 5],
        ),
        (9, json!({"eagle_config": {}}), [2, 4, 6]),
    ] {
        let found = eagle3(layers, &changes);
        assert_eq!(found.as_deref(), Ok(&expected[..]), "{layers} {changes}");
    }
}

#[test]
fn heads_that_do_not_fit_say_so() {
    const IDS: &str = "eagle_aux_hidden_state_layer_ids";
    for (layers, changes, names) in [
        (6, json!({}), ["2, n / 2 and n - 3", "at least 7 layers"]),
        (2, json!({}), ["target's 2 layers", IDS]),
        (7, json!({IDS: [1, 2]}), [IDS, "three layers"]),
        (7, json!({IDS: [3, 2, 1]}), [IDS, "ascending"]),
        (7, json!({IDS: [1, 2, 7]}), [IDS, "the target's 7"]),
        (
            7,
            json!({"eagle_config": {IDS: [1, 2, 6]}}),
            ["eagle_config.", "the target's 7"],
        ),
        (
            7,
            json!({"eagle_config": {"use_aux_hidden_state": false}}),
            ["use_aux_hidden_state", "three layers"],
        ),
        (7, json!({"hidden_size": 128}), ["hidden size of 128", "64"]),
        (
            7,
            json!({"target_hidden_size": 96}),
            ["hidden size of 96", "64"],
        ),
        (7, json!({"vocab_size": 101}), ["vocabulary of 101", "100"]),
        (
            7,
            json!({"num_hidden_layers": 2}),
            ["num_hidden_layers", "one layer"],
        ),
        (
            7,
            json!({"draft_vocab_size": 101}),
            ["draft_vocab_size", "100"],
        ),
        (
            7,
            json!({"eagle_config": {"use_last_layernorm": false}}),
            ["eagle_config.use_last_layernorm", "norms"],
        ),
        (
            7,
            json!({"speculators_config": {}}),
            ["speculators_config", "layout"],
        ),
    ] {
        let error = eagle3(layers, &changes).expect_err("does not fit");
        for name in names.iter().chain(&["--speculative-draft-model-path"]) {
            assert!(
                error.contains(name),
                "{changes}: {name:?} is not in: {error}"
            );
        }
    }
}

#[test]
fn eagle3_is_refused_where_the_residual_stream_has_a_factor() {
    let own = json!({"architectures": ["GraniteForCausalLM"], "num_hidden_layers": 7,
        "model_type": "(absent)", "residual_multiplier": 0.22});
    let granite = folder(&with(llama(), &own), None);
    let granite = crate::load(granite.path()).expect("a served model");
    let dir = head(Head::Eagle3, &json!({}));
    let error = crate::draft::eagle3(dir.path(), &granite).expect_err("refused");
    let error = error.to_string();
    for part in ["Granite models", "factor", "--speculative-algorithm"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

type Load = fn(&Path, &ModelConfig) -> Result<DraftModel, ConfigError>;

const LOADS: [(Head, Load, &str); 4] = [
    (Head::Model, crate::draft::whole_model, "STANDALONE"),
    (Head::Eagle, crate::draft::eagle, "EAGLE "),
    (Head::Eagle3, crate::draft::eagle3, "EAGLE3"),
    (Head::Dflash, crate::draft::dflash, "DFLASH"),
];

#[test]
fn a_folder_of_another_kind_names_its_algorithm() {
    for (kind, _, algorithm) in LOADS {
        let dir = head(kind, &json!({}));
        for (wanted, load, _) in LOADS {
            let loaded = load(dir.path(), &target(7));
            if wanted == kind {
                let model = loaded.expect("the right kind").model;
                assert_eq!((model.vocab_size, model.layers.len()), (100, 1));
                continue;
            }
            let error = loaded.expect_err("another kind").to_string();
            assert!(error.contains(algorithm), "{kind:?} as {wanted:?}: {error}");
        }
    }
}

/// Public heads have the architecture's name of a whole model.
#[test]
fn the_tensors_tell_the_kind_and_not_the_name() {
    let plain = json!({"architectures": ["LlamaForCausalLM"]});
    assert_eq!(eagle3(7, &plain).as_deref(), Ok(&[2, 3, 4][..]));
    let of_target = json!({"layer_types": vec!["full_attention"; 36]});
    assert_eq!(eagle3(7, &of_target).as_deref(), Ok(&[2, 3, 4][..]));
    for names in [
        ["layers.0.hidden_norm.weight", "fc.weight"],
        ["model.midlayer.mlp.up_proj.weight", "model.fc.weight"],
    ] {
        let dir = head(Head::Eagle3, &plain);
        tensor_names(dir.path(), &names);
        crate::draft::eagle3(dir.path(), &target(7)).expect("an EAGLE-3 head");
    }
    // Tables in a head's folder are the head's own.
    for (vocab, names, own) in [
        (50, vec!["d2t", "lm_head.weight"], (false, true)),
        (50, vec!["d2t"], (false, true)),
        (100, vec!["hidden_norm.weight"], (false, false)),
        (
            100,
            vec!["d2t", "lm_head.weight", "embed_tokens.weight"],
            (true, true),
        ),
    ] {
        let dir = head(Head::Eagle3, &json!({"draft_vocab_size": vocab}));
        tensor_names(dir.path(), &names);
        let draft = crate::draft::eagle3(dir.path(), &target(7)).expect("an EAGLE-3 head");
        assert_eq!((draft.own_embedding, draft.own_head), own, "{names:?}");
    }
    let dir = head(Head::Eagle, &json!({"qkv_bias": true}));
    let index = json!({"weight_map": {"fc.weight": "a", "layers.0.mlp.up_proj.weight": "b"}});
    let path = dir.path().join("model.safetensors.index.json");
    std::fs::write(path, index.to_string()).expect("written");
    std::fs::remove_file(dir.path().join("model.safetensors")).expect("removed");
    let model = crate::draft::eagle(dir.path(), &target(7))
        .expect("a head")
        .model;
    let attention = model.layers[0].attention().unwrap();
    assert!(attention.qkv_bias && !attention.output_bias);
}

/// The rule is that of a model that is served itself.
#[test]
fn a_draft_models_stored_output_head_is_its_head() {
    let dir = head(Head::Model, &json!({}));
    for (bytes, tied) in [([1, 2, 1, 2], true), ([1, 2, 1, 3], false)] {
        let table = |begin: usize| json!({"dtype": "BF16", "shape": [1, 1], "data_offsets": [begin, begin + 2]});
        let header = json!({"model.embed_tokens.weight": table(0), "lm_head.weight": table(2)});
        let header = header.to_string();
        let length = (header.len() as u64).to_le_bytes();
        let file = [&length, header.as_bytes(), &bytes].concat();
        std::fs::write(dir.path().join("model.safetensors"), file).expect("written");
        let draft = crate::draft::whole_model(dir.path(), &target(2)).expect("a model");
        assert_eq!(draft.model.tie_word_embeddings, tied);
    }
}

#[test]
fn files_that_are_missing_or_damaged_are_named() {
    let dir = head(Head::Eagle, &json!({}));
    let error = |dir: &Path| {
        crate::draft::eagle(dir, &target(7))
            .expect_err("damaged")
            .to_string()
    };
    let weights = dir.path().join("model.safetensors");
    for bytes in [
        &[][..],
        &[1, 2, 3],
        &[255; 8],
        &[2, 0, 0, 0, 0, 0, 0, 0, b'{', b'x'],
    ] {
        std::fs::write(&weights, bytes).expect("written");
        assert!(error(dir.path()).contains("--speculative-draft-model-path"));
    }
    std::fs::remove_file(&weights).expect("removed");
    assert!(error(dir.path()).contains("no model.safetensors"));
    std::fs::write(dir.path().join("pytorch_model.bin"), "").expect("written");
    assert!(error(dir.path()).contains("safetensors.torch.save_file"));
    let missing = error(&dir.path().join("nowhere"));
    assert!(missing.contains("config.json"), "{missing}");
    assert!(!missing.contains("--model-path"), "{missing}");
}

#[test]
fn a_draft_models_tokens_are_the_targets() {
    let tokenizer = |vocab: Value, added: &str, merges: &str| {
        json!({
            "model": {"vocab": vocab, "merges": [merges]},
            "added_tokens": [{"id": 2, "content": added, "special": true}],
        })
        .to_string()
    };
    let own = tokenizer(json!({"a": 0, "b": 1}), "<end>", "a b");
    let target_dir = folder(&llama(), None);
    let target = crate::load(target_dir.path()).expect("a served model");
    let draft = head(Head::Model, &json!({}));
    let load = |text: &str| {
        std::fs::write(draft.path().join("tokenizer.json"), text).expect("written");
        crate::draft::whole_model(draft.path(), &target).map_err(|error| error.to_string())
    };
    load("{}").expect("the target has none to compare with");
    std::fs::write(target_dir.path().join("tokenizer.json"), &own).expect("written");
    load(&own).expect("the same");
    load(&tokenizer(json!({"b": 1, "a": 0}), "<end>", "b a")).expect("the same numbers");
    for other in [
        tokenizer(json!({"a": 1, "b": 0}), "<end>", "a b"),
        tokenizer(json!({"a": 0, "b": 1}), "<stop>", "a b"),
    ] {
        let error = load(&other).expect_err("other tokens");
        assert!(error.contains("not the target's"), "{error}");
    }
    let listed = json!([["a", 0.0], ["b", -1.5]]);
    load(&tokenizer(listed, "<end>", "a b")).expect("a list's places are numbers");
    // A file that would take many times its bytes is no tokenizer.
    for damaged in [
        "{",
        r#"{"added_tokens": [[],[]]}"#,
        r#"{"model": {"vocab": [[],[]]}}"#,
        r#"{"model": {"vocab": {"a": []}}}"#,
    ] {
        let error = load(damaged).expect_err("damaged");
        assert!(error.contains("tokenizer.json"), "{damaged}: {error}");
    }
    let larger = head(Head::Model, &json!({"vocab_size": 120}));
    let error = crate::draft::whole_model(larger.path(), &target).expect_err("larger");
    assert!(
        error.to_string().contains("120 tokens and the target 100"),
        "{error}"
    );
}
