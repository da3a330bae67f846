//! Hidden states that passes keep.

use std::{sync::Arc, thread};

use lockstep_backend::{Axis, Backend, BackendError, Holds, Linear, Memory as _, Ops as _};
use lockstep_backend_cpu::{CpuBackend, CpuTensor};
use lockstep_collective::{Single, local_group};
use lockstep_model::{
    CaptureSpec, FileAccess, ForwardLimits, LoadOptions, ModelCache, ModelError, Safetensors,
    Transformer,
};
use lockstep_types::{Dtype, KvCacheDtype, ModelConfig};

use crate::{
    naive::Naive,
    pass::{Pass, fixture},
    support::cpu,
};

const TOKENS: usize = 10;

fn spec(layers: &[usize], last_hidden: bool) -> CaptureSpec {
    CaptureSpec {
        layers: layers.to_vec(),
        last_hidden,
    }
}

fn specs() -> [CaptureSpec; 4] {
    [
        spec(&[], false),
        spec(&[0, 2], false),
        spec(&[], true),
        spec(&[1, 2], true),
    ]
}

/// A model that keeps hidden states of the tokens 1, 2, 3 …
struct Kept<B: Backend> {
    backend: B,
    model: Transformer<B>,
    cache: ModelCache<B>,
}

impl<B: Backend> Kept<B> {
    fn new(mut backend: B, model: &ModelConfig, spec: CaptureSpec) -> Self {
        let limits = ForwardLimits {
            max_tokens: TOKENS + 2,
            requests: 1,
            positions: TOKENS,
            groups: 1,
            page_size: 4,
            tree_nodes: 1,
            replays: 0,
            logit_block_rows: 3,
            max_commit: 0,
        };
        let mut model = Transformer::load(
            &mut backend,
            model,
            LoadOptions::new(Axis::World, limits),
            &mut |_| {},
        )
        .unwrap();
        model.set_capture(&mut backend, spec).unwrap();
        let cache = model
            .kv_cache(&mut backend, 3, 4, KvCacheDtype::Float32)
            .unwrap();
        Self {
            backend,
            model,
            cache,
        }
    }

    fn run(&mut self, range: std::ops::Range<usize>, wanted: &[u32]) -> Vec<f32> {
        self.try_run(range, wanted).unwrap()
    }

    fn try_run(
        &mut self,
        range: std::ops::Range<usize>,
        wanted: &[u32],
    ) -> Result<Vec<f32>, ModelError> {
        let text: Vec<u32> = (1..=TOKENS as u32).collect();
        let mut pass = Pass::default();
        pass.push(&text, range, 4, |page| page as u32);
        let (mut logits, backend) = (Vec::new(), &mut self.backend);
        let (cache, batch) = (&mut self.cache, pass.batch(wanted));
        self.model
            .forward(backend, cache, &batch, None, &mut |block| {
                logits.extend_from_slice(block.logits);
            })?;
        Ok(logits)
    }
}

impl Kept<CpuBackend> {
    fn features(&self) -> Vec<f32> {
        self.model
            .features()
            .map_or(Vec::new(), |f| f.values().to_vec())
    }
}

fn qwen3() -> ModelConfig {
    lockstep_model_folder::load(&fixture("qwen3")).unwrap()
}

fn alone(compute: Dtype) -> CpuBackend {
    cpu(compute, Box::new(Single::new()))
}

/// Returns column `place` of features, in units of the hidden size.
fn column(features: &[f32], width: usize, hidden: usize, place: usize) -> Vec<f32> {
    let rows = features.chunks(width);
    rows.flat_map(|row| &row[place * hidden..][..hidden])
        .copied()
        .collect()
}

fn tensor(backend: &mut CpuBackend, values: &[f32], width: usize) -> CpuTensor {
    let mut tensor = backend
        .tensor(values.len() / width, width, Holds::Operand)
        .unwrap();
    tensor.values_mut().copy_from_slice(values);
    tensor
}

/// Running the last layer over every token changes no bit of the wanted logits.
#[test]
fn logits_do_not_depend_on_what_is_kept() {
    let all: Vec<u32> = (0..TOKENS as u32).collect();
    for compute in [Dtype::Float32, Dtype::Bfloat16] {
        let mut plain = Kept::new(alone(compute), &qwen3(), spec(&[], false));
        for spec in specs() {
            let width = spec.width(qwen3().hidden_size);
            let mut kept = Kept::new(alone(compute), &qwen3(), spec);
            for wanted in [&[][..], &[9], &[0, 4, 9], &all] {
                assert!(kept.run(0..TOKENS, wanted) == plain.run(0..TOKENS, wanted));
                assert_eq!(kept.features().len(), TOKENS * width);
            }
        }
    }
}

#[test]
fn features_are_the_residual_stream() {
    let (model, mut values) = (qwen3(), Vec::new());
    let hidden = model.hidden_size;
    let mut kept = Kept::new(alone(Dtype::Float32), &model, spec(&[0, 1, 2], true));
    let logits = kept.run(0..TOKENS, &(0..TOKENS as u32).collect::<Vec<_>>());
    let features = kept.features();
    let state = |place| column(&features, 4 * hidden, hidden, place);

    let weights = Safetensors::open(&model.path, FileAccess::Mapped).unwrap();
    let table = weights
        .tensor("model.embed_tokens.weight", &[model.vocab_size, hidden])
        .unwrap();
    for token in 1..=TOKENS {
        values.extend(table.to_f32(token * hidden..(token + 1) * hidden));
    }
    assert!(state(0) == values, "the first layer reads the embedding");

    // The output of a model of fewer layers is the input of the next layer, normed.
    let backend = &mut alone(Dtype::Float32);
    let norm = weights
        .tensor("model.norm.weight", &[hidden])
        .unwrap()
        .to_f32(0..hidden);
    let norm = backend.load_vector(&norm).unwrap();
    for layers in 1..3 {
        let shallow = ModelConfig {
            layers: model.layers[..layers].to_vec(),
            ..model.clone()
        };
        let mut shallow = Kept::new(alone(Dtype::Float32), &shallow, spec(&[], true));
        shallow.run(0..TOKENS, &[]);
        let input = tensor(backend, &state(layers), hidden);
        let mut normed = backend.tensor(TOKENS, hidden, Holds::Operand).unwrap();
        backend.rms_norm(&input, &norm, model.rms_norm_eps, &mut normed);
        assert!(normed.values() == shallow.features());
    }

    // The head over the last state gives the logits.
    let last = tensor(&mut kept.backend, &state(3), hidden);
    let mut out = kept
        .backend
        .tensor(TOKENS, model.vocab_size, Holds::Logits)
        .unwrap();
    kept.backend
        .matmul(&last, Linear::unbiased(kept.model.tables().head), &mut out);
    assert!(out.values() == logits);
}

#[test]
fn chunks_keep_the_bits_of_whole_texts() {
    let mut whole = Kept::new(alone(Dtype::Bfloat16), &qwen3(), spec(&[1], true));
    whole.run(0..TOKENS, &[]);
    let mut parts = Kept::new(alone(Dtype::Bfloat16), &qwen3(), spec(&[1], true));
    let mut features = Vec::new();
    for (range, wanted) in [(0..3, &[][..]), (3..4, &[0]), (4..4, &[]), (4..10, &[1, 3])] {
        parts.run(range, wanted);
        features.extend(parts.features());
    }
    assert!(features == whole.features());
}

/// The residual stream is equal on all ranks, and equal to that of a rank alone up to
/// rounding.
#[test]
fn ranks_keep_the_same() {
    let mut single = Kept::new(alone(Dtype::Float32), &qwen3(), spec(&[1, 2], true));
    single.run(0..TOKENS, &[9]);
    let work = Arc::new(|backend| {
        let mut kept = Kept::new(backend, &qwen3(), spec(&[1, 2], true));
        kept.run(0..TOKENS, &[9]);
        kept.features()
    });
    let ranks = local_group(2).into_iter().map(|group| {
        let work = work.clone();
        thread::spawn(move || work(cpu(Dtype::Float32, Box::new(group))))
    });
    let ranks: Vec<_> = ranks.collect();
    let kept: Vec<Vec<f32>> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    assert!(kept[0] == kept[1]);
    for (one, two) in single.features().iter().zip(&kept[0]) {
        assert!((one - two).abs() <= 1e-4, "{two} instead of {one}");
    }
}

/// States that a pass kept until it failed are not read as if they were complete.
#[test]
fn a_failed_pass_keeps_nothing() {
    let mut ranks = local_group(2).into_iter().map(|group| {
        move || {
            let backend = cpu(Dtype::Float32, Box::new(group));
            let mut kept = Kept::new(backend, &qwen3(), spec(&[1], true));
            kept.run(0..4, &[3]);
            kept
        }
    });
    let (own, peer) = (ranks.next().unwrap(), ranks.next().unwrap());
    let peer = thread::spawn(move || drop(peer()));
    let mut kept = own();
    peer.join().unwrap();
    assert!(!kept.features().is_empty());
    let error = kept.try_run(4..6, &[0]).unwrap_err();
    assert!(
        matches!(error, ModelError::Backend(BackendError::Collective(_))),
        "{error}"
    );
    assert!(kept.model.features().is_some() && kept.features().is_empty());
}

/// Ranks compare schedules before serving. The schedules must list the real collectives.
#[test]
fn collectives_follow_the_schedule() {
    for spec in specs() {
        let backend = Naive::new(Box::new(Single::new()));
        let mut kept = Kept::new(backend, &qwen3(), spec);
        for wanted in [&[][..], &[9], &[0, 4, 9], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]] {
            kept.backend.issued.clear();
            kept.run(0..TOKENS, wanted);
            let schedule = kept.model.schedule();
            let steps: Vec<_> = schedule.steps(wanted.len()).copied().collect();
            assert_eq!(kept.backend.issued, steps);
        }
    }
}

#[test]
fn layers_that_are_not_there_are_refused() {
    let mut kept = Kept::new(alone(Dtype::Float32), &qwen3(), spec(&[0], false));
    let refused = kept
        .model
        .set_capture(&mut kept.backend, spec(&[1, 3], false));
    assert!(matches!(
        refused,
        Err(ModelError::NoSuchLayer {
            layer: 3,
            layers: 3
        })
    ));
    kept.model
        .set_capture(&mut kept.backend, spec(&[], false))
        .unwrap();
    assert!(kept.model.features().is_none());
}

/// Each layer has its own rotary angles and epsilon. A change in one layer leaves the
/// residual stream before it as it was.
#[test]
fn a_layer_has_angles_and_an_epsilon_of_its_own() {
    let states = |change: &dyn Fn(&mut ModelConfig)| {
        let mut model = qwen3();
        change(&mut model);
        let hidden = model.hidden_size;
        let mut kept = Kept::new(alone(Dtype::Float32), &model, spec(&[1, 2], false));
        kept.run(0..TOKENS, &[]);
        let features = kept.features();
        [0, 1].map(|place| column(&features, 2 * hidden, hidden, place))
    };
    let plain = states(&|_| ());
    for eps in [false, true] {
        let changed = |layer: usize| {
            states(&|model| match eps {
                true => model.layers[layer].rms_norm_eps = 0.3,
                false => model.layers[layer].attention_mut().unwrap().rope.theta = 50.0,
            })
        };
        assert!(changed(0)[0] != plain[0]);
        let second = changed(1);
        assert!(second[0] == plain[0] && second[1] != plain[1]);
    }
}
