//! Chains of drafts: from logits to tokens, which the next pass and the verifying batch read.

use lockstep_backend::{
    Batch, ChainBatch, Choice, ChoiceBatch, ChoiceMethod, ChoiceRow, DraftedRow, Holds,
    InputLimits, Linear, Memory as _, Ops as _, PassKey, Passes as _, Row, TreePass, WeightFormat,
};
use lockstep_backend_cuda::{CudaBackend, CudaMatrix, CudaPasses, CudaTensor, Inputs};
use lockstep_types::Dtype;

// `values` reads without an operation: an operation would read only the rows of the level.
use crate::ranks::values;
use crate::support::{gpu, host_matrix, matrix, noise, read, sums};

const PAGE: usize = 4;
/// Number of drafts of each request.
const DEPTHS: [usize; 4] = [1, 3, 0, 2];
/// Request of each chain, the deepest chain first, and number of tokens that the chain takes
/// in.
const CHAINS: [(usize, usize); 3] = [(1, 2), (3, 1), (0, 2)];
const CACHED: usize = 6;

fn row(start: usize, q_len: usize, kv_len: usize, pages_start: usize) -> Row {
    Row {
        start: start as u32,
        q_len: q_len as u32,
        kv_len: kv_len as u32,
        pages_start: pages_start as u32,
        mask: None,
    }
}

/// Lists of a batch whose tokens are 1, 2, 3 and so on.
#[derive(Default)]
struct Lists {
    tokens: Vec<u32>,
    rows: Vec<Row>,
    wanted: Vec<u32>,
}

impl Lists {
    fn push(&mut self, q_len: usize, kv_len: usize, request: usize) {
        let start = self.tokens.len();
        self.tokens
            .extend((start..start + q_len).map(|at| at as u32 + 1));
        self.rows.push(row(start, q_len, kv_len, request * 4));
    }

    fn batch(&self) -> Batch<'_> {
        Batch {
            tokens: &self.tokens,
            positions: &self.tokens,
            cells: &self.tokens,
            rows: &self.rows,
            pages: &PAGES,
            logit_tokens: &self.wanted,
            ..Batch::default()
        }
    }
}

const PAGES: [u32; 16] = [9, 3, 5, 1, 0, 2, 4, 6, 8, 7, 10, 11, 12, 13, 14, 15];

/// The token that the host would choose for a chain.
fn likeliest(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, logit) in logits.iter().enumerate() {
        if *logit > best.1 {
            best = (id as u32, *logit);
        }
    }
    best.0
}

/// Rows of logits with ties, NaNs and other special values.
fn logits(seed: u64, rows: usize, vocab: usize) -> Vec<f32> {
    let mut values = noise(seed, rows * vocab);
    for (at, value) in values.iter_mut().enumerate() {
        *value = match (at as u64).wrapping_mul(seed + 77) % 97 {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            2 => -0.0,
            // The largest value, several times.
            3 => 2.0,
            _ => *value,
        };
    }
    match seed % 4 {
        0 => values[..vocab].fill(f32::NAN),
        1 => values[..vocab].fill(f32::NEG_INFINITY),
        2 => values[vocab - 1] = f32::INFINITY,
        _ => values[..vocab].fill(-0.0),
    }
    if seed % 4 == 3 {
        values[vocab / 2] = 0.0;
    }
    values
}

/// The first `most` tokens that passes over `inputs` look up; 0 in places without one.
fn tokens(gpu: &mut CudaBackend, ids: &CudaMatrix, inputs: &Inputs, most: usize) -> Vec<u32> {
    let mut out = gpu.tensor(most, 1, Holds::Sum).unwrap();
    gpu.upload(&mut out, &vec![0.0; most]);
    gpu.embed(ids, 0, 1.0, inputs, &mut out);
    values(gpu, &out).into_iter().map(|id| id as u32).collect()
}

/// Number of rows, from the first on, that get values from a product of `rows` rows.
fn multiplied(gpu: &mut CudaBackend, weight: &CudaMatrix, rows: usize, vocab: usize) -> usize {
    let mut x = gpu.tensor(rows, 1, Holds::Operand).unwrap();
    gpu.upload(&mut x, &vec![1.0; rows]);
    let mut out = uploaded(gpu, &vec![f32::NAN; rows * vocab], vocab);
    gpu.matmul(&x, Linear::unbiased(weight), &mut out);
    let found = values(gpu, &out);
    let there = found.iter().take_while(|value| !value.is_nan()).count();
    assert!(found[there..].iter().all(|value| value.is_nan()));
    there / vocab
}

fn uploaded(gpu: &mut CudaBackend, values: &[f32], vocab: usize) -> CudaTensor {
    let rows = values.len() / vocab;
    let mut logits = gpu.tensor(rows, vocab, Holds::Logits).unwrap();
    gpu.upload(&mut logits, values);
    logits
}

#[test]
fn a_drafted_token_is_the_hosts_wherever_it_is_read() {
    let mut verified = Lists::default();
    let mut drafted = Vec::new();
    let mut uses = Vec::new();
    for (request, depth) in DEPTHS.into_iter().enumerate() {
        drafted.push(DraftedRow {
            logits: verified.tokens.len() as u32,
            token: verified.tokens.len() as u32,
            nodes: depth as u32,
            parents: None,
        });
        verified.push(depth + 1, CACHED, request);
        let request = request as u32;
        uses.extend((0..=depth as u32).map(|depth| ChoiceRow { request, depth }));
    }
    verified.wanted = (0..verified.tokens.len() as u32).collect();
    let mut first = Lists::default();
    for (request, taken) in CHAINS {
        first.push(taken, CACHED + 1 - taken, request);
        first.wanted.push(first.tokens.len() as u32 - 1);
    }
    let requests = CHAINS.map(|(request, _)| request as u32);
    let sources: Vec<u32> = (0..first.tokens.len() as u32).map(|at| 6 - at).collect();
    let choice = Choice {
        how: ChoiceMethod::Greedy,
        seed: 0,
        position: 0,
    };
    let (first, own) = (first.batch(), verified.batch());
    let batch = Batch {
        choices: ChoiceBatch {
            choices: &[choice; DEPTHS.len()],
            rows: &uses,
            drafted: &drafted,
            parents: &[],
        },
        chain: Some(ChainBatch {
            first: &first,
            requests: &requests,
            sources: &sources,
            trees: &[],
        }),
        ..own
    };
    let most = first.tokens.len();
    for (seed, vocab) in (0..8).zip([40, 3000].into_iter().cycle()) {
        let _order = lockstep_fake_cuda::order(seed);
        let mut gpu = gpu(Dtype::Float32);
        let names: Vec<f32> = (0..vocab).map(|id| id as f32).collect();
        let names = matrix(&names, 1);
        let ids = gpu.load_matrix(&host_matrix(&names, 1), WeightFormat::Float);
        let ids = ids.unwrap();
        // The target numbers the tokens in another way.
        let number = |id: u32| (7 * id + 3) % vocab as u32;
        let numbers: Vec<u32> = (0..vocab as u32).map(number).collect();
        let numbers = gpu.drafter().unwrap().load_ids(&numbers).unwrap();
        let mut inputs = gpu.inputs(&InputLimits::of(&batch, PAGE)).unwrap();
        let limits = InputLimits {
            tokens: 2 * (CHAINS.len() + 1),
            requests: CHAINS.len() + 1,
            groups: 1,
            pages: 16,
            ..InputLimits::of(&first, PAGE)
        };
        let mut drafts = gpu.inputs(&limits).unwrap();
        gpu.stage(&batch, &mut inputs).unwrap();
        // More chains than there are, as in a recorded pass.
        let size = PassKey {
            requests: CHAINS.len() + 1,
            tokens: CHAINS.len() + 1,
            max_q_len: CHAINS.len() + 1,
        };
        gpu.drafter().unwrap().begin(&inputs, &mut drafts, size, 2);
        let mut expected = first.tokens.to_vec();
        expected.resize(2 * size.tokens, 0);
        assert_eq!(tokens(&mut gpu, &ids, &drafts, 2 * size.tokens), expected);
        assert!(most < expected.len());
        let kept = sums(&mut gpu, &[70.0, 71.0, 72.0, 73.0, 74.0, 75.0, 76.0], 1);
        let mut taken = gpu.tensor(2 * size.tokens, 1, Holds::Sum).unwrap();
        gpu.drafter()
            .unwrap()
            .take_sources(&kept, &drafts, &mut taken);
        let found = read(&mut gpu, &taken);
        assert!(found[..most].iter().eq(&[76.0, 75.0, 74.0, 73.0, 72.0]));
        let mut expected = batch.tokens.to_vec();
        for level in 0..4 {
            let values = logits(seed + 11 * level as u64, size.tokens, vocab);
            let rows = uploaded(&mut gpu, &values, vocab);
            let device = gpu.drafter().unwrap();
            let named = (level % 2 == 1).then_some(&numbers);
            device.advance((&rows, named), level, &mut inputs, &mut drafts, size);
            let mut next = vec![0; size.tokens];
            for (chain, (request, _)) in CHAINS.into_iter().enumerate() {
                if DEPTHS[request] > level {
                    let token = likeliest(&values[chain * vocab..][..vocab]);
                    let token = if level % 2 == 1 { number(token) } else { token };
                    expected[drafted[request].token as usize + 1 + level] = token;
                    if DEPTHS[request] > level + 1 {
                        next[chain] = token;
                    }
                }
            }
            let found = tokens(&mut gpu, &ids, &drafts, size.tokens);
            assert_eq!(found, next, "level {level}, seed {seed}");
            let found = tokens(&mut gpu, &ids, &inputs, expected.len());
            assert_eq!(found, expected, "level {level}, seed {seed}");
            let goes_on = DEPTHS.iter().filter(|depth| **depth > level + 1).count();
            let found = multiplied(&mut gpu, &ids, size.tokens, vocab);
            assert_eq!(found, goes_on, "level {level}, seed {seed}");
            let others = multiplied(&mut gpu, &ids, size.tokens + 1, vocab);
            assert_eq!(others, size.tokens + 1, "rows of no level");
        }
        let mut passes = CudaPasses::default();
        gpu.pass(&mut passes, size, &mut |_| Ok(())).unwrap();
        let all = multiplied(&mut gpu, &ids, size.tokens, vocab);
        assert_eq!(all, size.tokens, "behind the pass");
    }
}

#[test]
fn what_was_timed_is_told_once() {
    let mut gpu = gpu(Dtype::Float32);
    let told = |gpu: &mut CudaBackend| gpu.drafter().unwrap().clocked_us().unwrap();
    assert_eq!(told(&mut gpu), 0);
    gpu.drafter().unwrap().start_clock();
    let values = sums(&mut gpu, &[1.0, 2.0, 3.0], 1);
    gpu.drafter().unwrap().stop_clock();
    assert_eq!(read(&mut gpu, &values), [1.0, 2.0, 3.0]);
    assert!(told(&mut gpu) > 0);
    assert_eq!(told(&mut gpu), 0);
}

/// A node's children are different tokens, so there have to be as many tokens.
#[test]
#[should_panic(expected = "trees of 3 branches grow on the host where a draft has 2 tokens")]
fn no_node_has_more_children_than_there_are_tokens() {
    let mut gpu = gpu(Dtype::Float32);
    let logits = uploaded(&mut gpu, &[1.0, 2.0], 2);
    let mut verified = Lists::default();
    verified.push(1, 0, 0);
    let limits = InputLimits::of(&verified.batch(), PAGE);
    let [mut inputs, mut drafts] = [(); 2].map(|()| gpu.inputs(&limits).unwrap());
    let size = PassKey {
        requests: 1,
        tokens: 1,
        max_q_len: 1,
    };
    let pass = TreePass { size, branches: 3 };
    let device = gpu.drafter().and_then(|device| device.trees());
    let device = device.unwrap();
    device.grow((&logits, None), 0, &mut inputs, &mut drafts, pass);
}
