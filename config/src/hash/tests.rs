use lockstep_types::LoadFormat;
use serde_json::json;

use super::canonical;
use crate::testing::{folder, llama, machine, resolve_line, resolve_model, with};

fn hash(line: &str) -> String {
    super::hash(&resolve_line(line).expect(line).0)
}

#[test]
fn equal_where_nodes_may_differ() {
    let same = hash("");
    assert_eq!(same.len(), 64);
    for line in [
        "--port 9000 --host 0.0.0.0 --grpc-port 0 --api-key k",
        "--threads-per-rank 1",
        "--tokenizer-managers 3",
        "--served-model-name other",
        "--drain-timeout 1 --startup-timeout 2 --request-timeout 3 --weight-update-timeout 4",
        "--weight-cache /tmp/packed",
        "--weight-update-dir /",
        "--kv-cache-dtype bf16 --quantization none",
        "--log-level debug --max-body-bytes 1",
    ] {
        assert_eq!(hash(line), same, "{line}");
    }
}

#[test]
fn different_where_results_or_the_protocol_would() {
    let lines = [
        "",
        "--tp-size 2",
        "--dtype float32",
        "--quantization int8",
        "--quantization int4",
        "--isa scalar",
        "--kv-cache-dtype int8",
        "--kv-cache-dtype float32",
        "--page-size 1",
        "--max-total-tokens 1024",
        "--context-length 100",
        "--max-running-requests 3",
        "--chunked-prefill-size -1",
        "--disable-radix-cache",
        "--disable-overlap-schedule",
        "--enable-priority-scheduling",
        "--schedule-policy lpm",
        "--watchdog-timeout 1",
        "--speculative-algorithm WINDOW",
        "--speculative-algorithm WINDOW --speculative-window-size 5",
        "--speculative-algorithm WINDOW --speculative-window-nodes 5",
        "--speculative-algorithm WINDOW --speculative-window-private",
        "--enable-lora --lora-dir .",
        "--enable-lora --lora-dir . --max-loras 2",
        "--enable-lora --lora-dir . --max-lora-rank 8",
        "--device cuda",
        "--device cuda --cuda-graph-bs 1,2",
    ];
    let mut hashes: Vec<_> = lines.iter().map(|line| hash(line)).collect();
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), lines.len());
}

#[test]
fn experts_that_are_split_otherwise_count() {
    let mut engine = resolve_line("--tp-size 2").expect("a configuration").0;
    let inside = super::hash(&engine);
    engine.parallel.ep_size = 2;
    assert_ne!(super::hash(&engine), inside);
}

#[test]
fn the_model_counts_by_its_shape_and_not_by_its_folder() {
    let of = |config| {
        let model = folder(&config, None);
        super::hash(&resolve_model("", model.path(), &machine()).expect("good").0)
    };
    assert_eq!(of(llama()), of(llama()));
    assert_ne!(of(llama()), of(with(llama(), &json!({"rope_theta": 1.0}))));
    assert_ne!(
        of(llama()),
        of(with(llama(), &json!({"rms_norm_eps": 1e-6})))
    );
}

/// Copies of a wrapped model have other prefixes, by the age of the files. Random weights
/// follow from names.
#[test]
fn spellings_of_tensors_count_only_where_numbers_follow_from_them() {
    let of = |load_format: LoadFormat, prefix: &str| {
        let mut engine = resolve_line("").expect("good").0;
        engine.model.load_format = load_format;
        engine.model.names = engine.model.names.moved("model", prefix);
        for layer in &mut engine.model.layers {
            layer.attention_mut().unwrap().names.query = format!("{prefix}.q");
        }
        super::hash(&engine)
    };
    let [plain, moved] = ["model", "model.language_model"].map(|to| of(LoadFormat::Auto, to));
    assert_eq!(plain, moved);
    let [plain, moved] = ["model", "model.language_model"].map(|to| of(LoadFormat::Dummy, to));
    assert_ne!(plain, moved);
}

/// Each node loads a model by name by itself, and `main` may move between two starts.
#[test]
fn commits_of_the_hub_count() {
    let cache_dir = tempfile::tempdir().expect("a folder");
    let of = |cache: &str, commit: &str| {
        let snapshots = cache_dir.path().join(cache).join("models--a--b/snapshots");
        let folder = snapshots.join(commit);
        std::fs::create_dir_all(&folder).expect("made");
        std::fs::write(folder.join("config.json"), llama().to_string()).expect("written");
        super::hash(&resolve_model("", &folder, &machine()).expect("good").0)
    };
    let (one, other) = ("1".repeat(40), "2".repeat(40));
    assert_ne!(of("x", &one), of("x", &other));
    assert_eq!(of("x", &one), of("y", &one));
    // Any other folder is known only by its contents.
    assert_eq!(of("x", "mine"), of("x", "yours"));
}

#[test]
fn commits_of_drafts_count() {
    let commit = |path: &str| super::commit(&json!({ "path": path }));
    let hash = "0123456789".repeat(4);
    let path = format!("/c/models--a--b/snapshots/{hash}");
    assert_eq!(commit(&path), json!(hash));
    for path in [format!("/c/{hash}"), format!("{path}/x"), String::new()] {
        assert_eq!(commit(&path), json!(null), "{path}");
    }
}

#[test]
fn canonical_json_does_not_depend_on_the_order_of_keys() {
    let mut text = String::new();
    canonical(
        &json!({"b": [1, {"d": null, "c": "x\"y"}], "a": 0.5}),
        &mut text,
    );
    assert_eq!(text, r#"{"a":0.5,"b":[1,{"c":"x\"y","d":null}]}"#);
}
