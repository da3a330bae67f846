//! Tokens that the device chooses for the host.

use lockstep_backend::{Axis, Backend, Choice, ChooseTokens, FAILED, Holds, How, Owners};
use lockstep_sampling::{Request, Sampler, TokenHistory};
use lockstep_types::{Dtype, sampling::SamplingParams};

use crate::support::{gpu, noise, sums};

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
        how: How::Host,
        ..Choice::of(&greedy, 0)
    };
    let choices = [
        Choice::of(&greedy, 4),
        host,
        Choice::of(&params, 9),
        Choice::of(&params, 9),
    ];
    let x = sums(&mut gpu, &values, WIDTH);
    let mut tokens = vec![1];
    // Twice: a pass leaves no trace for the next one.
    for _ in 0..2 {
        let mut logits = gpu.tensor(4, WIDTH, Holds::Logits).unwrap();
        gpu.place_columns(&x, &mut logits, 0);
        gpu.choose(&mut logits, &choices, &mut tokens).unwrap();
        let sampled = |row: usize, params, position| {
            let request = Request {
                params,
                history: &TokenHistory::default(),
                position,
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
            .gather_to_host(Axis::Alone, &logits, owners, &mut space)
            .unwrap();
        assert_eq!(left[WIDTH..2 * WIDTH], values[WIDTH..2 * WIDTH]);

        gpu.choose(&mut logits, &[host; 4], &mut tokens).unwrap();
        assert!(tokens.is_empty(), "all are the host's");
    }
}

/// More than the device chooses from at once.
#[test]
fn many_rows_have_a_token_each() {
    const WIDTH: usize = 40;
    let mut gpu = gpu(Dtype::Float32);
    let rows = 300;
    let mut values = noise(3, rows * WIDTH);
    for row in 0..rows {
        values[row * WIDTH + row * 7 % WIDTH] = 9.0;
    }
    let x = sums(&mut gpu, &values, WIDTH);
    let mut logits = gpu.tensor(rows, WIDTH, Holds::Logits).unwrap();
    gpu.place_columns(&x, &mut logits, 0);
    let choices = vec![Choice::of(&SamplingParams::greedy(), 0); rows];
    let mut tokens = Vec::new();
    gpu.choose(&mut logits, &choices, &mut tokens).unwrap();
    let wanted: Vec<u32> = (0..rows).map(|row| (row * 7 % WIDTH) as u32).collect();
    assert_eq!(tokens, wanted);
}
