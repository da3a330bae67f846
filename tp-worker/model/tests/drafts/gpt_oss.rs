//! EAGLE-3 heads for gpt-oss against a plain construction in PyTorch: a target with windows,
//! sinks and experts, and heads with a vocabulary of their own, one of them with all norms.

use std::{fs, path::PathBuf};

use lockstep_backend::Backend;
use lockstep_backend_cuda::{CollectiveOptions, CudaBackend, CudaOptions};
use lockstep_collective::Single;
use lockstep_model::HiddenSource;
use lockstep_types::{DraftKind, DraftModel, Dtype, Eagle3Norms, KvCacheDtype, ModelConfig};

use crate::{
    head::{Rig, Setup, argmax},
    naive::Naive,
    pass::fixture,
    support::cpu,
};

#[derive(serde::Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
}

#[derive(serde::Deserialize)]
struct Prompt {
    ids: Vec<u32>,
    /// The target's token behind them.
    next: u32,
    /// For each token of a chain the likeliest ones: the target's id, the head's id and the logit.
    top5: Vec<Vec<(u32, u32, f32)>>,
}

/// Logits stay below 16. They are sums in another order than torch's, through five layers.
const TOLERANCE: f32 = 5e-4;
const POSITIONS: usize = 64;
const PLAIN: &str = "gpt_oss_eagle3";
const NORMED: &str = "gpt_oss_eagle3_norms";

fn folder(name: &str) -> PathBuf {
    fixture("../drafts").join(name)
}

fn models(name: &str) -> (ModelConfig, DraftModel) {
    let target = lockstep_model_folder::load(&fixture("gpt_oss")).unwrap();
    let draft = lockstep_model_folder::draft::eagle3(&folder(name), &target).unwrap();
    (target, draft)
}

fn prompts(name: &str) -> Vec<Prompt> {
    let text = fs::read(folder(name).join("golden.json")).unwrap();
    serde_json::from_slice::<Golden>(&text).unwrap().prompts
}

fn exact() -> impl Backend {
    cpu(Dtype::Float32, Box::new(Single::new()))
}

/// Drafts the golden's chain behind a prompt. Returns the greatest error of a logit of each draft.
fn errors(
    backend: impl Backend,
    (target, draft): &(ModelConfig, DraftModel),
    (page_size, chunk): (usize, usize),
    prompt: &Prompt,
) -> Vec<f32> {
    let setup = Setup {
        page_size,
        chunk,
        kv_dtype: KvCacheDtype::Float32,
        positions: POSITIONS,
    };
    let mut rig = Rig::new(backend, target, draft, setup);
    assert_eq!(rig.prefill(&prompt.ids, 0), Some(prompt.next));
    let (backend, drafting) = rig.drafting();
    let (mut source, mut position) = (HiddenSource::Root(0), prompt.ids.len());
    let draft = |top5: &Vec<(u32, u32, f32)>| {
        let logits = drafting.logits(backend, &[source]);
        let error = |(token, drafted, expected): &(u32, u32, f32)| {
            assert_eq!(drafting.head.target_token(*drafted), *token);
            (logits[*drafted as usize] - expected).abs()
        };
        let most = top5.iter().map(error).fold(0.0, f32::max);
        if most <= TOLERANCE {
            assert_eq!(argmax(&logits), top5[0].1, "position {position}");
        }
        drafting.next(backend, position, source, top5[0].0);
        (source, position) = (HiddenSource::Output(0), position + 1);
        most
    };
    prompt.top5.iter().map(draft).collect()
}

fn agree(name: &str, errors: &[f32]) {
    assert_eq!(errors.len(), 4);
    assert!(
        errors.iter().all(|error| *error <= TOLERANCE),
        "{name}: off by {errors:?}"
    );
}

#[test]
fn the_heads_draft_as_the_plain_construction_does() {
    for name in [PLAIN, NORMED] {
        let models = models(name);
        for (page_size, chunk) in [(16, POSITIONS), (1, 7), (4, 3)] {
            for prompt in &prompts(name) {
                agree(name, &errors(exact(), &models, (page_size, chunk), prompt));
            }
        }
    }
    let naive = Naive::new(Box::new(Single::new()));
    let prompt = &prompts(NORMED)[1];
    agree(
        NORMED,
        &errors(naive, &models(NORMED), (16, POSITIONS), prompt),
    );
}

/// The golden shows the lack of any norm, from the first draft on where it comes that early.
#[test]
fn a_norm_that_is_left_out_shows() {
    let (target, draft) = models(NORMED);
    let DraftKind::Eagle3 { norms, .. } = draft.kind else {
        panic!("{:?}", draft.kind);
    };
    let prompt = &prompts(NORMED)[1];
    for (first, faulty) in [
        (
            0,
            Eagle3Norms {
                before_projection: false,
                ..norms
            },
        ),
        (
            0,
            Eagle3Norms {
                of_layers: false,
                ..norms
            },
        ),
        (
            0,
            Eagle3Norms {
                before_residual: false,
                ..norms
            },
        ),
        (
            1,
            Eagle3Norms {
                of_output: false,
                ..norms
            },
        ),
    ] {
        assert_ne!(faulty, norms);
        let mut draft = draft.clone();
        if let DraftKind::Eagle3 { norms, .. } = &mut draft.kind {
            *norms = faulty;
        }
        let found = errors(exact(), &(target.clone(), draft), (16, POSITIONS), prompt);
        let wrong = found.iter().position(|error| *error > 100.0 * TOLERANCE);
        assert_eq!(wrong, Some(first), "{faulty:?}: {found:?}");
    }
}

/// Cargo runs this on the fake GPU.
#[test]
fn a_head_with_norms_drafts_as_the_plain_construction_does_on_cuda() {
    let _order = lockstep_fake_cuda::order(6);
    let options = CudaOptions {
        ordinal: 0,
        dtype: Dtype::Float32,
        kernels: None,
        graphs: vec![1],
        collectives: CollectiveOptions::default(),
    };
    let backend = CudaBackend::new(&options, Box::new(Single::new())).unwrap();
    let prompt = &prompts(NORMED)[1];
    let found = errors(backend, &models(NORMED), (16, POSITIONS), prompt);
    agree(NORMED, &found);
}
