//! A model's own draft layers against a plain construction in PyTorch.

use std::{fs, path::PathBuf};

use lockstep_backend::Backend;
use lockstep_backend_cuda::{CollectiveOptions, CudaBackend, CudaOptions};
use lockstep_collective::Single;
use lockstep_model::HiddenSource;
use lockstep_types::{DraftModel, Dtype, KvCacheDtype, ModelConfig};

use crate::{
    head::{REQUESTS, Rig, Setup, argmax},
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
    /// For each position, the likeliest tokens of a first draft.
    positions: Vec<Top5>,
    /// For each draft of a chain, the likeliest tokens.
    drafts: Vec<Top5>,
}

/// The likeliest tokens and their logits.
type Top5 = Vec<(u32, f32)>;

const TOLERANCE: f32 = 5e-4;
/// Draft layers with experts, with latent attention too, and beside recurrent layers.
const FOLDERS: [&str; 6] = [
    "glm4_moe",
    "deepseek_v3",
    "glm4_moe_lite",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
];

/// Models with three draft layers, and with two beside experts in groups and latent attention.
pub const SEVERAL: [(&str, usize); 2] = [("glm4_moe_three", 3), ("deepseek_v3_two", 2)];

fn folder(name: &str) -> PathBuf {
    fixture("../nextn").join(name)
}

fn golden(name: &str) -> Vec<Prompt> {
    let text = fs::read(folder(name).join("golden.json")).unwrap();
    serde_json::from_slice::<Golden>(&text).unwrap().prompts
}

/// The target and its draft layer.
pub fn models(name: &str) -> (ModelConfig, DraftModel) {
    let target = lockstep_model_folder::load(&folder(name)).unwrap();
    let draft = lockstep_model_folder::draft::nextn(None, &target).unwrap();
    (target, draft)
}

/// Returns the logits of each draft of the golden's chains, in f32.
fn drafted(
    backend: impl Backend,
    name: &str,
    chunk: usize,
    page_size: usize,
) -> Vec<Vec<Vec<f32>>> {
    let (target, draft) = models(name);
    let setup = Setup {
        page_size,
        chunk,
        kv_dtype: KvCacheDtype::Float32,
        positions: 80,
    };
    let mut rig = Rig::new(backend, &target, &draft, setup);
    let chain = |prompt: Prompt| {
        let slot = 1;
        assert_eq!(rig.prefill(&prompt.ids, slot), Some(prompt.next));
        let (backend, drafting) = rig.drafting();
        let mut chain = vec![drafting.logits(backend, &[HiddenSource::Root(slot)])];
        let mut tokens = Vec::new();
        while chain.len() < prompt.drafts.len() {
            tokens.extend(chain.last().map(|logits| argmax(logits)));
            let output = drafting.chain(backend, prompt.ids.len(), slot, &tokens);
            chain.push(drafting.logits(backend, &[output]));
        }
        chain
    };
    golden(name).into_iter().map(chain).collect()
}

fn check(name: &str, found: &[Vec<Vec<f32>>]) {
    for (prompt, chain) in golden(name).iter().zip(found) {
        let what = format!("{name}, {} tokens, draft", prompt.ids.len());
        near(&what, &prompt.drafts, chain);
    }
}

/// Asserts that logits are those of the reference.
fn near(what: &str, expected: &[Top5], found: &[Vec<f32>]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (top5, logits)) in expected.iter().zip(found).enumerate() {
        assert_eq!(top5.len(), 5);
        for (token, expected) in top5 {
            let error = (logits[*token as usize] - expected).abs();
            assert!(error <= TOLERANCE, "{what} {at}: off by {error}");
        }
        if top5[0].1 - top5[1].1 > 2.0 * TOLERANCE {
            assert_eq!(argmax(logits), top5[0].0);
        }
    }
}

/// Compares chains behind prompts with the reference, whatever the chunks of the prompt are.
fn draft_chains(name: &str) {
    let exact = || cpu(Dtype::Float32, Box::new(Single::new()));
    let whole = drafted(exact(), name, usize::MAX, 16);
    check(name, &whole);
    for (chunk, page_size) in [(1, 1), (7, 3), (64, 64)] {
        assert!(drafted(exact(), name, chunk, page_size) == whole, "{name}");
    }
    let naive = Naive::new(Box::new(Single::new()));
    check(name, &drafted(naive, name, usize::MAX, 16));
}

/// Compares first drafts behind every position of prompts, not only behind their ends.
fn draft_at_each_position(name: &str) {
    let (target, draft) = models(name);
    let setup = Setup {
        page_size: 16,
        // Each token becomes the root of a slot, where one layer drafts.
        chunk: if draft.layers_in_turn() > 1 {
            1
        } else {
            REQUESTS
        },
        kv_dtype: KvCacheDtype::Float32,
        positions: 80,
    };
    let backend = cpu(Dtype::Float32, Box::new(Single::new()));
    let mut rig = Rig::new(backend, &target, &draft, setup);
    for prompt in golden(name) {
        let what = format!("{name}, {} tokens, position", prompt.ids.len());
        near(&what, &prompt.positions, &rig.positions(&prompt.ids));
    }
}

#[test]
fn a_draft_layer_drafts_as_the_reference_does() {
    FOLDERS.into_iter().for_each(draft_chains);
}

#[test]
fn a_draft_layer_drafts_as_the_reference_does_at_each_position() {
    FOLDERS.into_iter().for_each(draft_at_each_position);
}

/// Chains go on behind the last layer.
#[test]
fn several_draft_layers_draft_as_the_reference_does() {
    for (name, layers) in SEVERAL {
        assert_eq!(models(name).1.layers_in_turn(), layers);
        assert!(
            golden(name)
                .iter()
                .all(|prompt| prompt.drafts.len() > layers + 1)
        );
        draft_chains(name);
        draft_at_each_position(name);
    }
}

/// Cargo runs this on the fake GPU.
#[test]
fn a_draft_layer_drafts_as_the_reference_does_on_cuda() {
    let _order = lockstep_fake_cuda::order(5);
    let options = CudaOptions {
        ordinal: 0,
        dtype: Dtype::Float32,
        kernels: None,
        graphs: vec![1, 2],
        collectives: CollectiveOptions::default(),
    };
    for name in ["glm4_moe", "qwen3_5", "glm4_moe_three"] {
        let backend = CudaBackend::new(&options, Box::new(Single::new())).unwrap();
        check(name, &drafted(backend, name, 40, 16));
    }
}
