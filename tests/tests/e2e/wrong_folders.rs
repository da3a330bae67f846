//! Model folders that are wrong, each in one way: `lockstep doctor` names the place.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use lockstep_process::exit;
use lockstep_tests::{body::with, turns};
use serde_json::{Value, json};

/// A fault: the model that gets it, the way to make it, and texts of its error.
type Fault = (&'static str, fn(&Path), &'static [&'static str]);

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const ROUTER: &str = "model.layers.0.mlp.gate.weight";
const OUTPUT: &str = "model.layers.0.self_attn.o_proj.weight";
const MIXTURE: &str = "qwen3_moe";
const SHARDED: &str = "llama_sharded";
const WRAPPED: &str = "gemma3_wrapped";

fn rewrite(file: &Path, change: impl FnOnce(Value) -> Value) {
    let text = fs::read(file).expect("read");
    let value = change(serde_json::from_slice(&text).expect("JSON"));
    fs::write(file, value.to_string()).expect("written");
}

/// Changes fields of `config.json`. A null removes its field.
fn config(folder: &Path, fields: &Value) {
    rewrite(&folder.join(CONFIG), |config| with(config, fields));
}

/// Changes the header of a safetensors file, whose tensors keep their bytes.
fn header(file: &Path, change: impl FnOnce(&mut Value)) {
    let bytes = fs::read(file).expect("read");
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("8 bytes")) as usize;
    let (text, tensors) = rest.split_at(length);
    let mut value = serde_json::from_slice(text).expect("JSON");
    change(&mut value);
    let text = value.to_string();
    let length = (text.len() as u64).to_le_bytes();
    fs::write(file, [&length[..], text.as_bytes(), tensors].concat()).expect("written");
}

fn tensor(folder: &Path, name: &str, change: impl FnOnce(&mut Value)) {
    header(&folder.join(WEIGHTS), |header| change(&mut header[name]));
}

/// Gives the tensor `name` another name.
fn renamed(file: &Path, name: &str, other: &str) {
    header(file, |header| {
        let fields = header.as_object_mut().expect("an object");
        let found = fields.remove(name).expect("there");
        fields.insert(other.to_owned(), found);
    });
}

fn cut(file: &Path, bytes: usize) {
    let whole = fs::read(file).expect("read");
    fs::write(file, &whole[..whole.len() - bytes]).expect("written");
}

const OF_CONFIG: &[Fault] = &[
    (
        MIXTURE,
        |at| fs::remove_file(at.join(CONFIG)).expect("gone"),
        &[CONFIG],
    ),
    (MIXTURE, |at| cut(&at.join(CONFIG), 20), &[CONFIG, "line"]),
    (
        MIXTURE,
        |at| config(at, &json!({"architectures": null, "model_type": null})),
        &[CONFIG, "model_type"],
    ),
    (
        MIXTURE,
        |at| config(at, &json!({"architectures": ["OtherForCausalLM"]})),
        &["OtherForCausalLM", "Qwen3MoeForCausalLM"],
    ),
    (
        MIXTURE,
        |at| config(at, &json!({"mystery_scale": 2.0})),
        &[CONFIG, "mystery_scale"],
    ),
    (
        MIXTURE,
        |at| config(at, &json!({"hidden_size": null})),
        &[CONFIG, "hidden_size"],
    ),
    (
        MIXTURE,
        |at| config(at, &json!({"hidden_size": "80"})),
        &[CONFIG, "hidden_size"],
    ),
    (
        MIXTURE,
        |at| config(at, &json!({"num_key_value_heads": 3})),
        &["num_key_value_heads"],
    ),
    (
        MIXTURE,
        |at| config(at, &json!({"num_experts_per_tok": 10})),
        &["num_experts_per_tok"],
    ),
    (
        MIXTURE,
        |at| config(at, &json!({"hidden_act": "relu6"})),
        &["hidden_act", "relu6"],
    ),
    (
        MIXTURE,
        |at| {
            config(
                at,
                &json!({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e6}}),
            );
        },
        &["rope_type", "spiral"],
    ),
    (
        MIXTURE,
        |at| {
            config(
                at,
                &json!({"quantization_config": {"quant_method": "bitsandbytes"}}),
            );
        },
        &["quantization_config", "bitsandbytes"],
    ),
    (
        WRAPPED,
        |at| config(at, &json!({"text_config": null})),
        &[CONFIG, "text_config"],
    ),
    (
        WRAPPED,
        |at| config(at, &json!({"text_config": {"model_type": "other_text"}})),
        &["text_config", "other_text"],
    ),
];

const OF_TENSORS: &[Fault] = &[
    (
        MIXTURE,
        |at| fs::remove_file(at.join(WEIGHTS)).expect("gone"),
        &[WEIGHTS],
    ),
    (
        MIXTURE,
        |at| cut(&at.join(WEIGHTS), 2),
        &[WEIGHTS, "damaged"],
    ),
    (
        MIXTURE,
        |at| config(at, &json!({"num_local_experts": 8})),
        &[ROUTER, "[9, 80]"],
    ),
    (
        MIXTURE,
        |at| config(at, &json!({"num_local_experts": 10})),
        &["experts.9.gate_proj.weight"],
    ),
    (
        MIXTURE,
        |at| config(at, &json!({"num_hidden_layers": 4})),
        &["model.layers.3."],
    ),
    (
        MIXTURE,
        |at| config(at, &json!({"vocab_size": 348})),
        &["embed_tokens.weight", "[347, 80]"],
    ),
    (
        MIXTURE,
        |at| renamed(&at.join(WEIGHTS), ROUTER, "router"),
        &[ROUTER],
    ),
    (
        MIXTURE,
        |at| tensor(at, OUTPUT, |found| found["shape"] = json!([128, 80])),
        &[OUTPUT, "[128, 80]", "[80, 128]"],
    ),
    (
        MIXTURE,
        |at| tensor(at, OUTPUT, |found| found["dtype"] = json!("I16")),
        &[OUTPUT, "I16"],
    ),
    (
        MIXTURE,
        |at| {
            tensor(at, OUTPUT, |found| {
                found["data_offsets"] = json!([0, 1u64 << 40]);
            });
        },
        &[WEIGHTS, "damaged"],
    ),
    (
        SHARDED,
        |at| fs::remove_file(at.join("model-00002-of-00003.safetensors")).expect("gone"),
        &["model-00002-of-00003.safetensors"],
    ),
    (
        SHARDED,
        |at| {
            rewrite(&at.join(INDEX), |index| {
                with(index, &json!({"weight_map": []}))
            });
        },
        &[INDEX, "damaged"],
    ),
    (
        SHARDED,
        |at| {
            let first = at.join("model-00001-of-00003.safetensors");
            renamed(&first, "model.embed_tokens.weight", "model.norm.weight");
        },
        &["model.norm.weight"],
    ),
];

#[tokio::test]
async fn the_doctor_names_what_is_wrong_with_a_folder() {
    let _turn = turns::shared().await;
    let faults = OF_CONFIG.iter().map(|fault| ("Options", fault));
    let faults = faults.chain(OF_TENSORS.iter().map(|fault| ("Tensors", fault)));
    let mut silent = Vec::new();
    for (name, (model, harm, texts)) in faults {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = copy(model, parent.path());
        harm(&folder);
        let (code, said) = doctor(&folder);
        assert_eq!(code, Some(exit::PROBLEMS.into()), "{texts:?}: {said}");
        let mark = format!("! {name}");
        let told = said.lines().any(|line| line.starts_with(&mark));
        if !told || !texts.iter().all(|text| said.contains(text)) {
            silent.push(format!("{model} should say {texts:?}:\n{said}"));
        }
    }
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}

/// Folders without a fault have the numbers of their parameters, tensors and bytes told.
#[tokio::test]
async fn the_doctor_counts_what_is_in_a_folder() {
    let _turn = turns::shared().await;
    for (model, texts) in [
        (
            MIXTURE,
            [
                "304 thousand parameters, 224 thousand of them for a token",
                "all 86 are in one file",
            ],
        ),
        (
            SHARDED,
            ["216 thousand parameters", "all 30 are in 3 files"],
        ),
    ] {
        let parent = tempfile::tempdir().expect("a folder");
        let (_, said) = doctor(&copy(model, parent.path()));
        assert!(texts.iter().all(|text| said.contains(text)), "{said}");
        assert!(said.contains("MB weights (bfloat16)"), "{said}");
    }
}

fn copy(model: &str, parent: &Path) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/architectures");
    let folder = parent.join(model);
    fs::create_dir(&folder).expect("made");
    for file in fs::read_dir(fixtures.join(model)).expect("a fixture") {
        let file = file.expect("a file");
        fs::copy(file.path(), folder.join(file.file_name())).expect("copied");
    }
    folder
}

fn doctor(folder: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-under-test"));
    // Cargo puts fakes of CUDA's libraries where programs look for them.
    command
        .env("LOCKSTEP_DEVICE", "cpu")
        .arg("doctor")
        .arg(folder);
    let output = command.output().expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}
