//! A model with mixtures of experts. Its texts have the same bits with chunks, other requests,
//! drafts and trees, on ranks and DP ranks.

use lockstep_types::Dtype;

use crate::{
    setup::{Algorithm, Layers, Setup, Shape},
    two_caches::{SPLITS, accepted_by, answers, jobs, same},
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
    for split in SPLITS {
        let expected = answers(&plain(Dtype::Float32, split), &jobs);
        for (algorithm, shape, page) in [
            (Algorithm::Ngram, Shape::chain(5), 4),
            (Algorithm::Ngram, Shape::TREE, 1),
        ] {
            let setup = Setup {
                speculation: Some((algorithm, shape)),
                page,
                radix: true,
                ..plain(Dtype::Float32, split)
            };
            let found = answers(&setup, &jobs);
            same(&format!("{setup:?}"), &found, &expected);
            accepted += accepted_by(&found);
        }
    }
    assert!(accepted > 0);
}
