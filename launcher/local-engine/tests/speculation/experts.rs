//! A model with mixtures of experts. Its texts have the same bits with chunks, other requests,
//! drafts and trees, on ranks and DP ranks, and on GPUs.

use lockstep_types::Dtype;

use crate::{
    cuda::alone,
    setup::{Algorithm, Layers, Setup, Shape},
    two_caches::{SPLITS, answers, jobs, jobs_of_devices, on_gpus, same, with_drafts},
};

fn plain(dtype: Dtype, (tp, dp): (usize, usize)) -> Setup {
    Setup {
        layers: Layers::Experts,
        dp,
        ..Setup::plain(dtype, tp)
    }
}

#[test]
fn chunks_and_company_change_no_bit() {
    let jobs = jobs(6, 12);
    for (dtype, split) in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float32]
        .into_iter()
        .zip(SPLITS)
    {
        let expected = answers(&plain(dtype, split), &jobs);
        let setup = Setup {
            page: 4,
            chunk: Some(7),
            running: 2,
            radix: true,
            ..plain(dtype, split)
        };
        same(&format!("{setup:?}"), &answers(&setup, &jobs), &expected);
    }
}

#[test]
fn drafts_change_no_bit() {
    let (jobs, mut accepted) = (jobs(6, 32), 0);
    let drafts = [
        (Algorithm::Ngram, Shape::chain(5), 4),
        (Algorithm::Ngram, Shape::TREE, 1),
    ];
    for split in SPLITS {
        accepted += with_drafts(&plain(Dtype::Float32, split), &jobs, &drafts);
    }
    assert!(accepted > 0);
}

/// Each rank has experts of its own, five and four of them.
#[test]
fn drafts_change_no_bit_where_experts_are_split_by_number() {
    let (jobs, mut accepted) = (jobs(4, 24), 0);
    for (split, draft) in [
        ((2, 1), (Algorithm::Ngram, Shape::chain(5), 4)),
        ((2, 2), (Algorithm::Ngram, Shape::TREE, 1)),
    ] {
        let plain = Setup {
            ep: 2,
            ..plain(Dtype::Float32, split)
        };
        accepted += with_drafts(&plain, &jobs, &[draft]);
    }
    assert!(accepted > 0);
}

/// The device routes, drafts and chooses. Its passes have at most 64 tokens, so that all have the
/// same bits.
#[test]
fn drafts_on_gpus_change_no_bit() {
    let _alone = alone(3);
    let (jobs, mut accepted) = (jobs_of_devices(16), 0);
    let ngram = (Algorithm::Ngram, Shape::TREE, 4);
    let eagle3 = (Algorithm::Eagle3, Shape::chain(3), 1);
    let standalone = (Algorithm::Standalone, Shape::TREE, 16);
    // Heads read what the mixtures compute. The others have both splits in `two_caches`.
    for (split, other) in [((1, 1), ngram), ((2, 2), standalone)] {
        let plain = on_gpus(&plain(Dtype::Float32, split));
        accepted += with_drafts(&plain, &jobs, &[eagle3, other]);
    }
    assert!(accepted > 0);
}
