//! DFlash models of random weights against a plain construction in PyTorch, and the backends
//! against each other.

use std::{fs, path::PathBuf};

use lockstep_backend::{Axis, Backend};
use lockstep_collective::Single;
use lockstep_model::{
    DflashModel, FileAccess, ForwardLimits, LoadOptions, ModelCache, ModelError, Transformer,
};
use lockstep_types::{DraftKind, DraftModel, Dtype, KvCacheDtype, ModelConfig};

use crate::{
    naive::Naive,
    pass::{Pass, fixture},
    support::cpu,
};

#[derive(serde::Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
}

#[derive(serde::Deserialize)]
struct Prompt {
    ids: Vec<u32>,
    /// For each mask, the likeliest tokens and their logits.
    top5: Vec<Vec<(u32, f32)>>,
}

const TOLERANCE: f32 = 2e-4;
const FOLDERS: [&str; 2] = ["dflash", "dflash_windows"];
const POSITIONS: usize = 96;

fn folder(name: &str) -> PathBuf {
    fixture("../drafts").join(name)
}

fn golden(name: &str) -> Vec<Prompt> {
    let text = fs::read(folder(name).join("golden.json")).unwrap();
    serde_json::from_slice::<Golden>(&text).unwrap().prompts
}

fn models(name: &str) -> (ModelConfig, DraftModel) {
    let target = lockstep_model_folder::load(&fixture("qwen3")).unwrap();
    let draft = lockstep_model_folder::draft::dflash(&folder(name), &target).unwrap();
    (target, draft)
}

fn limits(page_size: usize) -> ForwardLimits {
    ForwardLimits {
        max_tokens: POSITIONS,
        requests: 2,
        positions: POSITIONS,
        groups: 1,
        page_size,
        tree_nodes: 0,
        replays: 0,
        // Less than a block of logits has.
        logit_block_rows: 3,
        max_commit: 0,
    }
}

/// A target, and the model that drafts for it.
struct Rig<B: Backend> {
    backend: B,
    target: Transformer<B>,
    cache: ModelCache<B>,
    draft: DflashModel<B>,
    draft_cache: ModelCache<B>,
    page_size: usize,
}

impl<B: Backend> Rig<B> {
    fn new(mut backend: B, name: &str, page_size: usize) -> Self {
        let (model, draft) = models(name);
        let (limits, silent) = (limits(page_size), &mut |_| {});
        let options = LoadOptions::new(Axis::World, limits);
        let mut target = Transformer::load(&mut backend, &model, options, silent).unwrap();
        let files = FileAccess::Mapped;
        let draft = DflashModel::load(&mut backend, &draft, &model, limits, files, silent).unwrap();
        target.set_capture(&mut backend, draft.capture()).unwrap();
        let (pages, dtype) = (POSITIONS.div_ceil(page_size), KvCacheDtype::Float32);
        Self {
            cache: target
                .kv_cache(&mut backend, pages, page_size, dtype)
                .unwrap(),
            draft_cache: draft
                .kv_cache(&mut backend, pages, page_size, dtype)
                .unwrap(),
            backend,
            target,
            draft,
            page_size,
        }
    }

    /// Runs the target over `text`, in chunks, and takes its hidden states into the draft.
    fn take_in(&mut self, text: &[u32], chunk: usize) {
        let last = POSITIONS.div_ceil(self.page_size) as u32 - 1;
        for start in (0..text.len()).step_by(chunk) {
            let range = start..text.len().min(start + chunk);
            let rows: Vec<u32> = (0..range.len() as u32).collect();
            let mut pass = Pass::default();
            pass.push(text, range, self.page_size, |page| last - page as u32);
            let (backend, batch) = (&mut self.backend, pass.batch(&[]));
            self.target
                .forward(backend, &mut self.cache, &batch, None, &mut |_| {})
                .unwrap();
            let features = self.target.features().unwrap();
            let cache = &mut self.draft_cache;
            self.draft
                .take_in(backend, cache, features, &rows, &batch)
                .unwrap();
        }
    }

    /// Returns the logits of all masks of the block behind a text of `known` tokens, whose last
    /// one is `token`.
    fn block(&mut self, token: u32, known: usize) -> Vec<Vec<f32>> {
        let size = self.draft.spec().block_size;
        let mut text = vec![self.draft.spec().mask_token_id; known - 1 + size];
        text[known - 1] = token;
        let last = POSITIONS.div_ceil(self.page_size) as u32 - 1;
        let mut pass = Pass::default();
        let range = known - 1..text.len();
        pass.push(&text, range, self.page_size, |page| last - page as u32);
        pass.rows[0].mask = Some(0);
        pass.masks = vec![(1 << size) - 1; size];
        let (backend, tables) = (&mut self.backend, self.target.tables());
        let cache = &mut self.draft_cache;
        self.draft
            .forward(backend, cache, tables, &pass.batch(&[]))
            .unwrap();
        let mut all = Vec::new();
        for row in 1..size as u32 {
            let logits = self.draft.logits(backend, tables, &[row]).unwrap();
            all.push(logits.to_vec());
        }
        all
    }

    /// Drafts behind every prompt of a golden.
    fn drafts(&mut self, prompts: &[Prompt], chunk: usize) -> Vec<Vec<Vec<f32>>> {
        let draft = |prompt: &Prompt| {
            let (token, text) = prompt.ids.split_last().unwrap();
            self.take_in(text, chunk);
            self.block(*token, prompt.ids.len())
        };
        prompts.iter().map(draft).collect()
    }
}

fn on_cpu(name: &str, page_size: usize) -> Rig<impl Backend> {
    Rig::new(
        cpu(Dtype::Float32, Box::new(Single::new())),
        name,
        page_size,
    )
}

#[test]
fn blocks_are_filled_as_the_plain_construction_does() {
    for name in FOLDERS {
        let prompts = golden(name);
        let mut firsts = Vec::new();
        let found = on_cpu(name, 16).drafts(&prompts, 64);
        for (prompt, found) in prompts.iter().zip(&found) {
            assert_eq!(found.len(), prompt.top5.len(), "{name}");
            for (mask, (logits, top5)) in found.iter().zip(&prompt.top5).enumerate() {
                for (token, expected) in top5 {
                    let error = (logits[*token as usize] - expected).abs();
                    assert!(error <= TOLERANCE, "{name}, mask {mask}: off by {error}");
                }
                let best = crate::head::argmax(logits);
                if top5[0].1 - top5[1].1 > 2.0 * TOLERANCE {
                    assert_eq!(best, top5[0].0, "{name}, mask {mask}");
                }
                firsts.push(best);
            }
        }
        firsts.sort_unstable();
        firsts.dedup();
        assert!(firsts.len() > 4, "{name}: {firsts:?}");
    }
}

/// The context is the same however it came, and a block leaves nothing behind that counts.
#[test]
fn chunks_and_pages_change_no_bit() {
    for name in FOLDERS {
        let prompts = golden(name);
        let expected = on_cpu(name, 16).drafts(&prompts, 64);
        for (page_size, chunk) in [(1, 7), (64, 1), (4, 96)] {
            let mut rig = on_cpu(name, page_size);
            assert!(
                rig.drafts(&prompts, chunk) == expected,
                "{name}, {page_size}"
            );
            // Another block in the same cells, and the same context again.
            let text = &prompts[2].ids;
            rig.block(9, 1);
            assert!(rig.drafts(&prompts[..3], chunk) == expected[..3], "{name}");
            assert_eq!(rig.block(*text.last().unwrap(), text.len()), expected[2]);
        }
    }
}

#[test]
fn backends_agree() {
    for name in FOLDERS {
        let prompts = &golden(name)[..3];
        let exact = Rig::new(Naive::new(Box::new(Single::new())), name, 4).drafts(prompts, 5);
        let found = on_cpu(name, 4).drafts(prompts, 5);
        let all = |logits: &[Vec<Vec<f32>>]| logits.concat().concat();
        for (exact, found) in all(&exact).iter().zip(all(&found)) {
            assert!(
                (exact - found).abs() <= TOLERANCE,
                "{found} instead of {exact}"
            );
        }
    }
}

#[test]
fn impossible_requests_are_refused() {
    let mut rig = on_cpu("dflash", 16);
    rig.take_in(&[5, 6, 7], 3);
    let (backend, tables) = (&mut rig.backend, rig.target.tables());
    let error = rig.draft.logits(backend, tables, &[0]).unwrap_err();
    assert!(
        matches!(error, ModelError::NoHiddenState { count: 0, .. }),
        "{error}"
    );
    let error = rig
        .draft
        .logits(backend, tables, &[0, 1, 2, 3])
        .unwrap_err();
    assert!(
        matches!(error, ModelError::TooLarge { limit: 3, .. }),
        "{error}"
    );
    let mut pass = Pass::default();
    pass.push(&[5, 6, 7], 0..3, 16, |page| page as u32);
    let (features, batch) = (rig.target.features().unwrap(), pass.batch(&[]));
    let cache = &mut rig.draft_cache;
    let error = rig.draft.take_in(backend, cache, features, &[0, 1], &batch);
    let error = error.unwrap_err();
    assert!(
        matches!(error, ModelError::HiddenInputs { tokens: 3, fed: 2 }),
        "{error}"
    );
    let (model, mut draft) = models("dflash");
    draft.kind = DraftKind::Model;
    let (files, silent) = (FileAccess::Mapped, &mut |_| {});
    let loaded = DflashModel::load(backend, &draft, &model, limits(16), files, silent);
    let error = loaded.err().expect("no DFlash model");
    assert!(matches!(error, ModelError::NotDflash { .. }), "{error}");
}
