//! Wide tiles of queries: the bits of narrow ones, and when a batch is cut into them.

use std::num::NonZeroUsize;

use lockstep_backend::AttentionShape;
use lockstep_backend_cuda::{Attention, Cut, Element};
use lockstep_fake_cuda::calls;

use crate::requests::{Request, Run, attend, cut, oracle};
use crate::support::{Gpu, Noise, SEEDS, assert_close, bits};

/// Positions of a span.
const SPAN: usize = 256;
/// Queries of a wide tile.
const TILE: usize = 64;

fn run(heads: usize, kv_heads: usize, head_dim: usize, window: usize) -> Run {
    let scale = (head_dim as f32).sqrt().recip();
    Run {
        shape: AttentionShape {
            window: NonZeroUsize::new(window),
            ..AttentionShape::dense(heads, kv_heads, head_dim, scale)
        },
        cached: Element::Bf16,
        operand: Element::Bf16,
        page_size: 16,
        parts: 1 << 14,
    }
}

/// Kernels with wide tiles and kernels without.
fn kernels(gpu: &Gpu, run: &Run) -> [Attention; 2] {
    let made = || {
        Attention::new(
            &gpu.context,
            &gpu.compiler,
            &run.shape,
            run.cached,
            run.operand,
        )
    };
    [made().expect("kernels"), made().expect("kernels").narrow()]
}

/// Rows with a tile of queries and more, of any length and place, and rows with fewer.
fn drawn(run: &Run, noise: &mut Noise) -> Vec<Request> {
    let group = run.shape.heads / run.shape.kv_heads;
    let tile = TILE.div_ceil(group);
    let mut kv_len = || [0, 63, 64, SPAN - 5, noise.below(2 * SPAN)][noise.below(5)];
    let lengths = [kv_len(), kv_len(), kv_len(), kv_len(), kv_len()];
    vec![
        Request::causal(1, lengths[0], tile + noise.below(2 * tile)),
        Request::causal(2, 2 * SPAN + noise.below(90), 1),
        // More than fits beside the others: split or whole, as parts have room.
        Request::causal(3, lengths[1], 4 * tile + noise.below(tile)),
        Request::tree(4, SPAN + lengths[2], tile + noise.below(5), noise),
        Request::tree(5, lengths[3], 4, noise),
        Request::causal(6, lengths[4], tile),
    ]
}

/// Groups of one, two, three, five and twenty heads; widths that are no multiples of a tile's,
/// and the widest; windows of less than a block, of about a span and of more; with and without
/// sinks.
#[test]
fn wide_tiles_have_the_bits_of_narrow_ones() {
    let gpu = Gpu::new();
    let cases = [
        (run(2, 2, 64, 0), 16, 1 << 14),
        (run(4, 2, 24, 0), 1, 1 << 14),
        (run(4, 2, 24, 40), 7, 0),
        (run(3, 1, 128, 0), 16, 0),
        (run(3, 1, 40, SPAN - 9), 1, 500),
        (run(10, 2, 16, SPAN + 77), 4, 1 << 14),
        (run(20, 1, 80, 0), 16, 1 << 14),
    ];
    for (seed, (run, page_size, parts)) in (1..).zip(cases) {
        let sinks = seed % 2 == 1;
        let shape = AttentionShape { sinks, ..run.shape };
        let run = Run {
            shape,
            page_size,
            parts,
            ..run
        };
        let [wide, narrow] = kernels(&gpu, &run);
        let requests = drawn(&run, &mut Noise(seed));
        let _order = lockstep_fake_cuda::order(seed);
        assert!(cut(&gpu, &narrow, &run, &requests).wide_items == 0);
        if lockstep_fake_cuda::seed(seed) {
            assert!(cut(&gpu, &wide, &run, &requests).wide_items > 0);
        }
        let found = attend(&gpu, &wide, &run, &requests);
        let wanted = attend(&gpu, &narrow, &run, &requests);
        for (request, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert!(
                bits(found) == bits(wanted),
                "request {request} of {:?}",
                run.shape
            );
        }
    }
}

/// Latents and wide heads, two tiles of which share positions: with one buffer of positions, with
/// two, with a window, and where parts have no room.
#[test]
fn pairs_of_tiles_have_the_bits_of_one() {
    let gpu = Gpu::new();
    let latents = |heads, cell, latent| {
        let run = run(heads, 1, cell, 0);
        let latent = Some(latent);
        Run {
            shape: AttentionShape {
                latent,
                ..run.shape
            },
            ..run
        }
    };
    let cases = [
        (latents(20, 40, 24), 16, 1 << 14),
        (latents(3, 24, 16), 1, 0),
        (run(3, 1, 136, 40), 7, 500),
        (run(2, 1, 264, 0), 16, 1 << 14),
    ];
    for (seed, (run, page_size, parts)) in (1..).zip(cases) {
        let run = Run {
            page_size,
            parts,
            ..run
        };
        let [wide, narrow] = kernels(&gpu, &run);
        let tile = 32usize.div_ceil(run.shape.heads);
        let requests = [
            Request::causal(1, 60, tile + 7),
            Request::causal(2, SPAN + 9, 1),
            Request::causal(3, SPAN - 5, 4 * tile),
            Request::tree(4, SPAN, tile + 3, &mut Noise(seed)),
        ];
        let _order = lockstep_fake_cuda::order(seed);
        assert!(cut(&gpu, &narrow, &run, &requests).wide_items == 0);
        if lockstep_fake_cuda::seed(seed) {
            assert!(cut(&gpu, &wide, &run, &requests).wide_items > 0);
        }
        let found = attend(&gpu, &wide, &run, &requests);
        let wanted = attend(&gpu, &narrow, &run, &requests);
        for (request, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert!(
                bits(found) == bits(wanted),
                "request {request} of {:?}",
                run.shape
            );
        }
    }
}

/// Results have the type of operands, whatever the cache has.
#[test]
fn wide_tiles_write_operands_of_either_type() {
    let gpu = Gpu::new();
    let run = Run {
        operand: Element::F32,
        ..run(4, 2, 16, 0)
    };
    let [wide, narrow] = kernels(&gpu, &run);
    let requests = [Request::causal(1, 30, 70)];
    let found = attend(&gpu, &wide, &run, &requests).concat();
    let wanted = attend(&gpu, &narrow, &run, &requests).concat();
    assert!(bits(&found) == bits(&wanted));
}

/// On the fake device, which has four multiprocessors: two items fill them with two key heads.
#[test]
fn wide_tiles_are_used_where_they_fill_the_device() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real device has more multiprocessors.
    }
    let gpu = Gpu::new();
    let run = run(4, 2, 16, 0);
    let [wide, _] = kernels(&gpu, &run);
    let tree = Request::tree(3, 2 * SPAN, 64, &mut Noise(1));
    let table = [
        // Too few queries in all, and in each row.
        (vec![Request::causal(1, 0, 32)], [4, 0, 0]),
        (vec![Request::causal(1, 0, 31); 3], [12, 0, 0]),
        (vec![Request::causal(1, 0, 33)], [5, 0, 0]),
        (vec![Request::causal(1, 0, 65)], [0, 3, 0]),
        (vec![Request::causal(1, 0, 32); 2], [0, 2, 0]),
        // Rows with fewer queries keep their narrow tiles.
        (
            vec![Request::causal(1, 0, 70), Request::causal(2, 9, 1)],
            [1, 3, 0],
        ),
        // Two spans in common, and one of each token's own.
        (vec![tree], [64, 2 * 2, 64 * 4 * 3]),
    ];
    for (at, (requests, [items, wide_items, parts])) in table.into_iter().enumerate() {
        let wanted = Cut {
            items,
            wide_items,
            parts,
        };
        assert_eq!(cut(&gpu, &wide, &run, &requests), wanted, "row {at}");
    }
}

/// The kernel is launched for rows of many queries, and not for as many queries in rows of few: 16
/// heads of a latent, which share a cell, are half of a tile.
#[test]
fn rows_of_few_queries_launch_nothing_wide() {
    let gpu = Gpu::new();
    let latents = run(16, 1, 24, 0);
    let latents = Run {
        shape: AttentionShape {
            latent: Some(16),
            ..latents.shape
        },
        ..latents
    };
    for (run, count) in [(latents, 9), (run(4, 2, 16, 0), 64)] {
        let [wide, narrow] = kernels(&gpu, &run);
        let launches = |attention: &Attention, requests: &[Request]| {
            let before = calls(c"cuLaunchKernelEx")?;
            attend(&gpu, attention, &run, requests);
            Some(calls(c"cuLaunchKernelEx")? - before)
        };
        let apart: Vec<_> = (0..count).map(|id| Request::causal(id, 9, 1)).collect();
        let together = [Request::causal(1, 9, count as usize)];
        let Some(least) = launches(&narrow, &apart) else {
            return; // A real device does not count.
        };
        assert_eq!(launches(&wide, &apart), Some(least));
        assert_eq!(launches(&wide, &together), Some(least + 1));
    }
}

/// Small enough to run for every fault, with a case of each kind.
#[test]
#[ignore = "a process of its own, which another test starts"]
fn wide_tiles_are_watched() {
    let gpu = Gpu::new();
    watched(&gpu, run(16, 1, 24, 0));
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn pairs_of_tiles_are_watched() {
    let gpu = Gpu::new();
    let latents = run(16, 1, 24, 0);
    watched(
        &gpu,
        Run {
            shape: AttentionShape {
                latent: Some(16),
                ..latents.shape
            },
            ..latents
        },
    );
}

fn watched(gpu: &Gpu, run: Run) {
    let run = Run {
        parts: 1 << 10,
        page_size: 4,
        ..run
    };
    let [wide, _] = kernels(gpu, &run);
    for seed in SEEDS {
        let _order = lockstep_fake_cuda::order(seed);
        let requests = [
            Request::causal(1, 0, 18),
            Request::tree(2, 300, 6, &mut Noise(seed)),
            Request::causal(3, 340, 5),
        ];
        let found = attend(gpu, &wide, &run, &requests);
        for (found, request) in found.iter().zip(&requests) {
            assert_close(found, &oracle(&run.shape, run.cached, request), 1e-2);
        }
    }
}
