//! An EAGLE-3 head for gpt-oss against a plain construction in PyTorch: a target with windows,
//! sinks and experts, and a head with a vocabulary of its own.

use std::{fs, path::PathBuf};

use lockstep_collective::Single;
use lockstep_model::HiddenSource;
use lockstep_types::{DraftModel, Dtype, KvCacheDtype, ModelConfig};

use crate::{
    head::{Rig, Setup, argmax},
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

fn folder() -> PathBuf {
    fixture("../drafts/gpt_oss_eagle3")
}

fn models() -> (ModelConfig, DraftModel) {
    let target = lockstep_model_folder::load(&fixture("gpt_oss")).unwrap();
    let draft = lockstep_model_folder::draft::eagle3(&folder(), &target).unwrap();
    (target, draft)
}

fn prompts() -> Vec<Prompt> {
    let text = fs::read(folder().join("golden.json")).unwrap();
    serde_json::from_slice::<Golden>(&text).unwrap().prompts
}

/// Drafts a chain behind a prompt, and checks the logits of each of its tokens.
fn check(page_size: usize, chunk: usize, prompt: &Prompt) {
    let (target, draft) = models();
    let setup = Setup {
        page_size,
        chunk,
        kv_dtype: KvCacheDtype::Float32,
        positions: POSITIONS,
    };
    let backend = cpu(Dtype::Float32, Box::new(Single::new()));
    let mut rig = Rig::new(backend, &target, &draft, setup);
    assert_eq!(rig.prefill(&prompt.ids, 0), Some(prompt.next));
    let (backend, drafting) = rig.drafting();
    let (mut source, mut position) = (HiddenSource::Root(0), prompt.ids.len());
    for top5 in &prompt.top5 {
        let logits = drafting.logits(backend, &[source]);
        for (token, drafted, expected) in top5 {
            assert_eq!(drafting.head.target_token(*drafted), *token);
            let error = (logits[*drafted as usize] - expected).abs();
            assert!(error <= TOLERANCE, "position {position}: off by {error}");
        }
        assert_eq!(argmax(&logits), top5[0].1, "position {position}");
        drafting.next(backend, position, source, top5[0].0);
        (source, position) = (HiddenSource::Output(0), position + 1);
    }
}

#[test]
fn the_head_drafts_as_the_plain_construction_does() {
    let prompts = prompts();
    assert!(prompts.iter().all(|prompt| prompt.top5.len() == 4));
    for (page_size, chunk) in [(16, POSITIONS), (1, 7), (4, 3)] {
        for prompt in &prompts {
            check(page_size, chunk, prompt);
        }
    }
}
