//! Operations of a warp's lanes, compared with plain versions of them.

use crate::device::{Buffer, Kernel, Module, Shape, Stream, Value, begin, begin_with};

fn kernel(name: &str, macros: &[&str]) -> Kernel {
    begin();
    assert!(lockstep_fake_cuda::seed(1), "the libraries are real");
    Module::new(include_str!("kernels/warp.cu"), macros).kernel(name)
}

#[test]
fn shuffles_bring_the_values_of_other_lanes() {
    let shuffles = kernel("shuffles", &[]);
    // The lane that a value comes from; outside of the range, the lane itself.
    let down = |lane: u32, by: u32, width: u32| {
        let inside = lane % width + by < width;
        lane + if inside { by } else { 0 }
    };
    let rows: [&dyn Fn(u32) -> u32; 6] = [
        &|lane| lane ^ 5,
        &|lane| down(lane, 3, 32),
        &|lane| lane - if lane < 3 { 0 } else { 3 },
        &|_| 7,
        &|lane| down(lane, 2, 8),
        &|lane| down(lane, 2, 16),
    ];
    let rows = rows
        .iter()
        .flat_map(|row| (0..32).map(move |lane| 10 * row(lane)));
    let expected: Vec<u32> = rows.collect();
    for seed in 0..5 {
        let _order = begin_with(seed);
        let (stream, out) = (Stream::new(), Buffer::new(4 * expected.len()));
        shuffles.launch(&stream, Shape::line(1, 32), &[(&out).into()]);
        assert_eq!(out.read::<u32>(expected.len(), &stream), expected);
    }
}

#[test]
fn votes_are_counted() {
    let votes = kernel("votes", &[]);
    let (stream, out) = (Stream::new(), Buffer::of(&[0u32; 128]));
    votes.launch(&stream, Shape::line(1, 32), &[(&out).into()]);
    let found = out.read::<u32>(128, &stream);
    let thirds = (0..32)
        .filter(|lane| lane % 3 == 0)
        .fold(0, |votes, lane| votes | 1 << lane);
    assert_eq!(found[..32], [thirds; 32]);
    assert_eq!(found[32..64], [1; 32]);
    assert_eq!(found[64..96], [0; 32]);
    assert_eq!(found[96..116], [0xf_ffff; 20]);
}

/// Small whole numbers, which bf16 holds exactly.
fn number(row: usize, column: usize, seed: usize) -> f32 {
    ((row * 7 + column * 13 + seed * row * column) % 19) as f32 - 9.0
}

fn bits(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

#[test]
fn tensor_cores_multiply_as_ptx_lays_out() {
    let product = kernel("tile_product", &[]);
    let a: Vec<u16> = (0..256).map(|i| bits(number(i / 16, i % 16, 1))).collect();
    let columns: Vec<u16> = (0..128).map(|i| bits(number(i % 16, i / 16, 2))).collect();
    let rows: Vec<u16> = (0..128).map(|i| bits(number(i / 8, i % 8, 3))).collect();
    let stream = Stream::new();
    let (a, columns, rows) = (Buffer::of(&a), Buffer::of(&columns), Buffer::of(&rows));
    let out = Buffer::new(4 * 256);
    let values: [Value; 4] = [
        (&a).into(),
        (&columns).into(),
        (&rows).into(),
        (&out).into(),
    ];
    product.launch(&stream, Shape::line(1, 32), &values);
    let found = out.read::<f32>(256, &stream);
    for (way, seed) in [(0, 2), (1, 3)] {
        for row in 0..16 {
            for column in 0..8 {
                let terms = (0..16).map(|k| number(row, k, 1) * number(k, column, seed));
                let expected: f32 = terms.sum();
                let at = way * 128 + row * 8 + column;
                assert_eq!(found[at], expected, "way {way}, row {row}, column {column}");
            }
        }
    }
}

/// The values doubled, through two stages of asynchronous copies.
fn staged(n: u32, macros: &[&str]) -> (Vec<f32>, Vec<f32>) {
    let staged = kernel("staged", macros);
    let values: Vec<f32> = (0..n).map(|value| value as f32 + 1.0).collect();
    let tiles = n.div_ceil(128);
    let (stream, whole) = (Stream::new(), 128 * tiles as usize);
    let (x, out) = (Buffer::of(&values), Buffer::new(4 * whole));
    let parameters: [Value; 4] = [(&x).into(), (&out).into(), n.into(), tiles.into()];
    staged.launch(&stream, Shape::line(1, 32), &parameters);
    let mut expected: Vec<f32> = values.iter().map(|value| 2.0 * value).collect();
    expected.resize(whole, 0.0);
    (out.read::<f32>(whole, &stream), expected)
}

#[test]
fn asynchronous_copies_land_when_they_are_waited_for() {
    for n in [128, 500, 1001] {
        let (found, expected) = staged(n, &[]);
        assert_eq!(found, expected, "{n} values");
    }
    let (found, _) = staged(512, &["NO_WAIT"]);
    assert!(found.iter().any(|value| value.is_nan()), "{found:?}");
}
