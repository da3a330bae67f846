//! Norms of EAGLE-3 heads beyond SafeAILab's.

use lockstep_types::{DraftKind, Eagle3Norms};
use serde_json::{Value, json};

use super::target;
use crate::testing::{Head, head, tensor_names};

/// The norms that are read from a head with `tensors` of norms beside its own.
fn norms(changes: &Value, tensors: &[&str]) -> Result<Eagle3Norms, String> {
    let dir = head(Head::Eagle3, changes);
    let own = ["fc.weight", "midlayer.hidden_norm.weight", "d2t"];
    tensor_names(dir.path(), &[&own[..], tensors].concat());
    let draft = crate::draft::eagle3(dir.path(), &target(7)).map_err(|error| error.to_string())?;
    match draft.kind {
        DraftKind::Eagle3 { norms, .. } => Ok(norms),
        other => panic!("{other:?}"),
    }
}

const JOINED: &str = "input_norm.weight";
const FIRST: &str = "fc_norm.0.weight";

#[test]
fn norms_stand_in_vllms_keys() {
    let none = Eagle3Norms::default();
    let before_projection = Eagle3Norms {
        before_projection: true,
        ..none
    };
    for (changes, tensors, expected) in [
        (json!({}), &[][..], none),
        (
            json!({"norm_before_residual": true}),
            &[],
            Eagle3Norms {
                before_residual: true,
                ..none
            },
        ),
        (
            json!({"norm_output": true, "eagle_config": {"norm_output": true}}),
            &[],
            Eagle3Norms {
                of_output: true,
                ..none
            },
        ),
        (
            json!({"fc_norm": true, "norm_output": false}),
            &[FIRST],
            Eagle3Norms {
                of_layers: true,
                ..none
            },
        ),
        (
            json!({"norm_before_fc": true}),
            &[JOINED],
            before_projection,
        ),
        (
            json!({"eagle_config": {"norm_before_fc": true}}),
            &[JOINED],
            before_projection,
        ),
        // The key inside counts first.
        (
            json!({"norm_before_fc": true, "eagle_config": {"norm_before_fc": false}}),
            &[],
            none,
        ),
        (
            json!({"norm_before_fc": false, "eagle_config": {"norm_before_fc": true}}),
            &[JOINED],
            before_projection,
        ),
    ] {
        assert_eq!(norms(&changes, tensors), Ok(expected), "{changes}");
    }
}

#[test]
fn norms_that_are_not_served_or_contradict_the_tensors_are_named() {
    for (changes, tensors, names) in [
        (
            json!({"norm_before_fc": true}),
            &[][..],
            ["`norm_before_fc`", JOINED],
        ),
        (json!({}), &[JOINED], ["`norm_before_fc`", JOINED]),
        (
            json!({"fc_norm": true}),
            &[JOINED, FIRST],
            ["`norm_before_fc`", JOINED],
        ),
        (json!({"fc_norm": true}), &[], ["`fc_norm`", FIRST]),
        (json!({}), &[FIRST], ["`fc_norm`", FIRST]),
        (
            json!({"eagle_config": {"fc_norm": true}}),
            &[FIRST],
            ["eagle_config.fc_norm", "top level"],
        ),
        (
            json!({"norm_output": true, "eagle_config": {"norm_output": false}}),
            &[],
            ["eagle_config.norm_output", "top level"],
        ),
        (
            json!({"eagle_config": {"norm_before_residual": true}}),
            &[],
            ["eagle_config.norm_before_residual", "top level"],
        ),
        (
            json!({"norm_output": 1}),
            &[],
            ["norm_output", "true or false"],
        ),
        (
            json!({"use_mtp_layernorm": true}),
            &[],
            ["use_mtp_layernorm", "norms"],
        ),
        (
            json!({"eagle_config": {"use_input_layernorm_in_first_layer": false}}),
            &[],
            ["eagle_config.use_input_layernorm_in_first_layer", "norms"],
        ),
    ] {
        let error = norms(&changes, tensors).expect_err("refused");
        for name in names.iter().chain(&["--speculative-draft-model-path"]) {
            assert!(
                error.contains(name),
                "{changes}: {name:?} is not in: {error}"
            );
        }
    }
}
