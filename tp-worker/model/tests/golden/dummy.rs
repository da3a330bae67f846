//! Random weights for a folder with `config.json` alone. They are equal for every split and
//! device.

use std::{fs, sync::Arc};

use lockstep_backend_cpu::{CpuBackend, CpuOptions};
use lockstep_types::{Dtype, KvCacheDtype, LoadFormat, ModelConfig, Quantization};

use super::F32_TOLERANCE;
use super::cuda::gpus;
use crate::driver::{Factory, Feed, logits};
use crate::pass::fixture;

/// Returns the model of a fixture without its weights, and the folder.
fn untrained(name: &str) -> (ModelConfig, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let config = fixture(name).join("config.json");
    fs::copy(config, folder.path().join("config.json")).unwrap();
    let model = ModelConfig {
        load_format: LoadFormat::Dummy,
        ..lockstep_model_folder::load(folder.path()).unwrap()
    };
    (model, folder)
}

fn cpu() -> Factory<CpuBackend> {
    Arc::new(|collective| {
        let options = CpuOptions {
            threads: 1,
            dtype: Dtype::Float32,
            pin: None,
            isa: None,
        };
        CpuBackend::new(options, collective).unwrap()
    })
}

fn feed(tp_size: usize) -> Feed {
    Feed {
        tp_size,
        together: true,
        ..Feed::plain(KvCacheDtype::Float32)
    }
}

fn texts() -> Vec<Vec<u32>> {
    vec![(1..30).collect(), vec![7, 3, 9, 1, 5]]
}

/// Returns the largest difference of two sets of logits.
fn distance(found: &[Vec<Vec<f32>>], expected: &[Vec<Vec<f32>>]) -> f32 {
    let flat =
        |all: &[Vec<Vec<f32>>]| -> Vec<f32> { all.iter().flatten().flatten().copied().collect() };
    let (found, expected) = (flat(found), flat(expected));
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(&expected);
    let distances = pairs.map(|(found, expected)| (found - expected).abs());
    // A NaN counts as a large distance.
    distances.fold(0.0, |most, next| if next <= most { most } else { next })
}

/// Runs models with biases, with a head of their own and with norms of heads, then models with
/// other norms, then mixtures of experts, as floats and packed.
#[test]
fn splits_and_devices_have_the_same_random_weights() {
    for name in [
        "llama_bias",
        "qwen2_untied",
        "qwen3",
        "gemma2",
        "olmo2",
        "starcoder2",
        "qwen3_moe",
        "gpt_oss_mxfp4",
    ] {
        let (model, _folder) = untrained(name);
        let expected = logits(&model, &cpu(), feed(1), &texts());
        let found = logits(&model, &cpu(), feed(2), &texts());
        let apart = distance(&found, &expected);
        assert!(apart <= F32_TOLERANCE, "{name} on 2 ranks: {apart}");
        let open = gpus(Dtype::Float32, 1);
        let gpu: Factory<_> = Arc::new(move |group| open(group.into()));
        for tp_size in [1, 2] {
            let found = logits(&model, &gpu, feed(tp_size), &texts());
            let apart = distance(&found, &expected);
            assert!(apart <= F32_TOLERANCE, "{name} on {tp_size} GPUs: {apart}");
        }
    }
}

/// Experts too have the same random weights on every split.
#[test]
fn splits_have_the_same_random_experts() {
    for name in [
        "qwen3_moe",
        "glm4_moe",
        "granite_moe",
        "gpt_oss",
        "gpt_oss_mxfp4",
        "deepseek_v3",
    ] {
        let (model, _folder) = untrained(name);
        let expected = logits(&model, &cpu(), feed(1), &texts());
        for tp_size in [2, 4] {
            let found = logits(&model, &cpu(), feed(tp_size), &texts());
            let apart = distance(&found, &expected);
            assert!(apart <= F32_TOLERANCE, "{name}, {tp_size} ranks: {apart}");
        }
    }
}

/// Logits are neither infinite nor all alike, and depend on the text. Rounded weights give
/// about the same logits.
#[test]
fn random_weights_give_logits_that_can_be_sampled() {
    let (model, _folder) = untrained("llama");
    let found = logits(&model, &cpu(), feed(1), &texts());
    let rows: Vec<&Vec<f32>> = found.iter().flatten().collect();
    for row in &rows {
        let mean = row.iter().sum::<f32>() / row.len() as f32;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / row.len() as f32;
        assert!((0.5..2.0).contains(&variance.sqrt()), "{variance}");
    }
    let likeliest = |row: &Vec<f32>| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
    let distinct: std::collections::BTreeSet<_> = rows.iter().map(|row| likeliest(row)).collect();
    assert!(distinct.len() > rows.len() / 4, "{distinct:?}");
    let rounded = ModelConfig {
        quantization: Quantization::Int8,
        ..model
    };
    let rounded = logits(&rounded, &cpu(), feed(1), &texts());
    let apart = distance(&rounded, &found);
    assert!(apart < 0.5, "{apart}");
}
