//! Accepted drafts, and the cells that their keys and values move to.

use lockstep_backend::{
    AttentionShape, Batch, Choice, ChoiceBatch, ChoiceLimits, ChoiceMethod, ChoiceRow, DraftedRow,
    FAILED, InputLimits, KvShape, Row,
};
use lockstep_backend_cuda::{
    Attention, Element, Inputs, LogitRows, PagedCache, SamplingBuffers, SamplingKernels,
};
use lockstep_types::KvCacheDtype;

use crate::sampling::{one_of, sampling};
use crate::support::{Gpu, Noise, tokens};

/// A tree of `nodes` drafts over few tokens, so that chosen tokens are often among the drafts.
fn tree(noise: &mut Noise, nodes: u32) -> Vec<(u32, u32)> {
    let chain = noise.below(3) == 0;
    (0..nodes)
        .map(|before| {
            let parent = if chain {
                before
            } else {
                noise.below(before as usize + 1) as u32
            };
            (noise.below(3) as u32, parent)
        })
        .collect()
}

/// Tokens and nodes of the path that the chosen tokens take, in steps.
fn walk(tree: &[(u32, u32)], chosen: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let (mut taken, mut path, mut node) = (Vec::new(), Vec::new(), 0u32);
    loop {
        let token = chosen[node as usize];
        if token == FAILED {
            path.pop();
            return match taken.is_empty() {
                true => (vec![FAILED], path),
                false => (taken, path),
            };
        }
        taken.push(token);
        let follows = |(own, parent): &(u32, u32)| *parent == node && *own == token;
        let Some(child) = tree.iter().position(follows) else {
            return (taken, path);
        };
        node = child as u32 + 1;
        path.push(node);
    }
}

/// The numbers from 0 to below `count`, in any order.
fn shuffled(noise: &mut Noise, count: usize) -> Vec<u32> {
    let mut all: Vec<u32> = (0..count as u32).collect();
    for left in (2..=count).rev() {
        all.swap(left - 1, noise.below(left));
    }
    all
}

/// Drafts for some requests, the tokens chosen at their nodes, and their cells.
struct Drafting {
    trees: Vec<Vec<(u32, u32)>>,
    /// First node of each request.
    first: Vec<usize>,
    ids: Vec<u32>,
    chosen: Vec<u32>,
    cells: Vec<u32>,
}

/// Largest number of tokens of one request.
const MOST: usize = 71;

impl Drafting {
    fn draw(noise: &mut Noise) -> Self {
        let requests = 1 + noise.below(9);
        let trees: Vec<Vec<(u32, u32)>> = (0..requests)
            .map(|_| {
                let nodes = one_of(noise, &[0, 1, 3, 7, 40, 70]);
                tree(noise, nodes)
            })
            .collect();
        let (mut first, mut ids) = (vec![], vec![]);
        for tree in &trees {
            first.push(ids.len());
            ids.push(9);
            ids.extend(tree.iter().map(|(token, _)| *token));
        }
        let chosen = |noise: &mut Noise| match noise.below(12) {
            0 => FAILED,
            _ => noise.below(3) as u32,
        };
        Self {
            trees,
            first,
            chosen: ids.iter().map(|_| chosen(noise)).collect(),
            cells: shuffled(noise, ids.len()),
            ids,
        }
    }

    /// Lets the device find the accepted drafts, for as many requests as it is told.
    fn accepted(&self, gpu: &Gpu, sampling: &SamplingKernels) -> Inputs {
        let requests = self.trees.len();
        let (mut drafted, mut parents, mut rows) = (vec![], vec![], vec![]);
        for (tree, first) in self.trees.iter().zip(&self.first) {
            let mut numbered = tree.iter().zip(0..);
            let chain = numbered.all(|((_, parent), before)| *parent == before);
            drafted.push(DraftedRow {
                logits: *first as u32,
                token: *first as u32,
                nodes: tree.len() as u32,
                parents: (!chain).then_some(parents.len() as u32),
            });
            if !chain {
                parents.extend(tree.iter().map(|(_, parent)| *parent));
            }
            rows.push(Row {
                start: *first as u32,
                q_len: tree.len() as u32 + 1,
                kv_len: 0,
                pages_start: 0,
                mask: None,
            });
        }
        let choice = Choice {
            how: ChoiceMethod::Greedy,
            seed: 0,
            position: 0,
        };
        let row = ChoiceRow {
            request: 0,
            depth: 0,
        };
        let all: Vec<u32> = (0..self.ids.len() as u32).collect();
        let batch = Batch {
            cells: &self.cells,
            rows: &rows,
            pages: &[0; MOST],
            logit_tokens: &all,
            choices: ChoiceBatch {
                choices: &vec![choice; requests],
                rows: &vec![row; self.ids.len()],
                drafted: &drafted,
                parents: &parents,
            },
            ..tokens(&self.ids)
        };
        // There is room for more requests than there are.
        let mut limits = InputLimits::of(&batch, 1);
        limits.requests += 2;
        limits.choices = ChoiceLimits {
            requests: requests + 2,
            most: MOST,
            ..limits.choices
        };
        let mut inputs = Inputs::new(&gpu.context, limits).expect("room");
        inputs.stage(&gpu.stream, &batch).expect("a copy");
        self.choose(gpu, sampling, &mut inputs);
        sampling.accept(&gpu.stream, &mut inputs).expect("a launch");
        inputs
    }

    /// Lets each token be chosen by logits of its own.
    fn choose(&self, gpu: &Gpu, sampling: &SamplingKernels, inputs: &mut Inputs) {
        const VOCAB: usize = 3;
        let logits: Vec<f32> = self
            .chosen
            .iter()
            .flat_map(|chosen| match *chosen {
                FAILED => [f32::NAN; VOCAB],
                token => [0, 1, 2].map(|id| f32::from(u8::from(id == token))),
            })
            .collect();
        let mut floats = gpu.floats(Element::F32, &logits);
        let rows = self.chosen.len();
        let mut room = SamplingBuffers::new(&gpu.stream, rows).expect("room");
        let logits = LogitRows {
            floats: &mut floats,
            vocab: VOCAB,
            first: 0,
        };
        sampling
            .choose(&gpu.stream, logits, 0..rows, inputs, &mut room)
            .expect("launches");
    }

    /// Words of all requests, and the tokens whose cells move.
    fn read(&self, gpu: &Gpu, inputs: &mut Inputs) -> (Vec<u32>, Vec<Vec<(u32, u32)>>) {
        let words = inputs.outcomes(&gpu.stream).expect("a copy").words.to_vec();
        let moves = inputs.chosen().read_moves(&gpu.stream, self.trees.len());
        (words, moves.expect("a copy"))
    }
}

#[test]
fn drafts_stand_as_far_as_they_were_chosen() {
    let gpu = Gpu::new();
    let sampling = sampling(&gpu);
    let mut depths = [0; 8];
    for seed in 1..30 {
        let _order = lockstep_fake_cuda::order(seed);
        let drafting = Drafting::draw(&mut Noise(seed));
        let mut inputs = drafting.accepted(&gpu, &sampling);
        let (words, moves) = drafting.read(&gpu, &mut inputs);
        for (request, tree) in drafting.trees.iter().enumerate() {
            let own = drafting.first[request];
            let (taken, path) = walk(tree, &drafting.chosen[own..]);
            let mut wanted = vec![0; 2 * MOST];
            wanted[0] = taken.len() as u32;
            wanted[1..][..taken.len()].copy_from_slice(&taken);
            wanted[1 + MOST..][..path.len()].copy_from_slice(&path);
            assert_eq!(words[request * 2 * MOST..][..2 * MOST], wanted);
            let moved = path.iter().zip(1u32..).filter(|(from, to)| *from != to);
            let token = |node: u32| own as u32 + node;
            let moved: Vec<(u32, u32)> =
                moved.map(|(from, to)| (token(*from), token(to))).collect();
            assert_eq!(moves[request], moved);
            depths[path.len().min(7)] += 1;
        }
    }
    assert!(depths[..4].iter().all(|count| *count > 0), "{depths:?}");
}

#[test]
fn cells_of_accepted_drafts_move() {
    let gpu = Gpu::new();
    let sampling = sampling(&gpu);
    let moved: usize = (1..40).map(|seed| cells_move(&gpu, &sampling, seed)).sum();
    assert!(moved > 20, "{moved}");
}

/// Compares the moves of one drawn batch, and returns their number.
fn cells_move(gpu: &Gpu, sampling: &SamplingKernels, seed: u64) -> usize {
    let _order = lockstep_fake_cuda::order(seed);
    let drafting = Drafting::draw(&mut Noise(seed));
    let (heads, head_dim, layers) = (2, 24, 2);
    let shape = AttentionShape::dense(heads, heads, head_dim, 1.0);
    let element = Element::F32;
    let made = Attention::new(&gpu.context, &gpu.compiler, &shape, element, element);
    let attention = made.expect("kernels");
    let (cells, width) = (drafting.ids.len(), heads * head_dim);
    let kv = KvShape {
        latent: None,
        group: 0,
        layers,
        kv_heads: heads,
        head_dim,
        pages: cells,
        page_size: 1,
        dtype: KvCacheDtype::Float32,
    };
    let mut cache = PagedCache::new(&gpu.context, &kv).expect("room");
    let noise = &mut Noise(seed);
    let parts = [0, 1].map(|_| noise.floats(layers * cells * width));
    cache
        .upload(&gpu.stream, &parts[0], &parts[1])
        .expect("a copy");
    let mut inputs = drafting.accepted(gpu, sampling);
    attention
        .copy_accepted(&gpu.stream, &mut cache, &inputs)
        .expect("a launch");
    let (keys, values) = cache.download(&gpu.stream).expect("a copy");
    let (_, moves) = drafting.read(gpu, &mut inputs);
    for (mut expected, found) in parts.into_iter().zip([keys, values]) {
        for (from, to) in moves.iter().flatten() {
            for layer in 0..layers {
                let cell = |token: u32| drafting.cells[token as usize] as usize;
                let at = |token: u32| (layer * cells + cell(token)) * width;
                expected.copy_within(at(*from)..at(*from) + width, at(*to));
            }
        }
        assert!(expected == found, "under {seed}");
    }
    moves.iter().flatten().count()
}

/// A little of every kernel, for sanitizers.
pub fn every_kernel(gpu: &Gpu) {
    let sampling = sampling(gpu);
    assert!(
        (1..4)
            .map(|seed| cells_move(gpu, &sampling, seed))
            .sum::<usize>()
            > 0
    );
}
