//! Both EAGLE heads and the small draft model of the demo model against the reference in
//! PyTorch.

use std::{fs, path::PathBuf, sync::Arc, thread};

use lockstep_backend::{Axis, Exchange as _};
use lockstep_backend_cpu::CpuBackend;
use lockstep_collective::local_group;
use lockstep_model::{
    EagleHead, FileAccess, ForwardLimits, HiddenSource, LoadOptions, Transformer,
};
use lockstep_types::{DraftModel, Dtype, KvCacheDtype, ModelConfig};

use crate::{
    head::{REQUESTS, Rig, Setup, argmax},
    pass::Pass,
    support::cpu,
};

#[derive(serde::Deserialize)]
struct Goldens {
    prompts: Vec<Prompt>,
}

/// Likeliest first drafted tokens: the target's id, the head's id and the logit.
type Top5 = Option<Vec<(u32, u32, f32)>>;

#[derive(serde::Deserialize)]
struct Prompt {
    prompt_ids: Vec<u32>,
    output_ids: Vec<u32>,
    eagle3_first_step_top5: Top5,
    eagle_first_step_top5: Top5,
    draft_first_step_top5: Top5,
}

/// Logits stay below 32, whose float32 spacing is 2e-6. They are sums of a few hundred terms
/// in another order than torch's, through eight layers.
const TOLERANCE: f32 = 2e-4;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn model(name: &str) -> ModelConfig {
    lockstep_model_folder::load(&root().join("models").join(name)).unwrap()
}

fn goldens() -> Vec<Prompt> {
    let text = fs::read(root().join("tests/fixtures/goldens.json")).unwrap();
    let goldens: Goldens = serde_json::from_slice(&text).unwrap();
    assert_eq!(goldens.prompts.len(), 40);
    goldens.prompts
}

/// Runs `work` on every rank of a group and returns rank 0's result.
fn ranks<R: Send + 'static>(
    size: usize,
    work: impl Fn(CpuBackend) -> R + Send + Sync + 'static,
) -> R {
    let work = Arc::new(work);
    let ranks = local_group(size).into_iter().map(|collective| {
        let work = work.clone();
        thread::spawn(move || work(cpu(Dtype::Float32, Box::new(collective))))
    });
    let ranks: Vec<_> = ranks.collect();
    let mut results = ranks.into_iter().map(|rank| rank.join().unwrap());
    results.next().unwrap()
}

/// Returns for every prompt the logits of the first drafted token, and the target's id for
/// each id of the head.
fn first_logits(
    backend: CpuBackend,
    model: &ModelConfig,
    draft: &DraftModel,
    setup: Setup,
) -> Vec<(Vec<f32>, Vec<u32>)> {
    let mut rig = Rig::new(backend, model, draft, setup);
    let mut all = Vec::new();
    for (slot, prompt) in (0..).zip(&goldens()) {
        let slot = slot % REQUESTS as u32;
        let next = rig.prefill(&prompt.prompt_ids, slot);
        if next.is_none() {
            continue;
        }
        assert_eq!(next, Some(prompt.output_ids[0]));
        let (backend, drafting) = rig.drafting();
        let logits = drafting.logits(backend, &[HiddenSource::Root(slot)]);
        let vocab = drafting.head.vocab() as u32;
        assert_eq!(logits.len(), vocab as usize);
        all.push((
            logits,
            (0..vocab)
                .map(|id| drafting.head.target_token(id))
                .collect(),
        ));
    }
    all
}

fn check(name: &str, logits: &[f32], target_of: impl Fn(u32) -> u32, top5: &Top5) -> usize {
    let Some(top5) = top5 else {
        // The first token of the answer was its last.
        return 0;
    };
    for (target, draft, expected) in top5 {
        assert_eq!(target_of(*draft), *target, "{name}");
        let error = (logits[*draft as usize] - expected).abs();
        assert!(error <= TOLERANCE, "{name}: off by {error}");
    }
    if top5[0].2 - top5[1].2 > 2.0 * TOLERANCE {
        assert_eq!(argmax(logits), top5[0].1, "{name}");
    }
    1
}

const SETUPS: [(usize, Setup); 3] = [
    (1, setup(usize::MAX, 16)),
    (1, setup(13, 1)),
    (2, setup(50, 64)),
];

const fn setup(chunk: usize, page_size: usize) -> Setup {
    Setup {
        page_size,
        chunk,
        kv_dtype: KvCacheDtype::Float32,
        positions: 256,
    }
}

fn heads(draft: &DraftModel, top5: fn(&Prompt) -> &Top5) {
    let target = model("lockstep-demo-7m");
    let mut whole: Option<Vec<(Vec<f32>, Vec<u32>)>> = None;
    for (tp_size, setup) in SETUPS {
        let (model, draft) = (target.clone(), draft.clone());
        let found = ranks(tp_size, move |backend| {
            first_logits(backend, &model, &draft, setup)
        });
        let mut checked = 0;
        for (prompt, (logits, targets)) in goldens().iter().zip(&found) {
            let target_of = |id| targets[id as usize];
            checked += check("head", logits, target_of, top5(prompt));
        }
        assert!(checked > 30, "{checked} prompts");
        // One rank's bits depend on neither chunks nor pages.
        if tp_size == 1 {
            assert!(*whole.get_or_insert_with(|| found.clone()) == found);
        }
    }
}

#[test]
fn the_eagle3_head_drafts_as_the_reference_does() {
    let (target, path) = (
        model("lockstep-demo-7m"),
        root().join("models/lockstep-demo-7m-eagle3"),
    );
    let draft = lockstep_model_folder::draft::eagle3(&path, &target).unwrap();
    heads(&draft, |prompt| &prompt.eagle3_first_step_top5);
}

#[test]
fn the_eagle_head_drafts_as_the_reference_does() {
    let (target, path) = (
        model("lockstep-demo-7m"),
        root().join("models/lockstep-demo-7m-eagle"),
    );
    let draft = lockstep_model_folder::draft::eagle(&path, &target).unwrap();
    heads(&draft, |prompt| &prompt.eagle_first_step_top5);
}

/// A draft model is a model like any other. In a group, rank 0 alone has it, with the same
/// bits as without a group.
#[test]
fn the_draft_model_runs_whole_inside_a_group() {
    let run = |mut backend: CpuBackend| {
        if !backend.leads(Axis::Attention) {
            return Vec::new();
        }
        let limits = ForwardLimits {
            max_tokens: 256,
            requests: 1,
            positions: 256,
            groups: 1,
            page_size: 16,
            tree_nodes: 1,
            replays: 0,
            logit_block_rows: 1,
            max_commit: 0,
        };
        let model = model("lockstep-demo-1m-draft");
        let options = LoadOptions::new(Axis::Alone, limits);
        let mut draft = Transformer::load(&mut backend, &model, options, &mut |_| {}).unwrap();
        assert_eq!(draft.shard().topology, lockstep_model::Topology::alone());
        let mut cache = draft
            .kv_cache(&mut backend, 16, 16, KvCacheDtype::Float32)
            .unwrap();
        let goldens = goldens();
        let texts = goldens.iter().map(|prompt| {
            let mut text = prompt.prompt_ids.clone();
            text.push(prompt.output_ids[0]);
            let mut pass = Pass::default();
            pass.push(&text, 0..text.len(), 16, |page| page as u32);
            let mut logits = Vec::new();
            let wanted = [text.len() as u32 - 1];
            let batch = pass.batch(&wanted);
            draft
                .forward(&mut backend, &mut cache, &batch, None, &mut |block| {
                    logits = block.logits.to_vec();
                })
                .unwrap();
            logits
        });
        texts.collect::<Vec<_>>()
    };
    let alone = ranks(1, run);
    let mut checked = 0;
    for (prompt, logits) in goldens().iter().zip(&alone) {
        checked += check("draft", logits, |id| id, &prompt.draft_first_step_top5);
    }
    assert!(checked > 30, "{checked} prompts");
    assert!(ranks(2, run) == alone);
}

/// The rank that drafts loads a head while its peers do something else.
#[test]
fn a_head_waits_for_no_peer() {
    let loaded = ranks(2, |mut backend| {
        let target = model("lockstep-demo-7m");
        let path = root().join("models/lockstep-demo-7m-eagle");
        let draft = lockstep_model_folder::draft::eagle(&path, &target).unwrap();
        let limits = ForwardLimits {
            max_tokens: 1,
            requests: 1,
            positions: 1,
            groups: 1,
            page_size: 16,
            tree_nodes: 1,
            replays: 0,
            logit_block_rows: 1,
            max_commit: 0,
        };
        if backend.leads(Axis::Attention) {
            let head = EagleHead::load(
                &mut backend,
                &draft,
                &target,
                1,
                limits,
                FileAccess::Mapped,
                &mut |_| {},
            );
            return head.unwrap().vocab();
        }
        target.vocab_size
    });
    assert_eq!(loaded, model("lockstep-demo-7m").vocab_size);
}
