//! A verified tree: keys and values of the accepted path move to consecutive cells. The text
//! goes on as if the tree had been a chain.

use lockstep_backend::{Axis, Backend};
use lockstep_collective::Single;
use lockstep_model::{ForwardLimits, LoadOptions, ModelCache, Transformer};
use lockstep_types::{Dtype, KvCacheDtype, ModelConfig};

use crate::{
    groups::{add_groups, two_caches},
    naive::Naive,
    pass::{Pass, fixture},
    support::cpu,
};

const TEXT: [u32; 7] = [3, 1, 4, 1, 5, 9, 2];
/// Token and parent of each node. The first node is the last known token.
const NODES: [(u32, usize); 7] = [(6, 0), (11, 0), (12, 0), (13, 1), (14, 2), (15, 4), (16, 4)];
/// An accepted path; [`NEXT`] is the token after it.
const PATH: [usize; 4] = [0, 2, 4, 6];
const NEXT: u32 = 99;

struct Run<B: Backend> {
    backend: B,
    model: Transformer<B>,
    cache: ModelCache<B>,
    page_size: usize,
    groups: usize,
}

impl<B: Backend> Run<B> {
    fn new(model: &ModelConfig, mut backend: B, page_size: usize, dtype: KvCacheDtype) -> Self {
        let groups = model.kv_groups().len();
        let limits = ForwardLimits {
            max_tokens: 16,
            requests: 1,
            positions: 16,
            groups,
            page_size,
            tree_nodes: NODES.len(),
            replays: 0,
            logit_block_rows: 16,
            max_commit: 0,
        };
        let model = Transformer::load(
            &mut backend,
            model,
            LoadOptions::new(Axis::World, limits),
            &mut |_| {},
        )
        .unwrap();
        let pages = 16usize.div_ceil(page_size);
        let cache = model
            .kv_cache(&mut backend, pages, page_size, dtype)
            .unwrap();
        Self {
            backend,
            model,
            cache,
            page_size,
            groups,
        }
    }

    fn page(&self) -> impl Fn(usize) -> u32 + use<B> {
        let pages = 16usize.div_ceil(self.page_size);
        move |page| (pages - 1 - page) as u32
    }

    fn forward(&mut self, pass: &mut Pass) -> Vec<f32> {
        let pages = 16usize.div_ceil(self.page_size);
        add_groups(pass, self.groups, self.page_size, pages);
        let wanted: Vec<u32> = (0..pass.tokens.len() as u32).collect();
        let (mut logits, batch) = (Vec::new(), pass.batch(&wanted));
        self.model
            .forward(
                &mut self.backend,
                &mut self.cache,
                &batch,
                None,
                &mut |block| {
                    logits.extend_from_slice(block.logits);
                },
            )
            .unwrap();
        logits
    }

    fn chain(&mut self, text: &[u32], from: usize) -> Vec<f32> {
        let mut pass = Pass::default();
        pass.push(text, from..text.len(), self.page_size, self.page());
        self.forward(&mut pass)
    }

    /// Returns the logits of the path and of the token after it.
    fn as_chain(&mut self) -> Vec<f32> {
        self.chain(&TEXT, 0);
        let text: Vec<u32> = TEXT
            .into_iter()
            .chain(PATH.map(|node| NODES[node].0))
            .collect();
        let mut logits = self.chain(&text, TEXT.len());
        let text: Vec<u32> = text.into_iter().chain([NEXT]).collect();
        logits.extend(self.chain(&text, text.len() - 1));
        logits
    }

    fn as_tree(&mut self) -> Vec<f32> {
        self.chain(&TEXT, 0);
        let (start, vocab) = (TEXT.len(), self.model.model().vocab_size);
        let text: Vec<u32> = TEXT.into_iter().chain(NODES.map(|node| node.0)).collect();
        let mut pass = Pass::default();
        pass.push(&text, start..text.len(), self.page_size, self.page());
        pass.rows[0].mask = Some(0);
        let mut depths = [0; NODES.len()];
        for (node, (_, parent)) in NODES.iter().enumerate() {
            let seen = if node > 0 { pass.masks[*parent] } else { 0 };
            depths[node] = if node > 0 { depths[*parent] + 1 } else { 0 };
            pass.masks.push(seen | 1 << node);
            pass.positions[node] = start as u32 + depths[node];
        }
        let all = self.forward(&mut pass);
        let rows = PATH.map(|node| &all[node * vocab..(node + 1) * vocab]);
        let mut logits = rows.concat();
        for (group, cells) in pass.cells.chunks(NODES.len()).enumerate() {
            let moves = (0..).zip(PATH).map(|(to, from)| (cells[from], cells[to]));
            let moves: Vec<_> = moves.collect();
            self.cache.copy_cells(&mut self.backend, group, &moves);
        }
        let text: Vec<u32> = TEXT
            .into_iter()
            .chain(PATH.map(|node| NODES[node].0))
            .chain([NEXT])
            .collect();
        logits.extend(self.chain(&text, text.len() - 1));
        logits
    }
}

/// Trees move cells in one group of layers, and in two.
#[test]
fn a_verified_tree_continues_as_the_chain() {
    let llama = lockstep_model_folder::load(&fixture("llama")).unwrap();
    for model in [llama, two_caches()] {
        for page_size in [1, 3, 16] {
            continues(&model, page_size);
        }
    }
}

fn continues(model: &ModelConfig, page_size: usize) {
    let alone = || Box::new(Single::new());
    for (compute, dtype) in [
        (Dtype::Float32, KvCacheDtype::Float32),
        (Dtype::Bfloat16, KvCacheDtype::Bfloat16),
        (Dtype::Bfloat16, KvCacheDtype::Int8),
    ] {
        let new = || Run::new(model, cpu(compute, alone()), page_size, dtype);
        assert!(new().as_tree() == new().as_chain(), "{page_size} {dtype:?}");
    }
    let dtype = KvCacheDtype::Float32;
    let new = || Run::new(model, Naive::new(alone()), page_size, dtype);
    let (tree, chain) = (new().as_tree(), new().as_chain());
    assert!(tree == chain);
    let cpu = cpu(Dtype::Float32, alone());
    let found = Run::new(model, cpu, page_size, dtype).as_tree();
    for (exact, found) in tree.iter().zip(&found) {
        assert!((exact - found).abs() <= 2e-4, "{found} instead of {exact}");
    }
}
