//! A model with layers of gpt-oss: sinks, windows in some layers, experts in MXFP4. Its texts have
//! the same bits with chunks, cached prefixes, drafts and trees, on ranks and DP ranks, and on GPUs.

use lockstep_types::Dtype;

use crate::{
    cuda::alone,
    setup::{Algorithm, Layers, Setup, Shape},
    two_caches::{SPLITS, answers, jobs, jobs_of_devices, on_gpus, same, with_drafts},
    windows::{cold_and_warm, jobs_with_stems},
};

fn plain(dtype: Dtype, (tp, dp): (usize, usize)) -> Setup {
    Setup {
        layers: Layers::GptOss,
        dp,
        ..Setup::plain(dtype, tp)
    }
}

#[test]
fn chunks_and_company_change_no_bit() {
    let jobs = jobs(6, 12);
    let dtypes = [Dtype::Float32, Dtype::Bfloat16, Dtype::Float32];
    for (dtype, split) in dtypes.into_iter().zip(SPLITS) {
        let expected = answers(&plain(dtype, split), &jobs);
        let setup = Setup {
            page: 4,
            chunk: Some(7),
            radix: true,
            ..plain(dtype, split)
        };
        same(&format!("{setup:?}"), &answers(&setup, &jobs), &expected);
    }
}

/// Prompts that begin alike for as long as the widest window, one position more or less.
#[test]
fn hits_at_the_edges_of_windows_change_no_bit() {
    for (page, split) in [(1, (1, 1)), (16, (2, 2))] {
        let jobs = jobs_with_stems(page.max(2));
        let plain = Setup {
            page,
            chunk: Some(16),
            running: 4 * split.1,
            tokens: 2048,
            ..plain(Dtype::Bfloat16, split)
        };
        let expected = answers(&plain, &jobs);
        for (overlap, speculation) in [
            (true, None),
            (true, Some((Algorithm::Standalone, Shape::TREE))),
            (false, Some((Algorithm::Ngram, Shape::chain(4)))),
        ] {
            let setup = Setup {
                overlap,
                speculation,
                radix: true,
                ..plain.clone()
            };
            cold_and_warm(&setup, &jobs, &expected);
        }
    }
}

/// Chains and trees, of a drafter that reads the text and of one that is a model. A deep node of
/// a tree does not see its first ancestors in the narrow layers.
#[test]
fn drafts_change_no_bit() {
    let (jobs, mut accepted) = (jobs(6, 32), 0);
    let drafts = [
        (Algorithm::Ngram, Shape::chain(5), 4),
        (Algorithm::Ngram, Shape::TREE, 1),
        (Algorithm::Standalone, Shape::chain(3), 16),
        (Algorithm::Standalone, Shape::TREE, 16),
    ];
    for split in [(1, 1), (2, 2)] {
        accepted += with_drafts(&plain(Dtype::Float32, split), &jobs, &drafts);
    }
    assert!(accepted > 0);
}

/// The device attends beside sinks, multiplies by packed experts, drafts and chooses.
#[test]
fn drafts_on_gpus_change_no_bit() {
    let _alone = alone(3);
    let drafts = [
        (Algorithm::Ngram, Shape::TREE, 4),
        (Algorithm::Standalone, Shape::chain(3), 16),
    ];
    let plain = on_gpus(&plain(Dtype::Bfloat16, (1, 1)));
    let accepted = with_drafts(&plain, &jobs_of_devices(32), &drafts);
    assert!(accepted > 0);
}
