//! Operations that blocks of some families need beside the rest.

use lockstep_backend::{
    AttentionShape, BlockEnd, CountedKeys, LogitScaling, Norm, RmsNorm, WholeNorms,
};
use lockstep_backend_cuda::{BlockOps, Element, Rows, Sums};
use lockstep_types::Activation;

use crate::support::{ELEMENTS, Gpu, Noise, SEEDS, assert_close, bits, tolerance};

const EPS: f32 = 1e-5;

/// Runs `check` for both types of operands, under several orders.
fn for_all(check: impl Fn(&Gpu, &BlockOps, Element, &mut Noise)) {
    let gpu = Gpu::new();
    for element in ELEMENTS {
        let operations = BlockOps::new(&gpu.context, &gpu.compiler, element).expect("kernels");
        for seed in SEEDS {
            let _order = lockstep_fake_cuda::order(seed);
            check(&gpu, &operations, element, &mut Noise(seed));
        }
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

fn mean_square(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64
}

fn scaled(x: &[f64], scale: f64, weight: &[f32]) -> Vec<f64> {
    let weighted = x.iter().zip(weight);
    weighted.map(|(x, w)| x * scale * f64::from(*w)).collect()
}

fn rms(x: &[f64], weight: &[f32]) -> Vec<f64> {
    scaled(x, (mean_square(x) + f64::from(EPS)).sqrt().recip(), weight)
}

fn layer_norm(x: &[f64], weight: &[f32], bias: &[f32]) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let centred: Vec<f64> = x.iter().map(|x| x - mean).collect();
    let scale = (mean_square(&centred) + f64::from(EPS)).sqrt().recip();
    let scaled = scaled(&centred, scale, weight).into_iter();
    scaled.zip(bias).map(|(x, b)| x + f64::from(*b)).collect()
}

/// The norm of the residual stream behind a block.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    None,
    Rms,
    Layer,
}

/// Every end of a block, of sums in parts or of nothing. Rows that are not there stay.
#[test]
fn ends_of_blocks_are_those_of_plain_loops() {
    for_all(|gpu, operations, element, noise| {
        for next in [Next::None, Next::Rms, Next::Layer] {
            for (parts, is_normed) in [(0, false), (1, false), (3, true), (6, false), (1, true)] {
                end(gpu, operations, element, noise, (next, parts, is_normed));
            }
        }
    });
}

fn end(
    gpu: &Gpu,
    operations: &BlockOps,
    element: Element,
    noise: &mut Noise,
    (next, parts, is_normed): (Next, usize, bool),
) {
    let (rows, width) = (1 + noise.below(4), noise.width());
    let there = 1 + noise.below(rows);
    let (x, delta) = (
        noise.floats(rows * width),
        noise.floats(parts * rows * width),
    );
    let [output, weight, bias] = [0; 3].map(|_| noise.floats(width));
    let [on_output, on_weight, on_bias] = [&output, &weight, &bias].map(|all| gpu.buffer(all));
    let norm = |weight| RmsNorm { weight, eps: EPS };
    let end = BlockEnd {
        output: is_normed.then(|| norm(&on_output)),
        next: match next {
            Next::None => None,
            Next::Rms => Some(Norm::Rms(norm(&on_weight))),
            Next::Layer => Some(Norm::Layer {
                norm: norm(&on_weight),
                bias: &on_bias,
            }),
        },
    };
    let counts = gpu.buffer(&[there as u32]);
    let rows_there = Rows::counted(rows, &counts, 0);
    let mut residual = gpu.floats(Element::F32, &x);
    let on_device = gpu.floats(Element::F32, &delta);
    let sums = (parts > 0).then(|| Sums::of_parts(&on_device, parts));
    let mut out = gpu.poisoned(element, rows * width);
    operations
        .end_block(
            &gpu.stream,
            &mut residual,
            sums,
            (end, width),
            rows_there,
            &mut out,
        )
        .expect("a launch");
    let (found, normed) = (gpu.read(&residual), gpu.read(&out));
    let what = format!("{next:?} of {width} columns, {parts} parts, normed: {is_normed}");
    for row in 0..rows {
        let at = row * width..(row + 1) * width;
        if row >= there {
            assert_eq!(bits(&found[at.clone()]), bits(&x[at.clone()]), "{what}");
            assert!(normed[at].iter().all(|value| value.is_nan()), "{what}");
            continue;
        }
        let mut stream = wide(&x[at.clone()]);
        let sum = |column: usize| {
            let part = |part: usize| f64::from(delta[(part * rows + row) * width + column]);
            (0..parts).map(part).sum::<f64>()
        };
        let added: Vec<f64> = (0..width).map(sum).collect();
        let added = if is_normed {
            rms(&added, &output)
        } else {
            added
        };
        stream.iter_mut().zip(&added).for_each(|(x, y)| *x += y);
        assert_close(&found[at.clone()], &stream, tolerance(Element::F32));
        let wanted = match next {
            Next::None => stream,
            Next::Rms => rms(&stream, &weight),
            Next::Layer => layer_norm(&stream, &weight, &bias),
        };
        // A layer norm takes a mean off, so that small values have the error of large ones.
        let limit = tolerance(element) * if next == Next::Layer { 4.0 } else { 1.0 };
        assert_close(&normed[at], &wanted, limit);
    }
}

/// The norms of two outputs are added in place of the first. Rows that are not there stay.
#[test]
fn norms_of_two_outputs_are_added() {
    for_all(|gpu, operations, _, noise| {
        let (rows, width) = (2 + noise.below(4), noise.width());
        let there = 1 + noise.below(rows - 1);
        let [x, y] = [0; 2].map(|_| noise.floats(rows * width));
        let [of_x, of_y] = [0; 2].map(|_| noise.floats(width));
        let [on_x, on_y] = [&of_x, &of_y].map(|all| gpu.buffer(all));
        let norms = [&on_x, &on_y].map(|weight| RmsNorm { weight, eps: EPS });
        let counts = gpu.buffer(&[there as u32]);
        let rows_there = Rows::counted(rows, &counts, 0);
        let mut sum = gpu.floats(Element::F32, &x);
        let other = gpu.floats(Element::F32, &y);
        operations
            .join_norms(&gpu.stream, &mut sum, &other, norms, rows_there)
            .expect("a launch");
        let found = gpu.read(&sum);
        let (before, behind) = found.split_at(there * width);
        assert_eq!(bits(behind), bits(&x[there * width..]));
        for (row, found) in before.chunks(width).enumerate() {
            let at = row * width..(row + 1) * width;
            let of_both = [(&x, &of_x), (&y, &of_y)];
            let [one, two] = of_both.map(|(all, weight)| rms(&wide(&all[at.clone()]), weight));
            let wanted: Vec<f64> = one.iter().zip(two).map(|(x, y)| x + y).collect();
            assert_close(found, &wanted, tolerance(Element::F32));
        }
    });
}

/// Shapes of heads with copies of key heads, of which some don't count.
#[test]
fn norms_over_all_heads_are_those_of_plain_loops() {
    let counted = |first, served, group| CountedKeys {
        first,
        served,
        group,
    };
    let cases = [
        (AttentionShape::dense(4, 2, 24, 1.0), counted(0, 2, 2)),
        (AttentionShape::dense(3, 1, 40, 1.0), counted(3, 3, 6)),
        (AttentionShape::dense(6, 3, 72, 1.0), counted(2, 2, 4)),
    ];
    for_all(|gpu, operations, _, noise| {
        for (shape, counted) in cases {
            let (width, dim) = (shape.qkv_width(), shape.head_dim);
            let [queries, keys] = [shape.heads * dim, shape.kv_heads * dim];
            let rows = 1 + noise.below(6);
            let x = noise.floats(rows * width);
            let all = Rows::fixed(rows);
            let mut qkv = gpu.floats(Element::F32, &x);
            let mut sums = gpu.poisoned(Element::F32, rows * 2);
            operations
                .square_sums(&gpu.stream, &qkv, &shape, counted, all, &mut sums)
                .expect("a launch");
            let squares = |x: &[f32]| wide(x).iter().map(|x| x * x).sum::<f64>();
            let wanted = x.chunks(width).flat_map(|row| {
                let key = |head: &usize| squares(&row[queries + head * dim..][..dim]);
                let counting = (0..shape.kv_heads).filter(|head| counted.counts(*head));
                let keys = counting.collect::<Vec<_>>().iter().map(key).sum();
                [squares(&row[..queries]), keys]
            });
            let wanted: Vec<f64> = wanted.collect();
            assert_close(&gpu.read(&sums), &wanted, tolerance(Element::F32));

            // As if other ranks had added theirs.
            let others: Vec<f32> = wanted.iter().map(|sum| *sum as f32 + 7.0).collect();
            let sums = gpu.floats(Element::F32, &others);
            let (of_queries, of_keys) = (noise.floats(queries), noise.floats(keys));
            let norms = WholeNorms {
                queries: &gpu.buffer(&of_queries),
                keys: &gpu.buffer(&of_keys),
                widths: [2 * queries, 3 * keys],
                eps: EPS,
            };
            operations
                .whole_norm(&gpu.stream, &mut qkv, &shape, &sums, &norms, all)
                .expect("a launch");
            let scale = |sum: f32, width: usize| {
                (f64::from(sum) / width as f64 + f64::from(EPS))
                    .sqrt()
                    .recip()
            };
            let wanted = x
                .chunks(width)
                .zip(others.chunks(2))
                .flat_map(|(row, sums)| {
                    let (query, rest) = row.split_at(queries);
                    let (key, value) = rest.split_at(keys);
                    let query = scaled(&wide(query), scale(sums[0], 2 * queries), &of_queries);
                    let key = scaled(&wide(key), scale(sums[1], 3 * keys), &of_keys);
                    [query, key, wide(value)].concat()
                });
            let wanted: Vec<f64> = wanted.collect();
            assert_close(&gpu.read(&qkv), &wanted, tolerance(Element::F32));
        }
    });
}

#[test]
fn activations_without_gates_are_those_of_plain_loops() {
    for_all(|gpu, operations, element, noise| {
        for activation in [
            Activation::Silu,
            Activation::GeluTanh,
            Activation::ReluSquared,
        ] {
            let (rows, width) = (1 + noise.below(4), noise.width());
            let x: Vec<f32> = noise.floats(rows * width).iter().map(|x| 4.0 * x).collect();
            let on_device = gpu.floats(Element::F32, &x);
            let mut out = gpu.poisoned(element, rows * width);
            let all = Rows::fixed(rows);
            operations
                .activate(&gpu.stream, &on_device, activation, width, all, &mut out)
                .expect("a launch");
            let activated = |x: f64| match activation {
                Activation::Silu => x / (1.0 + (-x).exp()),
                Activation::GeluTanh => {
                    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                    0.5 * x * (1.0 + inner.tanh())
                }
                Activation::ReluSquared => x.max(0.0).powi(2),
            };
            let wanted: Vec<f64> = wide(&x).into_iter().map(activated).collect();
            assert_close(&gpu.read(&out), &wanted, tolerance(element));
        }
    });
}

#[test]
fn logits_are_divided_and_then_bounded() {
    for_all(|gpu, operations, _, noise| {
        for softcap in [None, Some(1.5), Some(30.0)] {
            let (rows, width, divisor) = (2 + noise.below(4), noise.width(), 0.3);
            let there = 1 + noise.below(rows - 1);
            let x = noise.floats(rows * width);
            let counts = gpu.buffer(&[there as u32]);
            let mut logits = gpu.floats(Element::F32, &x);
            let scaling = LogitScaling { divisor, softcap };
            let rows_there = Rows::counted(rows, &counts, 0);
            operations
                .scale_logits(&gpu.stream, &mut logits, scaling, width, rows_there)
                .expect("a launch");
            let changed = |x: f64| {
                let x = x / f64::from(divisor);
                softcap.map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh())
            };
            let found = gpu.read(&logits);
            let (before, behind) = found.split_at(there * width);
            let wanted = wide(&x[..there * width]);
            let wanted: Vec<f64> = wanted.into_iter().map(changed).collect();
            assert_close(before, &wanted, tolerance(Element::F32));
            assert_eq!(bits(behind), bits(&x[there * width..]));
        }
    });
}
