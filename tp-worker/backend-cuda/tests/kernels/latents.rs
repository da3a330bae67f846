//! Attention whose blocks of positions have one buffer: over latents, where a value is the beginning
//! of its key, and of heads of more than 256 columns.

use lockstep_backend::AttentionShape;
use lockstep_backend_cuda::Element;

use crate::attention::{ENOUGH, assert_means, assert_same, kernels, mixed, run, tolerance};
use crate::requests::{Request, Run, attend, oracle};
use crate::support::{Gpu, Noise};

/// `heads` over latents of `latent` columns, in cells of `cell`.
fn latents(heads: usize, cell: usize, latent: usize, element: Element) -> Run {
    let run = run(heads, 1, cell, element);
    Run {
        shape: AttentionShape {
            latent: Some(latent),
            ..run.shape
        },
        ..run
    }
}

/// Heads as DeepSeek V3, Mistral 4 and Gemma 4 have them, some on each rank.
#[test]
fn the_widest_heads_are_weighted_means() {
    let gpu = Gpu::new();
    let runs = [
        latents(16, 576, 512, Element::Bf16),
        latents(4, 320, 256, Element::Bf16),
        run(2, 1, 512, Element::Bf16),
    ];
    for (seed, run) in (1..).zip(runs) {
        let attention = kernels(&gpu, &run);
        let _order = lockstep_fake_cuda::order(seed);
        let tree = Request::tree(3, 255, 3, &mut Noise(seed));
        let requests = [Request::causal(1, 0, 5), Request::causal(2, 330, 1), tree];
        let found = attend(&gpu, &attention, &run, &requests);
        for (found, request) in found.iter().zip(&requests) {
            let wanted = oracle(&run.shape, run.cached, request);
            assert_means(found, &wanted, tolerance(run.cached));
        }
    }
}

/// Widths that are no multiples of a tile's, and more heads than a tile has rows, cut in several
/// ways.
#[test]
fn latents_are_keys_and_values_however_work_is_cut() {
    let gpu = Gpu::new();
    let runs = [
        latents(20, 40, 24, Element::Bf16),
        latents(3, 28, 18, Element::F32),
    ];
    for (seed, run) in (1..).zip(runs) {
        let attention = kernels(&gpu, &run);
        let requests = mixed(&mut Noise(seed));
        let wanted = {
            let _order = lockstep_fake_cuda::order(seed);
            attend(&gpu, &attention, &run, &requests)
        };
        for (found, request) in wanted.iter().zip(&requests) {
            let exact = oracle(&run.shape, run.cached, request);
            assert_means(found, &exact, tolerance(run.cached));
        }
        for (page_size, parts) in [(1, ENOUGH), (7, 40)] {
            let _order = lockstep_fake_cuda::order(seed + 10);
            let other = Run {
                page_size,
                parts,
                ..run
            };
            assert_same(&attend(&gpu, &attention, &other, &requests), &wanted);
        }
    }
}

/// A prompt's chunks, single tokens, and the paths of a tree have the bits of the whole.
#[test]
fn latents_of_chunks_and_paths_have_the_bits_of_the_whole() {
    let gpu = Gpu::new();
    let run = latents(5, 24, 16, Element::Bf16);
    let (attention, width) = (kernels(&gpu, &run), run.shape.out_width());
    let whole = attend(&gpu, &attention, &run, &[Request::causal(1, 0, 300)]).concat();
    let chunks = [(0, 70), (70, 1), (71, 190), (261, 39)];
    let chunks = chunks.map(|(from, count)| Request::causal(1, from, count));
    let found = attend(&gpu, &attention, &run, &chunks).concat();
    assert_same(&[found], &[whole]);
    let tree = Request::tree(9, 250, 9, &mut Noise(4));
    let nodes = attend(&gpu, &attention, &run, std::slice::from_ref(&tree)).concat();
    let paths: Vec<Request> = (0..9).map(|node| tree.path(node)).collect();
    let chains = attend(&gpu, &attention, &run, &paths);
    for (node, chain) in nodes.chunks(width).zip(&chains) {
        let last = &chain[chain.len() - width..];
        assert_same(&[node.to_vec()], &[last.to_vec()]);
    }
}
