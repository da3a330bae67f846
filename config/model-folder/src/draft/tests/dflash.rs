use lockstep_types::{DflashSpec, DraftKind, DraftModel};
use serde_json::{Value, json};

use super::target;
use crate::testing::{Head, folder, head, llama, tensor_names, with};

/// Reads the test's DFlash model with keys replaced, also inside of `dflash_config`.
fn read(changes: &Value, inner: &Value) -> Result<DraftModel, String> {
    let own = with(json!({"mask_token_id": 99, "target_layer_ids": [0]}), inner);
    let changes = with(json!({"dflash_config": own}), changes);
    let dir = head(Head::Dflash, &changes);
    crate::draft::dflash(dir.path(), &target(7)).map_err(|error| error.to_string())
}

fn spec(changes: &Value, inner: &Value) -> DflashSpec {
    let draft = read(changes, inner).unwrap_or_else(|error| panic!("{changes} {inner}: {error}"));
    match draft.kind {
        DraftKind::Dflash(spec) => spec,
        other => panic!("{other:?}"),
    }
}

#[test]
fn keys_stand_inside_or_outside() {
    let none = json!({});
    let found = spec(&none, &none);
    let expected = DflashSpec {
        block_size: 6,
        mask_token_id: 99,
        capture_layers: vec![1],
        causal: vec![false],
    };
    assert_eq!(found, expected);
    let inner = json!({"block_size": 9, "target_layer_ids": [0, 2, 5]});
    let found = spec(&none, &inner);
    assert_eq!((found.block_size, found.capture_layers), (9, vec![1, 3, 6]));
    let outer = json!({"dflash_config": null, "block_size": null, "mask_token_id": 3,
        "target_layer_ids": [4]});
    let found = spec(&outer, &none);
    assert_eq!(
        (found.block_size, found.mask_token_id, found.capture_layers),
        (16, 3, vec![5])
    );
    let model = read(&none, &none).expect("good").model;
    assert_eq!(
        (model.names.layer(1), model.names.norm.as_str()),
        ("layers.1".into(), "norm")
    );
    let factors = json!({"input_embedding_scale": 2.5, "output_multiplier": 0.25,
        "final_logit_softcapping": 20.0});
    let multipliers = read(&none, &factors).expect("good").model.multipliers;
    assert_eq!(
        (
            multipliers.embedding,
            multipliers.logits,
            multipliers.logit_softcap
        ),
        (2.5, 4.0, Some(20.0))
    );
    let none_of_them = json!({"final_logit_softcapping": 0.0, "attention_sink_bias": false});
    let multipliers = read(&none, &none_of_them).expect("good").model.multipliers;
    assert_eq!(multipliers.logit_softcap, None);
}

#[test]
fn layers_with_windows_are_causal_unless_all_are() {
    let types = ["sliding_attention", "full_attention", "full_attention"];
    let windows = json!({"num_hidden_layers": 3, "layer_types": types, "sliding_window": 8,
        "use_sliding_window": true});
    // No text fills the window, and the layer is causal all the same.
    let wide = with(windows.clone(), &json!({"sliding_window": 4096}));
    let all = with(windows.clone(), &json!({"is_causal": true}));
    let plain = json!({"num_hidden_layers": 3});
    let none = json!({});
    for (changes, window, causal) in [
        (&windows, Some(8), [true, false, false]),
        (&wide, None, [true, false, false]),
        (&all, Some(8), [true; 3]),
        (&plain, None, [false; 3]),
    ] {
        assert_eq!(spec(changes, &none).causal, causal, "{changes}");
        let model = read(changes, &none).expect("good").model;
        let found = model.layers[0]
            .attention()
            .unwrap()
            .window
            .map(|window| window.get());
        assert_eq!(found, window, "{changes}");
    }
    let both = with(windows, &json!({"is_causal": false}));
    let error = read(&both, &none).expect_err("no such mask");
    assert!(
        error.contains("is_causal") && error.contains("sliding windows"),
        "{error}"
    );
}

#[test]
fn models_that_do_not_fit_say_so() {
    let none = json!({});
    for (changes, inner, names) in [
        (
            none.clone(),
            json!({"mask_token_id": null}),
            ["mask_token_id", "is missing"],
        ),
        (
            none.clone(),
            json!({"mask_token_id": 100}),
            ["mask_token_id", "100 tokens"],
        ),
        (
            none.clone(),
            json!({"target_layer_ids": null}),
            ["target_layer_ids", "ascending"],
        ),
        (
            none.clone(),
            json!({"target_layer_ids": [3, 1]}),
            ["target_layer_ids", "ascending"],
        ),
        (
            none.clone(),
            json!({"target_layer_ids": [6]}),
            ["target_layer_ids", "target's 7"],
        ),
        (
            none.clone(),
            json!({"block_size": 1}),
            ["dflash_config.block_size", "nothing"],
        ),
        (
            none.clone(),
            json!({"selector_rank": 256}),
            ["dflash_config.selector_rank", "drafted"],
        ),
        (
            none.clone(),
            json!({"projector_type": "domino"}),
            ["projector_type", "domino"],
        ),
        (
            json!({"num_target_layers": 36}),
            none.clone(),
            ["num_target_layers", "7 layers"],
        ),
        (
            json!({"hidden_size": 128}),
            none.clone(),
            ["hidden size of 128", "64"],
        ),
        (
            json!({"vocab_size": 120}),
            none.clone(),
            ["vocabulary of 120", "100"],
        ),
        (
            json!({"architectures": ["DFlash2DraftModel"]}),
            none.clone(),
            ["DFlash2DraftModel", "DFlashDraftModel is served"],
        ),
    ] {
        let error = read(&changes, &inner).expect_err("does not fit");
        for name in names.iter().chain(&["--speculative-draft-model-path"]) {
            assert!(
                error.contains(name),
                "{changes} {inner}: no {name:?} in: {error}"
            );
        }
    }
    let dir = head(Head::Dflash, &none);
    tensor_names(
        dir.path(),
        &["fc.weight", "hidden_norm.weight", "lm_head.weight"],
    );
    let error = crate::draft::dflash(dir.path(), &target(7)).expect_err("its own head");
    assert!(error.to_string().contains("`lm_head.weight`"), "{error}");
    let own = json!({"architectures": ["GraniteForCausalLM"], "num_hidden_layers": 7,
        "model_type": "(absent)", "residual_multiplier": 0.22});
    let granite = folder(&with(llama(), &own), None);
    let granite = crate::load(granite.path()).expect("a served model");
    let dir = head(Head::Dflash, &none);
    let error = crate::draft::dflash(dir.path(), &granite).expect_err("refused");
    assert!(error.to_string().contains("Granite models"), "{error}");
}

/// The name of the architecture is enough where all keys stand outside.
#[test]
fn the_folder_names_its_algorithm() {
    let outer = json!({"dflash_config": "(absent)", "mask_token_id": 3, "target_layer_ids": [4]});
    for changes in [json!({}), outer, json!({"architectures": "(absent)"})] {
        let dir = head(Head::Dflash, &changes);
        assert_eq!(
            crate::draft::head_of(dir.path()),
            Some("DFLASH"),
            "{changes}"
        );
        crate::draft::dflash(dir.path(), &target(7)).expect("a DFlash model");
    }
}
