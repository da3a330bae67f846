use std::path::{Path, PathBuf};

use lockstep_types::{DraftKind, ExpertTensors, LoadFormat, Mlp, ModelConfig};

use crate::testing::{folder, llama, tensor_names};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures")
        .join(name)
}

fn model(folder: &Path) -> ModelConfig {
    crate::load(folder).expect("a served model")
}

#[test]
fn a_draft_layer_follows_the_last_layer() {
    let target = model(&fixture("nextn/glm4_moe"));
    for path in [None, Some(target.path.as_path())] {
        let draft = crate::draft::nextn(path, &target).expect("a draft layer");
        assert!(draft.is_in_target() && !draft.own_embedding && !draft.own_head);
        let [layer] = &draft.model.layers[..] else {
            panic!("{} layers", draft.model.layers.len());
        };
        assert!(matches!(layer.mlp, Mlp::Experts(_)), "not the first layer");
        let DraftKind::Nextn { names } = draft.kind else {
            panic!("{:?}", draft.kind);
        };
        let [names] = &names[..] else {
            panic!("{names:?}");
        };
        assert_eq!(names.layer, "model.layers.3");
        assert_eq!(names.projection, "model.layers.3.eh_proj");
        assert_eq!(names.norm, "model.layers.3.shared_head.norm");
    }
}

/// It is like the model's last layer with attention, whatever that model's last layer is.
#[test]
fn a_draft_layer_lies_beside_a_recurrent_model() {
    let target = model(&fixture("nextn/qwen3_5"));
    let draft = crate::draft::nextn(None, &target).expect("a draft layer");
    let [layer] = &draft.model.layers[..] else {
        panic!("{} layers", draft.model.layers.len());
    };
    assert_eq!(layer, &target.layers[3]);
    assert!(layer.attention().is_some_and(|own| own.output_gate));
    assert!(!draft.model.has_states() && target.has_states());
    let DraftKind::Nextn { names } = draft.kind else {
        panic!("{:?}", draft.kind);
    };
    let [names] = &names[..] else {
        panic!("{names:?}");
    };
    assert_eq!(names.layer, "mtp.layers.0");
    assert_eq!(names.hidden_norm, "mtp.pre_fc_norm_hidden");
    let described = |name: &str| crate::Described::of(&fixture(name)).expect("a model");
    assert!(described("nextn/qwen3_5").own_draft);
    assert!(!described("architectures/qwen3_5_moe_wrapped").own_draft);
}

/// Published models have stacks of experts, and single experts in the draft layer, or the reverse.
#[test]
fn experts_of_a_draft_layer_are_found_in_their_own_form() {
    const SINGLE: &str = "mlp.experts.0.gate_proj.weight";
    const STACKED: &str = "mlp.experts.gate_up_proj";
    let config = std::fs::read(fixture("architectures/qwen3_5_moe/config.json")).expect("a file");
    let mut config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    config["mtp_num_hidden_layers"] = 1.into();
    for (own, draft) in [(STACKED, SINGLE), (SINGLE, STACKED), (STACKED, STACKED)] {
        let dir = folder(&config, None);
        let names = (0..3).map(|layer| format!("model.layers.{layer}.{own}"));
        let joints = ["mtp.fc.weight".to_owned(), format!("mtp.layers.0.{draft}")];
        let names: Vec<String> = names.chain(joints).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        tensor_names(dir.path(), &names);
        let described = crate::Described::of(dir.path()).expect("a model");
        let target = described.with_names().expect("names").model;
        let model = crate::draft::nextn(None, &target)
            .expect("a draft layer")
            .model;
        let stacked = |model: &ModelConfig| match &model.layers[0].mlp {
            Mlp::Experts(spec) => matches!(spec.names.experts, ExpertTensors::Stacked { .. }),
            _ => panic!("no experts"),
        };
        assert_eq!(stacked(&target), own == STACKED);
        assert_eq!(stacked(&model), draft == STACKED);
    }
}

#[test]
fn models_without_a_draft_layer_say_so() {
    let refused = |path: Option<&Path>, target: &ModelConfig, names: &[&str]| {
        let error = crate::draft::nextn(path, target).expect_err("no draft layer");
        let error = error.to_string();
        for name in names {
            assert!(error.contains(name), "{name:?} is not in: {error}");
        }
    };
    let plain = folder(&llama(), None);
    let names = ["NEXTN", "this one has none", "Glm4Moe", "or none"];
    refused(None, &model(plain.path()), &names);
    // A copy that leaves the layer out.
    let names = ["NEXTN", "model.layers.3.eh_proj", "leaves the layer out"];
    refused(None, &model(&fixture("architectures/glm4_moe")), &names);
    let target = model(&fixture("nextn/glm4_moe"));
    let names = ["--speculative-draft-model-path", "own folder"];
    refused(Some(plain.path()), &target, &names);
    let several = |count: usize| {
        let text = std::fs::read(target.path.join("config.json")).expect("a file");
        let mut config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        config["num_nextn_predict_layers"] = count.into();
        folder(&config, None)
    };
    let none = several(0);
    refused(None, &model(none.path()), &["this one has none"]);
    // A copy that leaves the second of its layers out.
    let two = several(2);
    tensor_names(two.path(), &["model.layers.3.eh_proj.weight"]);
    let names = ["model.layers.4.eh_proj", "leaves the layer out"];
    refused(None, &model(two.path()), &names);
    // Weights that are made up are those of all layers that config.json tells of.
    let three = several(3);
    let made_up = ModelConfig {
        load_format: LoadFormat::Dummy,
        ..model(three.path())
    };
    let draft = crate::draft::nextn(None, &made_up).expect("three draft layers");
    assert_eq!(draft.layers_in_turn(), 3);
    let many = several(17);
    let names = ["num_nextn_predict_layers", "at most 16"];
    refused(None, &model(many.path()), &names);
}

fn weight(name: &str) -> String {
    format!("{name}.weight")
}

/// Layers of GLM and DeepSeek have all tensors for themselves, those of Qwen share the projection
/// and norms. A second layer drafts too if `config.json` does not tell of it: drafting with the
/// first alone would draft worse and say nothing.
#[test]
fn several_draft_layers_are_found() {
    for (name, first, second) in [
        ("glm4_moe", "model.layers.3", "model.layers.4"),
        ("deepseek_v3", "model.layers.3", "model.layers.4"),
        ("qwen3_5", "mtp.layers.0", "mtp.layers.1"),
        ("qwen3_next", "mtp.layers.0", "mtp.layers.1"),
    ] {
        let text = std::fs::read(fixture("nextn").join(name).join("config.json"));
        let config = serde_json::from_slice(&text.expect("a file")).expect("JSON");
        let shared = first.starts_with("mtp");
        let projection = |layer: &str| match shared {
            true => "mtp.fc".to_owned(),
            false => format!("{layer}.eh_proj"),
        };
        let norm = |layer: &str| format!("{layer}.input_layernorm.weight");
        let layers = [first, second];
        let mut stored: Vec<String> = layers.map(|layer| weight(&projection(layer))).into();
        stored.extend(layers.map(norm));
        let stored: Vec<&str> = stored.iter().map(String::as_str).collect();
        let dir = folder(&config, None);
        tensor_names(dir.path(), &stored);
        let found = crate::Described::of(dir.path()).expect("a model");
        assert!(found.own_draft, "{name}");
        let target = model(dir.path());
        let draft = crate::draft::nextn(None, &target).expect("two draft layers");
        assert_eq!(draft.layers_in_turn(), 2, "{name}");
        assert_eq!(draft.model.layers.len(), 2, "{name}");
        assert_eq!(draft.model.layers[0], draft.model.layers[1], "{name}");
        // Both lie in one group of caches.
        assert_eq!(draft.model.kv_groups().len(), 1, "{name}");
        let DraftKind::Nextn { names } = draft.kind else {
            panic!("{:?}", draft.kind);
        };
        for (names, layer) in names.iter().zip(layers) {
            assert_eq!(names.layer, layer);
            assert_eq!(names.projection, projection(layer));
        }
    }
}
