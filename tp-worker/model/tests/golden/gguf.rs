//! GGUF files against transformers, which reads the same files.

use std::{fs, path::PathBuf};

use lockstep_types::{Dtype, KvCacheDtype};

use super::driver::{Feed, logits};
use super::{Case, check, cpu, texts};

/// Models in `tests/fixtures/gguf`, and the file of each that is named.
const MODELS: [(&str, &str); 8] = [
    ("llama_k", "model.gguf"),
    ("llama_bias", "model-00001-of-00002.gguf"),
    ("qwen2", "model.gguf"),
    ("qwen3", "model.gguf"),
    ("qwen3_moe", "model.gguf"),
    ("gemma2", "model.gguf"),
    ("gemma3", "model.gguf"),
    ("phi3", "model.gguf"),
];

fn case((folder, file): (&str, &str)) -> Case {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gguf");
    let text = fs::read(root.join(folder).join("golden.json")).unwrap();
    let file = root.join(folder).join(file);
    Case {
        model: lockstep_model_folder::load(&file).unwrap_or_else(|error| panic!("{error}")),
        golden: serde_json::from_slice(&text).unwrap(),
    }
}

/// The dequantised weights are the same in all bits, so logits differ by rounding alone.
#[test]
fn gguf_files_in_both_types() {
    for model in MODELS {
        let case = case(model);
        let texts = texts(&case.golden);
        for (dtype, tp_size) in [
            (Dtype::Float32, 1),
            (Dtype::Float32, 2),
            (Dtype::Bfloat16, 1),
        ] {
            let (cache, tolerance) = match dtype {
                Dtype::Float32 => (KvCacheDtype::Float32, super::F32_TOLERANCE),
                Dtype::Bfloat16 => (KvCacheDtype::Bfloat16, case.golden.bf16_max_logit_error),
            };
            let feed = Feed {
                tp_size,
                ..Feed::plain(cache)
            };
            let found = logits(&case.model, &cpu(dtype), feed, &texts);
            check(model.0, &case.golden, &found, tolerance, 2.0 * tolerance);
        }
    }
}
