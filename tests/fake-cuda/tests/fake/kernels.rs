//! Values that CUDA shows to kernels: places, parameters, shared memory.

use crate::device::{Buffer, Module, Shape, Stream, Value, begin, begin_with};

const SMALL: &str = include_str!("kernels/small.cu");
const BLOCK_SUM: &str = include_str!("kernels/block_sum.cu");

#[test]
fn threads_know_their_place() {
    begin();
    let places = Module::new(SMALL, &[]).kernel("places");
    let stream = Stream::new();
    let (grid, block) = ([3u32, 2, 2], [5u32, 3, 2]);
    let count = |of: [u32; 3]| of.into_iter().product::<u32>() as usize;
    let threads = count(grid) * count(block);
    let out = Buffer::new(threads * 48);
    let shape = Shape {
        grid,
        block,
        dynamic: 0,
    };
    places.launch(&stream, shape, &[(&out).into()]);
    let found = out.read::<u32>(threads * 12, &stream);
    let inside = |number: usize, of: [u32; 3]| {
        let number = number as u32;
        [
            number % of[0],
            number / of[0] % of[1],
            number / of[0] / of[1],
        ]
    };
    for (number, place) in found.chunks(12).enumerate() {
        let (at, thread) = (number / count(block), number % count(block));
        let expected = [inside(at, grid), inside(thread, block), grid, block];
        assert_eq!(place, expected.concat());
    }
}

#[test]
fn parameters_of_every_alignment_arrive() {
    begin();
    let kernel = Module::new(SMALL, &[]).kernel("parameters");
    let (stream, out) = (Stream::new(), Buffer::new(4));
    let wide = [1.0f32, 20.0, 300.0, 4000.0].map(f32::to_ne_bytes).concat();
    let mut pointer = out.address.to_ne_bytes();
    let (narrow, double) = (7u16.to_ne_bytes(), 0.5f64.to_ne_bytes());
    let values: [&[u8]; 5] = [&pointer, &[100], &wide, &narrow, &double];
    kernel
        .launch_with(&stream, Shape::line(1, 1), &values)
        .expect("launched");
    // The parameters were copied when the launch was asked for.
    pointer = [0; 8];
    assert_eq!(pointer, [0; 8]);
    assert_eq!(
        out.read::<f32>(1, &stream),
        [100.0 + 1.0 + 4000.0 + 7.0 + 0.5]
    );
}

#[test]
fn shared_memory_begins_as_nan_in_every_block() {
    begin();
    let fresh = Module::new(SMALL, &[]).kernel("fresh");
    let (stream, out) = (Stream::new(), Buffer::of(&[0.0f32; 256]));
    let shape = Shape {
        dynamic: 128,
        ..Shape::line(4, 32)
    };
    fresh.launch(&stream, shape, &[(&out).into()]);
    let found = out.read::<f32>(256, &stream);
    assert!(found.iter().all(|value| value.is_nan()), "{found:?}");
}

#[test]
fn dynamic_shared_memory_is_as_large_as_asked_for() {
    begin();
    let dynamic = Module::new(SMALL, &[]).kernel("dynamic");
    let (stream, n) = (Stream::new(), 30_000u32);
    dynamic.allow(4 * 30_000).expect("it has so much");
    let out = Buffer::new(4 * n as usize);
    let shape = Shape {
        dynamic: 4 * n,
        ..Shape::line(1, 256)
    };
    dynamic.launch(&stream, shape, &[(&out).into(), n.into()]);
    let expected: Vec<f32> = (0..n).rev().map(|value| value as f32).collect();
    assert_eq!(out.read::<f32>(n as usize, &stream), expected);
}

#[test]
fn atomic_operations_lose_nothing() {
    begin();
    let count = Module::new(SMALL, &[]).kernel("count");
    let stream = Stream::new();
    let (counters, sum) = (Buffer::of(&[0u32, 0, u32::MAX]), Buffer::of(&[0.0f32]));
    count.launch(
        &stream,
        Shape::line(7, 96),
        &[(&counters).into(), (&sum).into()],
    );
    assert_eq!(counters.read::<u32>(3, &stream), [672, 671, 0]);
    assert_eq!(sum.read::<f32>(1, &stream), [336.0]);
}

/// Sums of blocks under several seeds. The kernel lacks barrier `without` of its two; none if
/// zero.
fn block_sums(without: u32) -> Vec<Vec<f32>> {
    let (threads, blocks) = (128u32, 3u32);
    let macros = [format!("THREADS={threads}"), format!("WITHOUT={without}")];
    begin();
    let module = Module::new(BLOCK_SUM, &macros.each_ref().map(String::as_str));
    let kernel = module.kernel("block_sum");
    let values: Vec<f32> = (0..threads * blocks).map(|value| value as f32).collect();
    let sum = |seed| {
        let _order = begin_with(seed);
        let (stream, x) = (Stream::new(), Buffer::of(&values));
        let out = Buffer::new(4 * blocks as usize);
        let parameters: [Value; 2] = [(&x).into(), (&out).into()];
        kernel.launch(&stream, Shape::line(blocks, threads), &parameters);
        out.read::<f32>(blocks as usize, &stream)
    };
    (0..4).map(sum).collect()
}

#[test]
fn a_missing_barrier_shows() {
    let expected = |block: u32| (block * 128..(block + 1) * 128).sum::<u32>() as f32;
    let expected: Vec<f32> = (0..3).map(expected).collect();
    assert_eq!(block_sums(0), vec![expected.clone(); 4]);
    for without in [1, 2] {
        let found = block_sums(without);
        assert!(
            found.iter().all(|sums| *sums != expected),
            "{without}: {found:?}"
        );
    }
}
