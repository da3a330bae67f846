//! A model with latent attention and experts in groups. Its texts have the same bits with chunks,
//! pages of any size, cached prefixes, drafts and trees, on ranks and DP ranks.

use lockstep_types::Dtype;

use crate::{
    cuda::alone,
    setup::{Algorithm, Layers, Setup, Shape},
    two_caches::{SPLITS, answers, jobs, jobs_of_devices, on_gpus, same, with_drafts},
};

fn plain(dtype: Dtype, (tp, dp): (usize, usize)) -> Setup {
    Setup {
        layers: Layers::Latent,
        dp,
        ..Setup::plain(dtype, tp)
    }
}

#[test]
fn chunks_pages_and_cached_prefixes_change_no_bit() {
    let jobs = jobs(6, 12);
    let dtypes = [Dtype::Float32, Dtype::Bfloat16, Dtype::Float32];
    for (dtype, split) in dtypes.into_iter().zip(SPLITS) {
        let expected = answers(&plain(dtype, split), &jobs);
        for (page, chunk) in [(1, Some(7)), (4, None)] {
            let setup = Setup {
                page,
                chunk,
                radix: true,
                ..plain(dtype, split)
            };
            same(&format!("{setup:?}"), &answers(&setup, &jobs), &expected);
        }
    }
}

/// Chains and trees, of drafters that read the text, that are models, and that read features.
#[test]
fn drafts_change_no_bit() {
    let (jobs, mut accepted) = (jobs(6, 32), 0);
    let drafts = [
        (Algorithm::Ngram, Shape::chain(5), 4),
        (Algorithm::Ngram, Shape::TREE, 1),
        (Algorithm::Standalone, Shape::TREE, 16),
        (Algorithm::Eagle3, Shape::TREE, 16),
        (Algorithm::Dflash, Shape::chain(4), 1),
    ];
    let dtypes = [Dtype::Bfloat16, Dtype::Float32];
    for (dtype, split) in dtypes.into_iter().zip([(1, 1), (2, 2)]) {
        accepted += with_drafts(&plain(dtype, split), &jobs, &drafts);
    }
    assert!(accepted > 0);
}

/// The device drafts with latents of the draft, chooses, and moves the cells of accepted nodes. Its
/// passes have at most 64 tokens, so that all have the same bits.
#[test]
fn drafts_on_gpus_change_no_bit() {
    let _alone = alone(3);
    let (jobs, mut accepted) = (jobs_of_devices(28), 0);
    let ngram = (Algorithm::Ngram, Shape::TREE, 4);
    let standalone = (Algorithm::Standalone, Shape::TREE, 16);
    for (split, draft) in [((1, 1), ngram), ((2, 2), standalone)] {
        let plain = on_gpus(&plain(Dtype::Float32, split));
        accepted += with_drafts(&plain, &jobs, &[draft]);
    }
    assert!(accepted > 0);
}
