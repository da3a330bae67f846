//! The trees that a device grows equal the trees that the host grows from the same logits.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use lockstep_backend::{
    Axis, Batch, ChainBatch, CheckpointDtype, Choice, ChoiceBatch, ChoiceMethod, ChoiceRow, Chosen,
    DraftedRow, Exchange as _, Holds, HostBlock, HostFloats, HostMatrix, InputLimits, KvShape,
    Memory as _, Ops as _, Owners, PassKey, Passes as _, Row, TreePass, TreeSize, WeightFormat,
};
use lockstep_backend_cuda::{
    CollectiveOptions, CudaBackend, CudaMatrix, CudaOptions, CudaPasses, Inputs,
};
use lockstep_collective::Single;
use lockstep_speculation::{Drafts, Node, TreeGrower, TreeShape};
use lockstep_types::{Dtype, KvCacheDtype};

const PAGE: usize = 4;
const CACHED: usize = 6;
/// Number of trees for which a recorded pass has room, beyond the trees that are grown.
const SPARE: usize = 1;

fn gpu() -> CudaBackend {
    let options = CudaOptions {
        ordinal: 0,
        dtype: Dtype::Float32,
        kernels: None,
        graphs: Vec::new(),
        collectives: CollectiveOptions::default(),
    };
    CudaBackend::new(&options, Box::new(Single::new())).unwrap()
}

/// Numbers that look random (splitmix64).
struct Noise(u64);

impl Noise {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit
    }

    /// Returns a row of logits: with few values or with many, with gaps, or not finite.
    fn logits(&mut self, vocab: usize) -> Vec<f32> {
        let kind = self.below(12);
        let mut row: Vec<f32> = (0..vocab)
            .map(|_| match kind {
                0..4 => self.below(5) as f32 - 2.0,
                4..6 => (self.below(3) as f32 - 1.0) * f32::MIN_POSITIVE / 4.0,
                _ => (self.draw() >> 40) as f32 / 1e6 - 8.0,
            })
            .collect();
        let mut set = |value: f32, times: usize| {
            for _ in 0..times {
                let at = self.below(vocab as u64) as usize;
                row[at] = value;
            }
        };
        match kind {
            0 => set(-0.0, vocab / 2),
            1 | 6 => set(f32::NEG_INFINITY, vocab),
            2 => set(f32::NAN, 1),
            7 => set(f32::INFINITY, 1),
            8 => row.fill(f32::NEG_INFINITY),
            9 => {
                row.fill(f32::NEG_INFINITY);
                row[vocab - 1] = 3.0;
            }
            _ => {}
        }
        row
    }
}

/// The shape of a tree, and the host's tree.
struct Tree {
    shape: TreeShape,
    grower: TreeGrower,
    /// Number of nodes that are drafted, over all levels.
    nodes: usize,
}

impl Tree {
    fn new(shape: TreeShape, vocab: usize) -> Self {
        let mut grower = TreeGrower::new(shape);
        grower.begin(shape);
        let nodes = shape.nodes(vocab);
        Self {
            shape,
            grower,
            nodes,
        }
    }

    fn size(&self) -> TreeSize {
        TreeSize {
            steps: self.shape.steps as u32,
            branches: self.shape.topk as u32,
        }
    }
}

/// Returns the target's number of a draft's token.
fn number(id: u32, vocab: usize) -> u32 {
    (7 * id + 3) % vocab as u32
}

/// The batch that verifies trees, or the first pass of each tree, which takes in one token.
#[derive(Default)]
struct Lists {
    tokens: Vec<u32>,
    cells: Vec<u32>,
    positions: Vec<u32>,
    rows: Vec<Row>,
    wanted: Vec<u32>,
    masks: Vec<u64>,
    pages: Vec<u32>,
    uses: Vec<ChoiceRow>,
    drafted: Vec<DraftedRow>,
    parents: Vec<u32>,
}

impl Lists {
    /// Adds a row of `q_len` tokens on pages of its own. The row gets `table` pages.
    fn push(&mut self, q_len: usize, kv_len: usize, table: usize) -> &mut Row {
        let (start, first) = (self.tokens.len(), self.pages.len());
        self.tokens.extend((0..q_len).map(|_| 0));
        self.positions
            .extend((kv_len..kv_len + q_len).map(|at| at as u32));
        self.pages
            .extend((first..first + table).map(|page| page as u32));
        let cells = kv_len..kv_len + q_len;
        self.cells
            .extend(cells.map(|at| (first * PAGE + at) as u32));
        self.rows.push(Row {
            start: start as u32,
            q_len: q_len as u32,
            kv_len: kv_len as u32,
            pages_start: first as u32,
            mask: None,
        });
        self.rows.last_mut().unwrap()
    }

    /// Adds the row that verifies `nodes` nodes. At first each node follows the root.
    fn verify(&mut self, nodes: usize, table: usize) {
        let (start, request) = (self.tokens.len() as u32, self.drafted.len() as u32);
        let masked = nodes > 1;
        let mask = masked.then_some(self.masks.len() as u32);
        let parents = masked.then_some(self.parents.len() as u32);
        self.push(nodes + 1, CACHED, table).mask = mask;
        if masked {
            let words = (nodes + 1) * (nodes + 1).div_ceil(64);
            self.masks.extend((0..words).map(|_| u64::MAX));
            self.parents.extend((0..nodes).map(|_| 0));
        }
        self.drafted.push(DraftedRow {
            logits: start,
            token: start,
            nodes: nodes as u32,
            parents,
        });
        let row = ChoiceRow { request, depth: 0 };
        self.uses.extend((0..=nodes).map(|_| row));
    }

    fn batch(&self) -> Batch<'_> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            cells: &self.cells,
            rows: &self.rows,
            pages: &self.pages,
            logit_tokens: &self.wanted,
            masks: &self.masks,
            ..Batch::default()
        }
    }
}

/// Returns the tokens that a pass over `inputs` would look up.
fn tokens(gpu: &mut CudaBackend, names: &CudaMatrix, inputs: &Inputs, most: usize) -> Vec<u32> {
    let mut out = gpu.tensor(most, 1, Holds::Logits).unwrap();
    gpu.upload(&mut out, &vec![0.0; most]);
    let mut looked_up = gpu.tensor(most, 1, Holds::Sum).unwrap();
    gpu.upload(&mut looked_up, &vec![0.0; most]);
    gpu.embed(names, 0, 1.0, inputs, &mut looked_up);
    gpu.place_columns(&looked_up, &mut out, 0);
    let owners = Owners {
        widths: &[1],
        rows: &[0..most; 1],
    };
    let mut space = Vec::new();
    let found = gpu.gather_to_host(Axis::Alone, &out, owners, &mut space);
    found.unwrap().iter().map(|id| *id as u32).collect()
}

/// Loads a vocabulary in which each token's embedding is its number.
fn names(gpu: &mut CudaBackend, vocab: usize) -> CudaMatrix {
    let bytes: Vec<u8> = (0..vocab)
        .flat_map(|id| (id as f32).to_le_bytes())
        .collect();
    let matrix = HostMatrix::Floats(HostFloats {
        cols: 1,
        dtype: CheckpointDtype::F32,
        blocks: vec![HostBlock {
            bytes: &bytes,
            offset: 0,
            stride: 4,
            rows: vocab,
        }],
    });
    gpu.load_matrix(&matrix, WeightFormat::Float).unwrap()
}

/// Returns the tokens and nodes that are taken from a tree if `chosen` are the tokens at its
/// nodes.
fn walk(tree: &[Node], chosen: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let (mut taken, mut path, mut node) = (vec![chosen[0]], Vec::new(), 0);
    let child = |node: u32, token| {
        let follows = |own: &Node| own.parent == node && own.token == token;
        tree.iter().position(follows).map(|at| at as u32 + 1)
    };
    while let Some(next) = child(node, taken[taken.len() - 1]) {
        node = next;
        path.push(node);
        taken.push(chosen[node as usize]);
    }
    (taken, path)
}

/// Batches on the device: the batch that verifies the trees, and the draft's own.
struct Staged {
    inputs: Inputs,
    drafts: Inputs,
    drafted: Vec<DraftedRow>,
    /// Number of tokens that are verified.
    tokens: usize,
    pass: TreePass,
}

/// Stages the batches of `trees`. A tree has at most `steps` levels.
fn stage(gpu: &mut CudaBackend, trees: &[Tree], steps: usize) -> Staged {
    let (mut verified, mut first) = (Lists::default(), Lists::default());
    for tree in trees {
        let table = (CACHED + 1 + tree.nodes.max(tree.size().expanded())).div_ceil(PAGE);
        verified.verify(tree.nodes, table);
        first.push(1, CACHED, table);
        first.wanted.push(first.tokens.len() as u32 - 1);
    }
    verified.wanted = (0..verified.tokens.len() as u32).collect();
    let choice = Choice {
        how: ChoiceMethod::Greedy,
        seed: 0,
        position: 0,
    };
    let requests: Vec<u32> = (0..trees.len() as u32).collect();
    let sizes: Vec<TreeSize> = trees.iter().map(Tree::size).collect();
    let first_batch = first.batch();
    let batch = Batch {
        choices: ChoiceBatch {
            choices: &vec![choice; trees.len()],
            rows: &verified.uses,
            drafted: &verified.drafted,
            parents: &verified.parents,
        },
        chain: Some(ChainBatch {
            first: &first_batch,
            requests: &requests,
            sources: &[],
            trees: &sizes,
        }),
        ..verified.batch()
    };
    let branches = sizes.iter().map(|size| size.branches as usize).max();
    let (branches, count) = (branches.unwrap_or(0), trees.len() + SPARE);
    let expanded = steps * branches;
    let mut limits = InputLimits::of(&batch, PAGE);
    limits.requests += SPARE;
    limits.chain.trees += SPARE;
    let mut inputs = gpu.inputs(&limits).unwrap();
    let draft = InputLimits {
        tokens: count * expanded.max(4),
        requests: count,
        groups: 1,
        pages: limits.chain.pages,
        mask_words: count * expanded * expanded.div_ceil(64),
        replays: 0,
        ..InputLimits::of(&first_batch, PAGE)
    };
    let mut drafts = gpu.inputs(&draft).unwrap();
    gpu.stage(&batch, &mut inputs).unwrap();
    let size = PassKey {
        requests: count,
        tokens: count,
        max_q_len: count,
    };
    gpu.drafter().unwrap().begin(&inputs, &mut drafts, size, 1);
    Staged {
        inputs,
        drafts,
        tokens: verified.tokens.len(),
        drafted: verified.drafted,
        pass: TreePass { size, branches },
    }
}

/// Grows a level of all trees on the host. Returns the logits, with rows of NaN behind them.
fn grow(trees: &mut [Tree], rows: usize, vocab: usize, named: bool, noise: &mut Noise) -> Vec<f32> {
    let mut values = Vec::with_capacity(rows * vocab);
    let begins = trees.iter().all(|tree| tree.grower.expanded().is_empty());
    for tree in trees {
        let wanted = match begins {
            true => 1,
            false => tree.grower.frontier().len(),
        };
        let own: Vec<f32> = (0..wanted).flat_map(|_| noise.logits(vocab)).collect();
        tree.grower.level(&own, &|id| match named {
            true => number(id, vocab),
            false => id,
        });
        values.extend(own);
    }
    values.resize(rows * vocab, f32::NAN);
    values
}

/// Grows trees of `shapes` on both sides. The first shape is the deepest.
fn compare(gpu: &mut CudaBackend, shapes: &[TreeShape], vocab: usize, noise: &mut Noise) {
    let new = |shape: &TreeShape| Tree::new(*shape, vocab);
    let mut trees: Vec<Tree> = shapes.iter().map(new).collect();
    let mut staged = stage(gpu, &trees, shapes[0].steps);
    let TreePass { size, branches } = staged.pass;
    let names = names(gpu, vocab);
    let numbers: Vec<u32> = (0..vocab as u32).map(|id| number(id, vocab)).collect();
    let numbers = gpu.drafter().unwrap().load_ids(&numbers).unwrap();
    let named = noise.below(2) == 1;
    for level in 0..shapes[0].steps {
        let rows = size.tokens * if level == 0 { 1 } else { branches };
        let values = grow(&mut trees, rows, vocab, named, noise);
        let mut logits = gpu.tensor(rows, vocab, Holds::Logits).unwrap();
        gpu.upload(&mut logits, &values);
        let logits = (&logits, named.then_some(&numbers));
        let (inputs, drafts) = (&mut staged.inputs, &mut staged.drafts);
        // Calls after a pass belong to no level of it.
        let grown = gpu.pass(&mut CudaPasses::default(), size, &mut |gpu| {
            let device = gpu.drafter().and_then(|device| device.trees());
            device
                .unwrap()
                .grow(logits, level, inputs, drafts, staged.pass);
            Ok(())
        });
        grown.unwrap();
        let grows = |tree: &&Tree| !tree.grower.frontier().is_empty();
        let nodes = trees.iter().filter(grows);
        let nodes = nodes.flat_map(|tree| tree.grower.expanded());
        let mut expected: Vec<u32> = nodes.map(|node| node.token).collect();
        let most = size.tokens * (level + 1) * branches;
        expected.resize(most, 0);
        let found = tokens(gpu, &names, &staged.drafts, most);
        assert_eq!(found, expected, "level {level} of {shapes:?}");
    }
    let hosts: Vec<Vec<Node>> = trees.iter_mut().map(finished).collect();
    check(gpu, &mut staged, &hosts, &names, noise);
}

/// Checks that the device's trees equal `hosts`, in every place that holds them.
fn check(
    gpu: &mut CudaBackend,
    staged: &mut Staged,
    hosts: &[Vec<Node>],
    names: &CudaMatrix,
    noise: &mut Noise,
) {
    let verified = tokens(gpu, names, &staged.inputs, staged.tokens);
    let chosen: Vec<u32> = verified.iter().map(|_| noise.below(3) as u32).collect();
    let found = accept(gpu, &mut staged.inputs, &chosen);
    for (request, (tree, drafted)) in hosts.iter().zip(&staged.drafted).enumerate() {
        assert_eq!(tree.len(), drafted.nodes as usize);
        let own = &found.drafted[request * found.nodes..][..tree.len()];
        let parents = &found.parents[request * found.nodes..][..tree.len()];
        let node = |(token, parent): (&u32, &u32)| Node {
            token: *token,
            parent: *parent,
        };
        let nodes: Vec<Node> = own.iter().zip(parents).map(node).collect();
        assert_eq!(nodes, *tree, "tree {request}");
        let start = drafted.token as usize;
        assert_eq!(verified[start + 1..][..tree.len()], *own);
        let (taken, path) = walk(tree, &chosen[start..]);
        let words = &found.words[request * 2 * found.most..][..2 * found.most];
        assert_eq!(words[0] as usize, taken.len());
        assert_eq!(words[1..][..taken.len()], taken);
        assert_eq!(words[1 + found.most..][..path.len()], path);
    }
}

fn finished(tree: &mut Tree) -> Vec<Node> {
    let mut drafts = Drafts::new(1, tree.nodes, 0);
    drafts.begin(1);
    tree.grower.finish(&mut drafts, 0);
    drafts.nodes(0).to_vec()
}

/// The device's account of its trees.
struct Told {
    words: Vec<u32>,
    drafted: Vec<u32>,
    parents: Vec<u32>,
    most: usize,
    nodes: usize,
}

/// Makes the device accept with `chosen` as the token of every node. There are three tokens.
fn accept(gpu: &mut CudaBackend, inputs: &mut Inputs, chosen: &[u32]) -> Told {
    let width = 3;
    let logits = chosen.iter().flat_map(|token| {
        let token = *token;
        (0..width as u32).map(move |id| f32::from(u8::from(id == token)))
    });
    let values: Vec<f32> = logits.collect();
    let mut logits = gpu.tensor(chosen.len(), width, Holds::Logits).unwrap();
    gpu.upload(&mut logits, &values);
    let limits = *inputs.limits();
    let shape = KvShape {
        latent: None,
        group: 0,
        layers: 1,
        kv_heads: 1,
        head_dim: 24,
        pages: limits.pages,
        page_size: PAGE,
        dtype: KvCacheDtype::Float32,
    };
    let mut cache = gpu.kv_cache(&shape).unwrap();
    let chooser = gpu.sampler().unwrap();
    chooser.choose(&mut logits, 0, inputs);
    chooser.accept(inputs, std::slice::from_mut(&mut cache));
    let Chosen {
        words,
        drafted,
        parents,
    } = chooser.outcomes(inputs).unwrap();
    Told {
        words: words.to_vec(),
        drafted: drafted.to_vec(),
        parents: parents.to_vec(),
        most: limits.choices.most,
        nodes: limits.choices.nodes(),
    }
}

fn shape(steps: usize, topk: usize, most: usize) -> TreeShape {
    TreeShape { steps, topk, most }
}

#[test]
fn every_small_tree_is_the_hosts() {
    let mut gpu = gpu();
    let mut noise = Noise(1);
    for steps in 1..=4 {
        for topk in 1..=4 {
            let all = shape(steps, topk, usize::MAX).nodes(1000);
            for most in [1, 2, 3, 7, all / 2, all - 1, all] {
                let most = most.clamp(1, all);
                let seed = noise.below(100);
                let _order = lockstep_fake_cuda::order(seed);
                let deepest = shape(steps, topk, most);
                let others = [
                    shape(1 + noise.below(steps as u64) as usize, 3, 9),
                    shape(1, 1 + noise.below(4) as usize, 5),
                ];
                let mut shapes = vec![deepest];
                shapes.extend(others);
                shapes.sort_by_key(|shape| std::cmp::Reverse(shape.steps));
                compare(
                    &mut gpu,
                    &shapes,
                    [5, 40, 1000][noise.below(3) as usize],
                    &mut noise,
                );
            }
        }
    }
}

#[test]
fn large_vocabularies_and_large_trees_are_the_hosts() {
    let mut gpu = gpu();
    let mut noise = Noise(2);
    compare(
        &mut gpu,
        &[shape(3, 4, 15), shape(2, 8, 40)],
        128_256,
        &mut noise,
    );
    // The most candidates that there may be, and masks of several words.
    compare(
        &mut gpu,
        &[shape(4, 16, 150), shape(2, 16, 64)],
        1000,
        &mut noise,
    );
    compare(&mut gpu, &[shape(4, 18, 200)], 128_256 / 16, &mut noise);
}
