//! On a GPU, a request's logits depend neither on the other requests in its passes, nor on
//! whether it decoded, or was verified as a chain or in a tree. This holds for passes of up
//! to 64 tokens.

use std::ops::Range;

use lockstep_backend::Axis;
use lockstep_backend_cuda::{CollectiveOptions, CudaBackend, CudaOptions};
use lockstep_collective::{Collective, Single};
use lockstep_model::{ForwardLimits, LoadOptions, ModelCache, Transformer};
use lockstep_types::{Dtype, KvCacheDtype};

use super::cuda::DTYPES;
use crate::pass::{Pass, fixture};

const MOST_TOKENS: usize = 64;
const PAGE_SIZE: usize = 4;
/// Number of cached tokens of each text. [`NEW`] tokens come after them.
const PREFIXES: [usize; 3] = [7, 30, 61];
const NEW: usize = 5;
const MOST_POSITIONS: usize = 80;

struct Run {
    backend: CudaBackend,
    model: Transformer<CudaBackend>,
    cache: ModelCache<CudaBackend>,
    texts: Vec<Vec<u32>>,
}

impl Run {
    /// Loads a model and fills its cache with the prefixes.
    fn new(name: &str, (dtype, kv_dtype): (Dtype, KvCacheDtype)) -> Self {
        let options = CudaOptions {
            ordinal: 0,
            dtype,
            kernels: None,
            graphs: vec![1, 2, 4, 8, 16, 24, 32, 64],
            collectives: CollectiveOptions::default(),
        };
        let alone: Box<dyn Collective> = Box::new(Single::new());
        let mut backend = CudaBackend::new(&options, alone).unwrap();
        let model = lockstep_model_folder::load(&fixture(name)).unwrap();
        let limits = ForwardLimits {
            max_tokens: MOST_TOKENS,
            requests: PREFIXES.len() + 1,
            positions: MOST_POSITIONS,
            groups: 1,
            page_size: PAGE_SIZE,
            tree_nodes: 2 * NEW,
            replays: 0,
            logit_block_rows: MOST_TOKENS,
            max_commit: 0,
        };
        let options = LoadOptions::new(Axis::World, limits);
        let model = Transformer::load(&mut backend, &model, options, &mut |_| {}).unwrap();
        let pages = (PREFIXES.len() + 1) * MOST_POSITIONS.div_ceil(PAGE_SIZE);
        let vocab = model.model().vocab_size as u32;
        let text =
            |number: u32| (0..MOST_POSITIONS as u32).map(move |at| (number * 11 + at * 37) % vocab);
        let mut run = Self {
            cache: model
                .kv_cache(&mut backend, pages, PAGE_SIZE, kv_dtype)
                .unwrap(),
            texts: (0..4).map(|number| text(number).collect()).collect(),
            backend,
            model,
        };
        for (number, prefix) in PREFIXES.into_iter().enumerate() {
            let mut pass = Pass::default();
            run.push(&mut pass, number, 0..prefix);
            run.forward(&pass);
        }
        run
    }

    /// Adds positions of a text. The pages of all texts are interleaved.
    fn push(&self, pass: &mut Pass, text: usize, range: Range<usize>) {
        let page = |n: usize| (n * self.texts.len() + text) as u32;
        pass.push(&self.texts[text], range, PAGE_SIZE, page);
    }

    /// Adds the new tokens of a text as a path in a tree. Each node of the path but the last
    /// has another child beside the next node of the path.
    fn push_tree(&mut self, pass: &mut Pass, text: usize) {
        let (first, prefix) = (pass.tokens.len(), PREFIXES[text]);
        let own = self.texts[text].clone();
        let vocab = self.model.model().vocab_size as u32;
        let nodes =
            (0..2 * NEW - 1).map(|node| (own[prefix + node / 2] + (node % 2) as u32) % vocab);
        self.texts[text].splice(prefix..prefix + 2 * NEW - 1, nodes);
        self.push(pass, text, prefix..prefix + 2 * NEW - 1);
        self.texts[text] = own;
        pass.rows.last_mut().unwrap().mask = Some(pass.masks.len() as u32);
        let mut path = 0u64;
        for node in 0..2 * NEW - 1 {
            let bit = 1 << node;
            pass.masks.push(path | bit);
            if node % 2 == 0 {
                path |= bit;
            }
            pass.positions[first + node] = (prefix + node.div_ceil(2)) as u32;
        }
    }

    /// Returns the bits of the logits of every token.
    fn forward(&mut self, pass: &Pass) -> Vec<Vec<u32>> {
        assert!(pass.tokens.len() <= MOST_TOKENS);
        let wanted: Vec<u32> = (0..pass.tokens.len() as u32).collect();
        let (mut all, batch) = (Vec::new(), pass.batch(&wanted));
        let mut sink = |block: lockstep_model::LogitBlock<'_>| {
            let rows = block.logits.chunks_exact(block.vocab);
            all.extend(rows.map(|row| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>()));
        };
        let (backend, cache) = (&mut self.backend, &mut self.cache);
        self.model
            .forward(backend, cache, &batch, None, &mut sink)
            .unwrap();
        all
    }

    /// Decodes each text by itself, token by token.
    fn decoded(&mut self) -> Vec<Vec<Vec<u32>>> {
        let each = PREFIXES.into_iter().enumerate().map(|(text, prefix)| {
            let step = |at: usize| {
                let mut pass = Pass::default();
                self.push(&mut pass, text, at..at + 1);
                self.forward(&pass).remove(0)
            };
            (prefix..prefix + NEW).map(step).collect()
        });
        each.collect()
    }
}

/// Decodes all texts together, token by token.
fn decode_together(run: &mut Run, alone: &[Vec<Vec<u32>>]) {
    for step in 0..NEW {
        let mut pass = Pass::default();
        for (text, prefix) in PREFIXES.into_iter().enumerate() {
            run.push(&mut pass, text, prefix + step..prefix + step + 1);
        }
        for (found, alone) in run.forward(&pass).iter().zip(alone) {
            assert!(*found == alone[step], "step {step} of all");
        }
    }
}

/// Verifies each text by itself, as a chain and in a tree.
fn verify_alone(run: &mut Run, alone: &[Vec<Vec<u32>>]) {
    for (text, prefix) in PREFIXES.into_iter().enumerate() {
        let (mut chain, mut tree) = (Pass::default(), Pass::default());
        run.push(&mut chain, text, prefix..prefix + NEW);
        assert!(run.forward(&chain) == alone[text], "chain {text}");
        run.push_tree(&mut tree, text);
        let path: Vec<_> = run.forward(&tree).into_iter().step_by(2).collect();
        assert!(path == alone[text], "tree {text}");
    }
}

/// Runs a tree, a chain, a row that decodes and a prompt in one pass, as many tokens as it
/// holds.
fn verify_in_company(run: &mut Run, alone: &[Vec<Vec<u32>>]) {
    let mut pass = Pass::default();
    run.push_tree(&mut pass, 2);
    run.push(&mut pass, 0, PREFIXES[0]..PREFIXES[0] + NEW);
    run.push(&mut pass, 1, PREFIXES[1]..PREFIXES[1] + 1);
    let rest = MOST_TOKENS - pass.tokens.len();
    run.push(&mut pass, 3, 0..rest);
    let found = run.forward(&pass);
    let (tree, rest) = found.split_at(2 * NEW - 1);
    let path: Vec<_> = tree.iter().step_by(2).cloned().collect();
    assert!(path == alone[2], "a tree in company");
    let (chain, rest) = rest.split_at(NEW);
    assert!(*chain == alone[0], "a chain in company");
    assert!(rest[0] == alone[1][0], "one in company");
}

#[test]
fn decoding_and_verification_have_equal_bits_in_any_company() {
    let others = [decode_together, verify_alone, verify_in_company];
    for name in ["llama", "qwen3", "glm4_moe"] {
        for dtypes in DTYPES {
            let alone = {
                let _order = lockstep_fake_cuda::order(1);
                Run::new(name, dtypes).decoded()
            };
            for (seed, check) in (2..).zip(others) {
                let _order = lockstep_fake_cuda::order(seed);
                check(&mut Run::new(name, dtypes), &alone);
            }
        }
    }
}
