//! A model whose layers have sliding windows of different sizes, and none. Its texts have the
//! same bits with chunks, pages of any size, cached prefixes, drafts and trees, on ranks and DP
//! ranks, and on GPUs.

use lockstep_types::Dtype;
use lockstep_types::sampling::LogprobParams;

use crate::{
    setup::{Algorithm, Layers, Setup, Shape},
    two_caches::{accepted_by, answers, jobs, same},
};

fn plain((tp, dp): (usize, usize)) -> Setup {
    Setup {
        layers: Layers::Windows,
        dp,
        ..Setup::plain(Dtype::Float32, tp)
    }
}

#[test]
fn chunks_pages_and_cached_prefixes_change_no_bit() {
    let jobs = jobs(6, 20);
    for split in [(1, 1), (2, 1), (2, 2)] {
        let expected = answers(&plain(split), &jobs);
        for (page, chunk, overlap) in [(1, Some(7), true), (16, Some(24), false)] {
            let setup = Setup {
                page,
                chunk,
                overlap,
                radix: true,
                ..plain(split)
            };
            same(&format!("{setup:?}"), &answers(&setup, &jobs), &expected);
        }
    }
}

/// A deep node of a tree does not see its first ancestors in the narrow layers.
#[test]
fn drafts_change_no_bit() {
    let (jobs, mut accepted) = (jobs(6, 40), 0);
    for split in [(1, 1), (2, 2)] {
        let expected = answers(&plain(split), &jobs);
        for (algorithm, shape, page) in [
            (Algorithm::Ngram, Shape::chain(5), 4),
            (Algorithm::Ngram, Shape::TREE, 1),
            (Algorithm::Standalone, Shape::TREE, 16),
        ] {
            let setup = Setup {
                speculation: Some((algorithm, shape)),
                page,
                radix: true,
                ..plain(split)
            };
            let found = answers(&setup, &jobs);
            same(&format!("{setup:?}"), &found, &expected);
            accepted += accepted_by(&found);
        }
    }
    assert!(accepted > 0);
}

/// Tiles of a GPU and trees that it grows itself see by positions too.
#[test]
fn drafts_on_gpus_change_no_bit() {
    let _alone = crate::cuda::ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let _order = lockstep_fake_cuda::order_of_threads(4);
    let (mut jobs, mut accepted) = (jobs(2, 10), 0);
    for job in &mut jobs {
        job.request.generation.logprobs = LogprobParams::default();
    }
    let plain = Setup {
        gpus: true,
        chunk: Some(2 * 16),
        running: 8,
        tokens: 1024,
        ..plain((1, 1))
    };
    let expected = answers(&plain, &jobs);
    for (algorithm, page) in [(Algorithm::Ngram, 4), (Algorithm::Standalone, 16)] {
        let setup = Setup {
            speculation: Some((algorithm, Shape::TREE)),
            page,
            radix: true,
            ..plain.clone()
        };
        let found = answers(&setup, &jobs);
        same(&format!("{setup:?}"), &found, &expected);
        accepted += accepted_by(&found);
    }
    assert!(accepted > 0);
}
