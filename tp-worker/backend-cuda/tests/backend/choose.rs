//! Tokens that the device chooses, and drafts that they accept.

use lockstep_backend::{
    Axis, Batch, Choice, ChoiceBatch, ChoiceMethod, ChoiceRow, DeviceSampler, DraftedRow,
    Exchange as _, FAILED, Holds, InputLimits, KvShape, Memory as _, Ops as _, Owners, Passes as _,
    Row,
};
use lockstep_backend_cuda::CudaTensor;
use lockstep_sampling::{Request, Sampler, TokenHistory};
use lockstep_types::{Dtype, KvCacheDtype, sampling::SamplingParams};

use crate::support::{gpu, noise, sums};

const NO_CACHE: KvShape = KvShape {
    latent: None,
    group: 0,
    layers: 1,
    kv_heads: 1,
    head_dim: 16,
    pages: 1,
    page_size: 1,
    dtype: KvCacheDtype::Float32,
};

/// Lets the device choose from the rows of `logits`, in blocks of `block` rows, one row for
/// each request. Returns the words of each request's first token.
fn chosen(
    gpu: &mut lockstep_backend_cuda::CudaBackend,
    logits: &mut [CudaTensor],
    choices: &[Choice],
) -> Vec<u32> {
    let rows = choices.len();
    let all: Vec<u32> = (0..rows as u32).collect();
    let own = |start| Row {
        start,
        q_len: 1,
        kv_len: 0,
        pages_start: 0,
        mask: None,
    };
    let alone = |row| DraftedRow {
        logits: row,
        token: row,
        nodes: 0,
        parents: None,
    };
    let row = |request| ChoiceRow { request, depth: 0 };
    let batch = Batch {
        tokens: &all,
        positions: &all,
        cells: &all,
        rows: &all.iter().copied().map(own).collect::<Vec<_>>(),
        pages: &[0],
        logit_tokens: &all,
        choices: ChoiceBatch {
            choices,
            rows: &all.iter().copied().map(row).collect::<Vec<_>>(),
            drafted: &all.iter().copied().map(alone).collect::<Vec<_>>(),
            parents: &[],
        },
        ..Batch::default()
    };
    let mut inputs = gpu.inputs(&InputLimits::of(&batch, 1)).unwrap();
    let mut cache = gpu.kv_cache(&NO_CACHE).unwrap();
    gpu.stage(&batch, &mut inputs).unwrap();
    let mut first = 0;
    for logits in logits {
        gpu.choose(logits, first, &mut inputs);
        first += logits.rows();
    }
    gpu.accept(&mut inputs, std::slice::from_mut(&mut cache));
    let words = gpu.outcomes(&mut inputs).unwrap().words.chunks(2);
    words
        .map(|words| match words {
            [1, token] => *token,
            _ => u32::MAX - 1,
        })
        .collect()
}

#[test]
fn rows_give_the_samplers_tokens_or_stay_for_the_host() {
    const WIDTH: usize = 300;
    let mut gpu = gpu(Dtype::Bfloat16);
    let mut values = noise(7, 4 * WIDTH);
    values[3 * WIDTH + 5] = f32::NAN;
    let values: Vec<f32> = values
        .iter()
        .map(|x| half::bf16::from_f32(*x).to_f32())
        .collect();
    let params = SamplingParams {
        top_k: 20,
        top_p: 0.8,
        seed: 3,
        ..SamplingParams::default()
    };
    let greedy = SamplingParams::greedy();
    let host = Choice {
        how: ChoiceMethod::Host,
        ..Choice::of(&greedy, 0)
    };
    let choices = [
        Choice::of(&greedy, 4),
        host,
        Choice::of(&params, 9),
        Choice::of(&params, 9),
    ];
    let x = sums(&mut gpu, &values, WIDTH);
    // Twice: a pass leaves no trace for the next one.
    for _ in 0..2 {
        let mut logits = [gpu.tensor(4, WIDTH, Holds::Logits).unwrap()];
        gpu.place_columns(&x, &mut logits[0], 0);
        let tokens = chosen(&mut gpu, &mut logits, &choices);
        let sampled = |row: usize, params, position| {
            let request = Request {
                params,
                history: &TokenHistory::default(),
                position,
                allowed: None,
            };
            let row = &values[row * WIDTH..][..WIDTH];
            Sampler::new(WIDTH).sample(row, request).unwrap_or(FAILED)
        };
        let wanted = [sampled(0, &greedy, 4), sampled(2, &params, 9), FAILED];
        assert_eq!([tokens[0], tokens[2], tokens[3]], wanted);
        let owners = Owners {
            widths: &[WIDTH],
            rows: &[0..4; 1],
        };
        let mut space = Vec::new();
        let left = gpu
            .gather_to_host(Axis::Alone, &logits[0], owners, &mut space)
            .unwrap();
        assert_eq!(left[WIDTH..2 * WIDTH], values[WIDTH..2 * WIDTH]);
    }
}

/// More rows than the device chooses from at once, in several blocks.
#[test]
fn many_rows_have_a_token_each() {
    const WIDTH: usize = 40;
    let mut gpu = gpu(Dtype::Float32);
    let rows = 300;
    let mut values = noise(3, rows * WIDTH);
    for row in 0..rows {
        values[row * WIDTH + row * 7 % WIDTH] = 9.0;
    }
    let mut logits: Vec<CudaTensor> = values
        .chunks(170 * WIDTH)
        .map(|values| {
            let x = sums(&mut gpu, values, WIDTH);
            let mut logits = gpu.tensor(x.rows(), WIDTH, Holds::Logits).unwrap();
            gpu.place_columns(&x, &mut logits, 0);
            logits
        })
        .collect();
    let choices = vec![Choice::of(&SamplingParams::greedy(), 0); rows];
    let tokens = chosen(&mut gpu, &mut logits, &choices);
    let wanted: Vec<u32> = (0..rows).map(|row| (row * 7 % WIDTH) as u32).collect();
    assert_eq!(tokens, wanted);
}
