//! Attention compared with f64, and bits that may depend on a request only.

use std::num::NonZeroUsize;

use lockstep_backend::AttentionShape;
use lockstep_backend_cuda::{Attention, Cut, Element};

use crate::requests::{Request, Run, attend, cut, oracle};
use crate::support::{Gpu, Noise, SEEDS, bits};

/// Positions of a span; partial results are joined at its borders.
const SPAN: usize = 256;
/// Room for the parts of any of these tests.
pub const ENOUGH: usize = 1 << 14;

pub fn run(heads: usize, kv_heads: usize, head_dim: usize, element: Element) -> Run {
    Run {
        shape: AttentionShape::dense(heads, kv_heads, head_dim, (head_dim as f32).sqrt().recip()),
        cached: element,
        operand: element,
        page_size: 16,
        parts: ENOUGH,
    }
}

/// Windows shorter than a block, of about a span, and of several.
const WINDOWS: [usize; 4] = [1, 40, SPAN + 1, 2 * SPAN - 30];

/// The same run within a window.
fn within(run: Run, window: usize) -> Run {
    let window = NonZeroUsize::new(window);
    Run {
        shape: AttentionShape {
            window,
            ..run.shape
        },
        ..run
    }
}

/// Gives a run a sink for each head.
fn beside_sinks(run: Run) -> Run {
    Run {
        shape: AttentionShape {
            sinks: true,
            ..run.shape
        },
        ..run
    }
}

/// Groups of one, two and three heads, and of more heads than a tile has rows; widths that are
/// no multiples of a tile's.
fn runs() -> [Run; 5] {
    [
        run(4, 2, 32, Element::Bf16),
        run(3, 1, 24, Element::Bf16),
        run(20, 1, 16, Element::Bf16),
        run(4, 2, 32, Element::F32),
        run(2, 2, 20, Element::F32),
    ]
}

pub fn kernels(gpu: &Gpu, run: &Run) -> Attention {
    Attention::new(
        &gpu.context,
        &gpu.compiler,
        &run.shape,
        run.cached,
        run.operand,
    )
    .expect("kernels")
}

/// Tolerance of a mean, as a part of the values' size. Weights are rounded to the cache's type.
pub fn tolerance(element: Element) -> f64 {
    match element {
        Element::F32 => 2e-5,
        Element::Bf16 => 1e-2,
    }
}

#[track_caller]
pub fn assert_means(found: &[f32], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len());
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let error = (f64::from(*found) - wanted).abs();
        assert!(
            error <= tolerance,
            "value {at} is {found} instead of {wanted}"
        );
    }
}

/// Lengths around the borders of blocks and spans, chains and trees.
pub fn mixed(noise: &mut Noise) -> Vec<Request> {
    let lengths = [
        (0, 1),
        (0, 1 + noise.below(70)),
        (63, 2),
        (SPAN - 1, 1),
        (SPAN, 1),
        (SPAN - 2, 4),
        (SPAN + 1, 1 + noise.below(20)),
        (2 * SPAN - 1, 2),
        (2 * SPAN + 3, 1),
        (200 + noise.below(100), 40 + noise.below(30)),
    ];
    let causal = lengths.iter().zip(0..);
    let mut requests: Vec<Request> = causal
        .map(|((kv_len, q_len), id)| Request::causal(id, *kv_len, *q_len))
        .collect();
    let trees = [(0, 9), (SPAN - 3, 7), (SPAN, 5), (SPAN + 40, 3)];
    for ((kv_len, q_len), id) in trees.into_iter().zip(20..) {
        let place = noise.below(requests.len());
        requests.insert(place, Request::tree(id, kv_len, q_len, noise));
    }
    // Its last span is short, and the one before has drafts, too.
    requests.push(Request::tree(32, 2 * SPAN - 9, 22, noise));
    // A tree with more than one mask word, and tokens that see nothing at all.
    requests.push(Request::tree(30, noise.below(40), 66, noise));
    let mut blind = Request::tree(31, 0, 3, noise);
    blind.mask = Some(vec![vec![], vec![0], vec![]]);
    requests.push(blind);
    requests
}

#[test]
fn attention_is_the_weighted_mean() {
    let gpu = Gpu::new();
    for run in runs() {
        let attention = kernels(&gpu, &run);
        for seed in SEEDS {
            let _order = lockstep_fake_cuda::order(seed);
            let requests = mixed(&mut Noise(seed));
            let found = attend(&gpu, &attention, &run, &requests);
            for (found, request) in found.iter().zip(&requests) {
                let wanted = oracle(&run.shape, run.cached, request);
                assert_means(found, &wanted, tolerance(run.cached));
            }
        }
    }
}

#[test]
fn windows_show_the_nearest_positions() {
    let gpu = Gpu::new();
    for (index, window) in WINDOWS.into_iter().enumerate() {
        let run = within(runs()[index], window);
        let attention = kernels(&gpu, &run);
        let _order = lockstep_fake_cuda::order(index as u64);
        let requests = mixed(&mut Noise(3));
        let found = attend(&gpu, &attention, &run, &requests);
        for (found, request) in found.iter().zip(&requests) {
            let wanted = oracle(&run.shape, run.cached, request);
            assert_means(found, &wanted, tolerance(run.cached));
        }
    }
}

/// Sinks of every shape are compared, with and without a window.
#[test]
fn sinks_join_the_sum_of_weights_alone() {
    let gpu = Gpu::new();
    let windows = [WINDOWS[2], WINDOWS[1], 0, WINDOWS[0], WINDOWS[3]];
    for (seed, (run, window)) in (1..).zip(runs().into_iter().zip(windows)) {
        let run = beside_sinks(within(run, window));
        let attention = kernels(&gpu, &run);
        let _order = lockstep_fake_cuda::order(seed);
        let requests = mixed(&mut Noise(seed));
        let found = attend(&gpu, &attention, &run, &requests);
        for (found, request) in found.iter().zip(&requests) {
            let wanted = oracle(&run.shape, run.cached, request);
            assert_means(found, &wanted, tolerance(run.cached));
        }
    }
}

/// Gives a run rows that have queries alone.
fn reading(run: Run) -> Run {
    Run {
        shape: AttentionShape {
            reads_only: true,
            ..run.shape
        },
        ..run
    }
}

/// Rows without keys and values have the bits of rows with some, by the same kernels.
#[test]
fn layers_that_only_read_have_the_bits_of_those_that_write() {
    let gpu = Gpu::new();
    for run in [
        within(run(4, 2, 32, Element::Bf16), SPAN + 30),
        run(3, 1, 24, Element::F32),
    ] {
        let attention = kernels(&gpu, &reading(run));
        assert_eq!(*attention.shape(), run.shape);
        let requests = mixed(&mut Noise(7));
        let _order = lockstep_fake_cuda::order(1);
        let wanted = attend(&gpu, &attention, &run, &requests);
        assert_same(&attend(&gpu, &attention, &reading(run), &requests), &wanted);
    }
}

/// Expects the results of a batch in two runs to be equal.
#[track_caller]
pub fn assert_same(found: &[Vec<f32>], wanted: &[Vec<f32>]) {
    assert_eq!(found.len(), wanted.len());
    for (request, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!(
            bits(found) == bits(wanted),
            "request {request} has other bits"
        );
    }
}

#[test]
fn bits_do_not_depend_on_pages_on_how_work_is_cut_or_on_its_order() {
    let gpu = Gpu::new();
    for run in [
        run(4, 2, 32, Element::Bf16),
        run(2, 2, 20, Element::F32),
        within(run(4, 2, 32, Element::Bf16), 70),
        within(run(4, 2, 32, Element::Bf16), SPAN + 30),
        beside_sinks(within(run(4, 2, 32, Element::Bf16), SPAN + 30)),
    ] {
        let attention = kernels(&gpu, &run);
        let requests = mixed(&mut Noise(5));
        let _order = lockstep_fake_cuda::order(1);
        let wanted = attend(&gpu, &attention, &run, &requests);
        for (seed, page_size, parts) in [(2, 1, ENOUGH), (3, 16, 0), (4, 7, 40)] {
            let _order = lockstep_fake_cuda::order(seed);
            let other = Run {
                page_size,
                parts,
                ..run
            };
            assert_same(&attend(&gpu, &attention, &other, &requests), &wanted);
        }
    }
}

/// On the fake device, which has four multiprocessors.
#[test]
fn rows_are_split_where_that_fills_the_device() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real device has more multiprocessors.
    }
    let gpu = Gpu::new();
    let run = run(4, 2, 32, Element::Bf16);
    let attention = kernels(&gpu, &run);
    let decode = |spans: usize, rest: usize| Request::causal(1, spans * SPAN + rest - 1, 1);
    let tree = |positions: usize, drafts: usize| {
        Request::tree(2, positions - drafts, drafts, &mut Noise(1))
    };
    let few = vec![decode(4, 0); 5];
    let many = vec![decode(4, 0); 6];
    let one_long = [vec![decode(2, 0); 7], vec![decode(4, 0)]].concat();
    let beside_a_prompt = vec![
        decode(12, 0),
        decode(12, 0),
        Request::causal(3, 0, 6 * 16 / 2),
    ];
    let parts = |spans: u32| 4 * spans;
    // Requests, items, and parts.
    let table = [
        (vec![decode(1, 0)], 1, 0),
        // A short last span goes with the one before.
        (vec![decode(1, 1)], 1, 0),
        (vec![decode(1, 63)], 1, 0),
        (vec![decode(1, 64)], 2, parts(2)),
        (vec![decode(4, 1)], 4, parts(5)),
        (vec![decode(4, 100)], 5, parts(5)),
        // A tree's own spans have tiles of one token.
        (vec![tree(SPAN + 30, 3)], 1 + 3, 3 * parts(2)),
        (vec![tree(2 * SPAN + 30, 40)], 5 + 40, 40 * parts(3)),
        (few, 5 * 4, 5 * parts(4)),
        (many, 6, 0),
        (one_long, 7 + 4, parts(4)),
        // A prompt's tiles are short beside long rows, though as many as busy blocks.
        (beside_a_prompt, 2 * 12 + 6, 2 * parts(12)),
        // A second turn of blocks would run almost empty, or is full enough.
        (vec![decode(4, 0); 9], 9 * 4, 9 * parts(4)),
        (vec![decode(4, 0); 12], 12, 0),
    ];
    for (at, (requests, items, parts)) in table.into_iter().enumerate() {
        let found = cut(&gpu, &attention, &run, &requests);
        let wanted = Cut {
            items,
            wide_items: 0,
            parts,
        };
        assert_eq!(found, wanted, "row {at}");
    }
}

#[test]
fn bits_do_not_depend_on_who_shares_the_batch() {
    let gpu = Gpu::new();
    let run = within(run(4, 2, 32, Element::Bf16), SPAN - 9);
    let attention = kernels(&gpu, &run);
    let requests = mixed(&mut Noise(6));
    let together = attend(&gpu, &attention, &run, &requests);
    for (request, wanted) in requests.iter().zip(together) {
        let alone = attend(&gpu, &attention, &run, std::slice::from_ref(request));
        assert_same(&alone, &[wanted]);
    }
}

#[test]
fn bits_do_not_depend_on_chunks() {
    let gpu = Gpu::new();
    let plain = run(4, 2, 32, Element::Bf16);
    for run in [
        plain,
        within(plain, 50),
        within(plain, SPAN + 3),
        beside_sinks(plain),
    ] {
        let attention = kernels(&gpu, &run);
        let whole = Request::causal(1, 0, 2 * SPAN + 9);
        let wanted = attend(&gpu, &attention, &run, std::slice::from_ref(&whole));
        let width = run.shape.out_width();
        // Chunks from several places at once: a chunk reads the earlier ones from the cache.
        for (from, chunk) in [(0, 77), (SPAN - 20, 7), (2 * SPAN - 4, 1)] {
            let starts: Vec<usize> = (from..whole.new.len()).step_by(chunk).collect();
            let chunks: Vec<Request> = starts
                .iter()
                .map(|start| Request::causal(1, *start, chunk.min(whole.new.len() - start)))
                .collect();
            let found = attend(&gpu, &attention, &run, &chunks).concat();
            assert!(
                bits(&found) == bits(&wanted[0][from * width..]),
                "chunks of {chunk} from {from}, {:?}",
                run.shape
            );
        }
    }
}

#[test]
fn a_path_of_a_tree_has_the_bits_of_a_chain() {
    let gpu = Gpu::new();
    for run in [
        run(4, 2, 32, Element::Bf16),
        run(20, 1, 16, Element::Bf16),
        within(run(4, 2, 32, Element::Bf16), 3),
        within(run(4, 2, 32, Element::Bf16), SPAN),
        beside_sinks(run(4, 2, 32, Element::Bf16)),
    ] {
        let attention = kernels(&gpu, &run);
        let width = run.shape.out_width();
        for (kv_len, q_len) in [(0, 12), (SPAN - 4, 17), (SPAN, 6), (2 * SPAN - 1, 5)] {
            let tree = Request::tree(9, kv_len, q_len, &mut Noise(kv_len as u64));
            let nodes = attend(&gpu, &attention, &run, std::slice::from_ref(&tree));
            let paths: Vec<Request> = (0..q_len).map(|node| tree.path(node)).collect();
            let chains = attend(&gpu, &attention, &run, &paths);
            for (node, chain) in chains.iter().enumerate() {
                let last = &chain[chain.len() - width..];
                let found = &nodes[0][node * width..][..width];
                assert!(
                    bits(found) == bits(last),
                    "node {node} over {kv_len} positions"
                );
            }
        }
    }
}
