//! Adapters against PEFT, and their bits in company.

use std::{fs, path::PathBuf};

use lockstep_backend::Adapt as _;
use lockstep_backend_cpu::CpuBackend;
use lockstep_types::{AdapterLimits, Dtype, KvCacheDtype, ModelConfig, Quantization};

use super::data_parallel::cpu;
use super::{
    F32_CLEAR_GAP, F32_TOLERANCE, Golden, check, max_error, relative_error, rounded, texts,
};
use crate::adapted::{Logits, Run, Text, logits};
use crate::naive::Naive;
use crate::pass::fixture;
use crate::ranks::WorldFactory;

/// Adapters with goldens: of all projections, with factors and ranks by patterns, beside biases, of
/// fused projections, beside gates of attention and recurrent layers, before norms over all heads,
/// of MLPs without gates, and of layers that share caches.
const ADAPTERS: [&str; 8] = [
    "llama",
    "llama_patterns",
    "llama_bias",
    "phi3",
    "qwen3_5",
    "olmo2",
    "starcoder2",
    "gemma4_per_layer",
];

struct Case {
    name: &'static str,
    model: ModelConfig,
    golden: Golden,
    /// Largest change of a logit if factors are taken for `lora_alpha / r`.
    moved_by_plain_factors: f32,
}

fn folder(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    root.join("adapters").join(name)
}

fn case(name: &'static str) -> Case {
    #[derive(serde::Deserialize)]
    struct Own {
        base: String,
        moved_by_plain_factors: f32,
    }
    let text = fs::read(folder(name).join("golden.json")).unwrap();
    let own: Own = serde_json::from_slice(&text).unwrap();
    Case {
        name,
        model: lockstep_model_folder::load(&fixture(&own.base)).unwrap(),
        golden: serde_json::from_slice(&text).unwrap(),
        moved_by_plain_factors: own.moved_by_plain_factors,
    }
}

impl Case {
    /// Returns a run of the golden's texts with the adapter.
    fn run(&self) -> Run {
        let all = texts(&self.golden);
        let texts = all.iter().map(|ids| Text::new(ids, Some(0)));
        Run::new(&self.model, &[folder(self.name)], texts.collect())
    }
}

fn naive() -> WorldFactory<Naive> {
    std::sync::Arc::new(Naive::new)
}

#[test]
fn adapters_compute_what_peft_computes() {
    for case in ADAPTERS.map(case) {
        let run = case.run();
        let found = logits(&naive(), &run);
        check(
            case.name,
            &case.golden,
            &found,
            F32_TOLERANCE,
            F32_CLEAR_GAP,
        );
        for tp_size in [1, 2, 4] {
            let run = Run {
                split: (tp_size, 1),
                ..run.clone()
            };
            let found = logits(&cpu(Dtype::Float32), &run);
            let name = format!("{} on {tp_size}", case.name);
            check(&name, &case.golden, &found, F32_TOLERANCE, F32_CLEAR_GAP);
            let run = Run {
                kv_dtype: KvCacheDtype::Bfloat16,
                ..run
            };
            let found = logits(&cpu(Dtype::Bfloat16), &run);
            let reference = case.golden.bf16_max_logit_error;
            check(&name, &case.golden, &found, reference, 2.0 * reference);
        }
    }
}

/// An engine that takes every factor for `lora_alpha / r` would be off by far more than what the
/// goldens allow.
#[test]
fn goldens_tell_factors_apart() {
    let wrong = case("llama_patterns").moved_by_plain_factors;
    assert!(wrong > 1000.0 * F32_TOLERANCE, "{wrong}");
    assert_eq!(case("llama").moved_by_plain_factors, 0.0);
}

/// Rows of all DP ranks meet in MLPs, each with its own adapter. Ranks are idle in some passes, and
/// want only some logits.
#[test]
fn adapters_cross_between_dp_ranks() {
    for name in ["llama", "phi3", "starcoder2"] {
        let case = case(name);
        let mut run = case.run();
        run.split = (1, 1);
        run.texts.push(Text::new(&run.texts[0].ids, None));
        run.texts[1].start = 1;
        let expected = logits(&cpu(Dtype::Float32), &run);
        run.chunk = 9;
        for split in [(2, 2), (4, 2)] {
            run.split = split;
            let plain = logits(&naive(), &run);
            let found = logits(&cpu(Dtype::Float32), &run);
            check(name, &case.golden, &found, F32_TOLERANCE, F32_CLEAR_GAP);
            for other in [&plain, &expected] {
                let pairs = other.iter().flatten().zip(found.iter().flatten());
                for (other, found) in pairs {
                    let error = max_error(other, found);
                    assert!(error <= F32_TOLERANCE, "{name} on {split:?}: {error}");
                }
            }
            let sparse = Run {
                texts: run.texts.iter().map(sparse).collect(),
                ..run.clone()
            };
            let few = logits(&cpu(Dtype::Float32), &sparse);
            assert!(few == picked(&found, &sparse), "{name} on {split:?}");
        }
    }
}

/// Returns the text with every seventh position wanted.
fn sparse(text: &Text) -> Text {
    Text {
        every: 7,
        ..text.clone()
    }
}

/// Returns of all logits those that a run wants.
fn picked(all: &Logits, run: &Run) -> Logits {
    let of_text = |(rows, text): (&Vec<Vec<f32>>, &Text)| {
        let last = text.ids.len() - 1;
        let rows = rows.iter().enumerate();
        let wanted = rows.filter(|(at, _)| at.is_multiple_of(text.every) || *at == last);
        wanted.map(|(_, row)| row.clone()).collect()
    };
    all.iter().zip(&run.texts).map(of_text).collect()
}

/// Returns texts with two adapters and with none, one after the other.
fn mixed(model: &ModelConfig, dtype: KvCacheDtype) -> Run {
    let golden = case("llama").golden;
    let ids = |prompt: usize| &golden.prompts[prompt].ids;
    let texts = [
        (ids(1), Some(0)),
        (ids(1), None),
        (ids(0), Some(1)),
        (ids(1), Some(1)),
        (ids(0), None),
        (ids(0), Some(0)),
    ];
    let texts = texts.map(|(ids, adapter)| Text::new(ids, adapter));
    let adapters = ["llama", "llama_patterns"].map(folder);
    Run {
        kv_dtype: dtype,
        ..Run::new(model, &adapters, texts.into())
    }
}

/// A row has the bits that it has alone, whatever adapters are in the batch. One without an adapter
/// has those of a model that has no room for adapters.
#[test]
fn company_of_other_adapters_changes_no_bit() {
    let plain = case("llama").model;
    for (compute, weights) in [
        (Dtype::Float32, Quantization::None),
        (Dtype::Bfloat16, Quantization::None),
        (Dtype::Bfloat16, Quantization::Int8),
    ] {
        let model = rounded(&plain, weights);
        let factory = cpu(compute);
        let mut run = mixed(&model, KvCacheDtype::Bfloat16);
        for split in [(1, 1), (2, 1)] {
            run.split = split;
            let expected = alone(&factory, &run);
            for (chunk, page_size) in [(usize::MAX, 16), (7, 1), (1, 64)] {
                let together = Run {
                    chunk,
                    page_size,
                    ..run.clone()
                };
                let found = logits(&factory, &together);
                assert!(
                    found == expected,
                    "{compute:?} {weights:?} {split:?} {chunk}"
                );
            }
            let none = Run {
                adapters: Vec::new(),
                limits: AdapterLimits::default(),
                ..run.alone(1)
            };
            let found = logits(&factory, &none);
            assert!(found[0] == expected[1], "the model alone has other bits");
            let error = max_error(&expected[0][3], &expected[1][3]);
            assert!(error > 0.1, "adapters change logits");
        }
    }
}

/// Likewise among DP ranks, for which the rows that meet in an MLP are others.
#[test]
fn company_on_other_dp_ranks_changes_no_bit() {
    let (model, factory) = (case("llama").model, cpu(Dtype::Bfloat16));
    let mut run = mixed(&model, KvCacheDtype::Bfloat16);
    run.split = (2, 2);
    let expected = logits(&factory, &run);
    run.chunk = 5;
    run.texts[2].start = 3;
    assert!(logits(&factory, &run) == expected);
}

fn alone(factory: &WorldFactory<CpuBackend>, run: &Run) -> Logits {
    let texts = 0..run.texts.len();
    texts
        .map(|text| logits(factory, &run.alone(text)).remove(0))
        .collect()
}

/// Adapters are computed beside a rounded base, from inputs that are not rounded to 8 bits, and are
/// not rounded themselves.
#[test]
fn rounded_bases_keep_their_adapters() {
    for name in ["llama", "llama_patterns"] {
        let case = case(name);
        let run = Run {
            model: rounded(&case.model, Quantization::Int8),
            ..case.run()
        };
        let found = logits(&cpu(Dtype::Bfloat16), &run);
        for (prompt, found) in case.golden.prompts.iter().zip(&found) {
            let last = &found[prompt.ids.len() - 1];
            let error = relative_error(last, &prompt.last_logits);
            assert!(error <= 0.05, "{name}: {error}");
        }
    }
    // 8-bit floats are exact, so that the plain backend has the same logits.
    let model = lockstep_model_folder::load(&fixture("llama_fp8")).unwrap();
    let ids: Vec<u32> = (5..60).collect();
    let texts = vec![Text::new(&ids, Some(0)), Text::new(&ids[7..], None)];
    let run = Run::new(&model, &[folder("llama_fp8")], texts);
    let expected = logits(&naive(), &run);
    for split in [(1, 1), (2, 1), (2, 2)] {
        let run = Run {
            split,
            ..run.clone()
        };
        let found = logits(&cpu(Dtype::Float32), &run);
        for (one, other) in found.iter().flatten().zip(expected.iter().flatten()) {
            let error = max_error(one, other);
            assert!(error <= F32_TOLERANCE, "{split:?}: {error}");
        }
    }
}

#[test]
fn cpus_serve_adapters() {
    assert!(CpuBackend::serves_adapters().is_ok());
    let gpu = lockstep_backend_cuda::CudaBackend::serves_adapters();
    assert!(gpu.unwrap_err().contains("--device cpu"));
}
