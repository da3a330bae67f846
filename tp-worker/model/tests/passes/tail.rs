//! Last layers that only read the caches of others run over wanted tokens alone.

use lockstep_backend::Axis;
use lockstep_collective::Single;
use lockstep_model::{ForwardLimits, LoadOptions, LogitBlock, ModelCache, Transformer};
use lockstep_types::{KvCacheDtype, ModelConfig};

use crate::naive::Naive;
use crate::pass::{Pass, fixture};

const PAGE_SIZE: usize = 8;
const PAGES: usize = 8;

struct Loaded {
    backend: Naive,
    transformer: Transformer<Naive>,
    cache: ModelCache<Naive>,
    groups: usize,
}

impl Loaded {
    fn of(model: &ModelConfig) -> Self {
        let mut backend = Naive::new(Box::new(Single::new()));
        let groups = model.kv_groups().len();
        let limits = ForwardLimits {
            max_tokens: 20,
            requests: 2,
            positions: 32,
            groups,
            page_size: PAGE_SIZE,
            tree_nodes: 8,
            replays: 0,
            logit_block_rows: 3,
            max_commit: 0,
        };
        let options = LoadOptions::new(Axis::World, limits);
        let transformer = Transformer::load(&mut backend, model, options, &mut |_| {}).unwrap();
        let dtype = KvCacheDtype::Float32;
        let cache = transformer.kv_cache(&mut backend, PAGES, PAGE_SIZE, dtype);
        Self {
            cache: cache.unwrap(),
            backend,
            transformer,
            groups,
        }
    }

    /// Returns the wanted logits of two texts, of which some positions are cached already, and the
    /// number of tokens that attended in all layers.
    fn run(&mut self, cached: usize, wanted: &[u32]) -> (Vec<f32>, usize) {
        let mut pass = Pass::default();
        let text: Vec<u32> = (1..=20).collect();
        pass.push(&text, cached..cached + 6, PAGE_SIZE, |page| page as u32);
        pass.push(&text, 0..4, PAGE_SIZE, |page| 4 + page as u32);
        // Each group has a cache of its own, so all may have equal pages.
        let (cells, pages) = (pass.cells.clone(), pass.pages.clone());
        for _ in 1..self.groups {
            pass.cells.extend(&cells);
            pass.pages.extend(&pages);
        }
        let (mut logits, before) = (Vec::new(), self.backend.attended);
        let mut sink = |block: LogitBlock<'_>| logits.extend_from_slice(block.logits);
        let batch = pass.batch(wanted);
        let (backend, cache) = (&mut self.backend, &mut self.cache);
        self.transformer
            .forward(backend, cache, &batch, None, &mut sink)
            .unwrap();
        (logits, self.backend.attended - before)
    }
}

/// Whatever is wanted has the same bits, and only the wanted tokens attend in the last layers, unless
/// they need others of these: then those are not the last ones of their rows, or there are more than
/// requests.
#[test]
fn the_tail_runs_over_wanted_tokens_alone() {
    let model = lockstep_model_folder::load(&fixture("gemma4_per_layer")).unwrap();
    let reads = model.layers.iter().rev();
    let tail = reads
        .take_while(|layer| layer.attention().unwrap().kv_of.is_some())
        .count();
    let first = model.layers.len() - tail;
    assert!(tail > 1 && first > 0);
    let (all, mut loaded): (Vec<u32>, _) = ((0..10).collect(), Loaded::of(&model));
    let vocab = model.vocab_size;
    // The second turn goes on behind the first.
    for cached in [0, 6] {
        let (expected, attended) = loaded.run(cached, &all);
        assert_eq!(attended, 10 * (first + tail));
        for (wanted, of_tail) in [
            (&[][..], 0),
            (&[5], 1),
            (&[9], 1),
            (&[5, 9], 2),
            (&[8, 9], 2),
            (&[4], 10),
            (&[0, 9], 10),
            (&[5, 8, 9], 10),
        ] {
            let (found, attended) = loaded.run(cached, wanted);
            let row = |row: &u32| &expected[*row as usize * vocab..][..vocab];
            let rows: Vec<f32> = wanted.iter().flat_map(row).copied().collect();
            assert!(found == rows, "{wanted:?} behind {cached}");
            assert_eq!(attended, 10 * first + of_tail * tail, "{wanted:?}");
        }
    }
}
