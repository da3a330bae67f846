//! GGUF files against transformers, which reads the same files.

use std::{fs, path::PathBuf};

use lockstep_types::{Dtype, KvCacheDtype};

use super::cuda::cuda;
use super::driver::{Feed, logits};
use super::{Case, F32_CLEAR_GAP, F32_TOLERANCE, check, cpu, naive, relative_error, texts};

/// Models in `tests/fixtures/gguf`, and the file of each that is named.
const MODELS: [(&str, &str); 9] = [
    ("llama_k", "model.gguf"),
    ("llama_bias", "model-00001-of-00002.gguf"),
    ("mixtral", "model.gguf"),
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
fn gguf_files_have_the_logits_of_their_values() {
    for model in MODELS {
        let case = case(model);
        let texts = texts(&case.golden);
        for tp_size in [1, 2] {
            let feed = Feed {
                tp_size,
                ..Feed::plain(KvCacheDtype::Float32)
            };
            let found = logits(&case.model, &naive(), feed, &texts);
            check(model.0, &case.golden, &found, F32_TOLERANCE, F32_CLEAR_GAP);
        }
    }
}

/// GPUs widen blocks, those of tables of tokens and of experts too, and round no inputs in f32.
#[test]
fn gguf_files_on_gpus_have_the_logits_of_their_values() {
    for model in [MODELS[0], MODELS[2]] {
        let case = case(model);
        let feed = Feed::plain(KvCacheDtype::Float32);
        let gpu = cuda(Dtype::Float32, 1);
        let found = logits(&case.model, &gpu, feed, &texts(&case.golden));
        check(model.0, &case.golden, &found, F32_TOLERANCE, F32_CLEAR_GAP);
    }
}

/// Kernels round the inputs of 4-bit codes to 8 bits, by which logits move by a few hundredths of
/// their spread. Chunks change no bit.
#[test]
fn gguf_files_on_processors_stay_near_the_reference() {
    for model in MODELS {
        let case = case(model);
        let texts = texts(&case.golden);
        // Some tokens go to other experts, and norms behind blocks bring errors to full size.
        let limit = match case.is_mixture() || case.norms_outputs() {
            true => 0.1,
            false => 0.05,
        };
        for (tp_size, dtype) in [
            (1, Dtype::Float32),
            (2, Dtype::Float32),
            (1, Dtype::Bfloat16),
        ] {
            let feed = Feed {
                tp_size,
                ..Feed::plain(KvCacheDtype::Float32)
            };
            let found = logits(&case.model, &cpu(dtype), feed, &texts);
            for (prompt, logits) in case.golden.prompts.iter().zip(&found) {
                let last = &logits[prompt.ids.len() - 1];
                let error = relative_error(last, &prompt.last_logits);
                assert!(error <= limit, "{} {dtype:?} {tp_size}: {error}", model.0);
            }
            let chunks = Feed { chunk: 7, ..feed };
            if tp_size == 1 && model.0 == "llama_k" {
                let again = logits(&case.model, &cpu(dtype), chunks, &texts);
                assert!(again == found, "{dtype:?}: chunks change bits");
            }
        }
    }
}
