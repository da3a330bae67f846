//! Trees of drafts: a path has the bits of the same tokens in a chain.

use lockstep_backend::Backend;
use lockstep_backend_cuda::{CollectiveOptions, CudaBackend, CudaOptions};
use lockstep_collective::Single;
use lockstep_model::HiddenSource;
use lockstep_types::{DraftModel, Dtype, KvCacheDtype, ModelConfig};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::{
    head::{Rig, Setup},
    nextn,
    support::{Checkpoint, cpu},
};

/// A target, what drafts for it, and its folder as long as it is read.
struct Drafts {
    target: ModelConfig,
    draft: DraftModel,
    _folder: Option<TempDir>,
}

impl Drafts {
    fn of(checkpoint: Checkpoint) -> Self {
        let (folder, draft) = checkpoint.write();
        Self {
            target: checkpoint.target,
            draft,
            _folder: Some(folder),
        }
    }

    fn eagle() -> Self {
        Self::of(Checkpoint::eagle())
    }

    fn eagle3() -> Self {
        Self::of(Checkpoint::eagle3_normed())
    }

    fn nextn() -> Self {
        Self::own("glm4_moe")
    }

    fn in_turn() -> Self {
        Self::own(nextn::SEVERAL[0].0)
    }

    fn own(model: &str) -> Self {
        let (target, draft) = nextn::models(model);
        Self {
            target,
            draft,
            _folder: None,
        }
    }

    fn models(&self) -> (&ModelConfig, &DraftModel) {
        (&self.target, &self.draft)
    }
}

/// Grows a tree level by level, every pass over the whole tree, as drafters do. Then runs
/// each path of the tree as a chain.
fn agree<B: Backend>(
    backend: B,
    (target, draft): (&ModelConfig, &DraftModel),
    setup: Setup,
    nodes: &[(u32, Option<usize>)],
) {
    let mut rig = Rig::new(backend, target, draft, setup);
    let text = [3, 1, 4, 1, 5, 9, 2, 6, 5];
    rig.prefill(&text, 1).unwrap();
    let (backend, drafting) = rig.drafting();
    let depth = |mut node: usize| {
        let mut depth = 0;
        while let Some(parent) = nodes[node].1 {
            (node, depth) = (parent, depth + 1);
        }
        depth
    };
    let depths: Vec<usize> = (0..nodes.len()).map(depth).collect();
    let mut tree = vec![Vec::new(); nodes.len()];
    for level in 0..=depths.iter().copied().max().unwrap_or(0) {
        let known = depths.iter().take_while(|depth| **depth <= level).count();
        drafting.nodes(backend, text.len(), 1, &nodes[..known]);
        // Each layer's output is for its own level; one layer has the same for all.
        let first = match drafting.head.layers() {
            1 => 0,
            _ => depths.iter().take_while(|depth| **depth < level).count(),
        };
        for (node, logits) in tree.iter_mut().enumerate().take(known).skip(first) {
            *logits = drafting.logits(backend, &[HiddenSource::Output(node as u32)]);
        }
    }
    for (node, in_tree) in tree.iter().enumerate() {
        let mut path: Vec<usize> =
            std::iter::successors(Some(node), |node| nodes[*node].1).collect();
        path.reverse();
        let path: Vec<u32> = path.into_iter().map(|node| nodes[node].0).collect();
        let mut source = HiddenSource::Root(1);
        for end in 1..=path.len() {
            source = drafting.chain(backend, text.len(), 1, &path[..end]);
        }
        let chain = drafting.logits(backend, &[source]);
        assert!(chain == *in_tree, "node {node} of {nodes:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_path_has_the_bits_of_a_chain(
        choices in prop::collection::vec((0u32..331, 0usize..3), 1..8),
        page_size in prop::sample::select(vec![1usize, 3, 16]),
        kind in 0usize..4,
        low in any::<bool>(),
    ) {
        // Breadth first: parents never fall, so levels are prefixes.
        let mut nodes: Vec<(u32, Option<usize>)> = Vec::new();
        let mut parent = 0usize;
        for (token, step) in choices {
            parent = (parent + step).min(nodes.len());
            nodes.push((token, parent.checked_sub(1)));
        }
        let drafts = [Drafts::eagle, Drafts::eagle3, Drafts::nextn, Drafts::in_turn][kind]();
        let (compute, kv_dtype) = match low {
            true => (Dtype::Bfloat16, KvCacheDtype::Bfloat16),
            false => (Dtype::Float32, KvCacheDtype::Float32),
        };
        let setup = Setup { page_size, chunk: 4, kv_dtype, positions: 20 };
        let backend = cpu(compute, Box::new(Single::new()));
        agree(backend, drafts.models(), setup, &nodes);
    }
}

/// A path has the bits of a chain on a GPU, too. Cargo runs this on the fake GPU.
#[test]
fn a_path_has_the_bits_of_a_chain_on_cuda() {
    let nodes = [
        (7, None),
        (9, None),
        (11, Some(0)),
        (7, Some(0)),
        (5, Some(1)),
        (300, Some(3)),
    ];
    for (seed, (compute, kv_dtype, page_size)) in (1..).zip([
        (Dtype::Bfloat16, KvCacheDtype::Bfloat16, 3),
        (Dtype::Float32, KvCacheDtype::Float32, 1),
        (Dtype::Float32, KvCacheDtype::Bfloat16, 16),
    ]) {
        let all = [
            Drafts::eagle,
            Drafts::eagle3,
            Drafts::nextn,
            Drafts::in_turn,
        ];
        for drafts in all.map(|drafts| drafts()) {
            let _order = lockstep_fake_cuda::order(seed);
            let options = CudaOptions {
                ordinal: 0,
                dtype: compute,
                kernels: None,
                graphs: vec![1, 2, 4, 8],
                collectives: CollectiveOptions::default(),
            };
            let backend = CudaBackend::new(&options, Box::new(Single::new())).unwrap();
            let setup = Setup {
                page_size,
                chunk: 4,
                kv_dtype,
                positions: 20,
            };
            agree(backend, drafts.models(), setup, &nodes);
        }
    }
}
