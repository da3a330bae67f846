//! A model of recurrent layers and attention. Its texts have the same bits with chunks, pages of
//! any size, hits at cached states and beside them, drafts and trees of any depth, on ranks and
//! DP ranks, and on GPUs.

use lockstep_local_engine::Completion;
use lockstep_types::Dtype;

use crate::{
    cuda::alone,
    load::{idle, run},
    policies::Policy,
    requests::Job,
    setup::{Algorithm, Layers, Setup, Shape},
    two_caches::{jobs, jobs_of_devices, on_gpus, same, with_drafts},
    windows::{cold_and_warm, jobs_with_stems},
};

/// Few slots, so that states change hands.
fn hybrid((tp, dp): (usize, usize)) -> Setup {
    Setup {
        layers: Layers::Hybrid,
        dp,
        running: 4,
        tokens: 4096,
        ..Setup::plain(Dtype::Float32, tp)
    }
}

/// Each recurrent layer goes on by another rule.
fn three_rules(split: (usize, usize)) -> Setup {
    Setup {
        layers: Layers::ThreeRules,
        ..hybrid(split)
    }
}

/// Lets requests choose among four tokens.
fn few_tokens(jobs: &mut [Job]) {
    for job in jobs {
        let few = (100..104).map(|token| (token, 100.0));
        job.request.generation.sampling.logit_bias = few.collect();
    }
}

fn answers(setup: &Setup, jobs: &[Job]) -> Vec<Completion> {
    run("alone", &mut setup.start(), jobs, |_| {})
}

/// Prompts part at states, and one token before or behind them. There are too few states for
/// all of them, or enough.
#[test]
fn hits_at_states_and_beside_them_change_no_bit() {
    for (page, plain) in [
        (1, hybrid((1, 1))),
        (16, hybrid((2, 2))),
        (16, three_rules((2, 1))),
    ] {
        let jobs = jobs_with_stems(page.max(16));
        let expected = answers(&plain, &jobs);
        for (spare_states, chunk, speculation) in [
            (2, Some(7), None),
            (128, None, Some((Algorithm::Standalone, Shape::TREE))),
            (4, Some(24), Some((Algorithm::Ngram, Shape::chain(4)))),
        ] {
            let setup = Setup {
                page,
                chunk,
                spare_states,
                speculation,
                radix: true,
                ..plain.clone()
            };
            cold_and_warm(&setup, &jobs, &expected);
        }
    }
}

#[test]
fn drafts_change_no_bit() {
    let (jobs, mut accepted) = (jobs(4, 32), 0);
    let drafts = [
        (Algorithm::Ngram, Shape::chain(5), 16),
        (Algorithm::Ngram, Shape::TREE, 1),
        (Algorithm::Standalone, Shape::TREE, 16),
        (Algorithm::Standalone, Shape::chain(3), 1),
        (Algorithm::Eagle3, Shape::TREE, 16),
        (Algorithm::Dflash, Shape::chain(4), 1),
    ];
    for (split, drafts) in [
        ((1, 1), &drafts[..]),
        ((2, 1), &drafts[1..3]),
        ((2, 2), &drafts[..2]),
    ] {
        accepted += with_drafts(&hybrid(split), &jobs, drafts);
    }
    assert!(accepted > 0);
}

/// Replays of Mamba-2 and of short convolutions. Texts have few tokens, so that n-grams come again.
#[test]
fn drafts_change_no_bit_of_other_rules() {
    let (mut jobs, mut accepted) = (jobs(3, 40), 0);
    few_tokens(&mut jobs);
    let drafts = [
        (Algorithm::Ngram, Shape::chain(5), 16),
        (Algorithm::Ngram, Shape::TREE, 1),
        (Algorithm::Standalone, Shape::TREE, 16),
    ];
    for (split, drafts) in [
        ((1, 1), &drafts[..]),
        ((2, 1), &drafts[1..]),
        ((2, 2), &drafts[..1]),
    ] {
        accepted += with_drafts(&three_rules(split), &jobs, drafts);
    }
    assert!(accepted > 0);
}

/// Records are sized by the largest tier, and a row without drafts follows one with drafts, whose
/// accepted nodes it replays. Strides taken from the running tier instead gave other texts
/// (sgl-project/sglang#23331).
#[test]
fn another_depth_in_every_step_changes_no_bit() {
    let jobs = jobs(4, 48);
    for split in [(1, 1), (2, 2)] {
        let expected = answers(&hybrid(split), &jobs);
        for (algorithm, shape) in [
            (Algorithm::Ngram, Shape::chain(5)),
            (Algorithm::Standalone, Shape::TREE),
        ] {
            let setup = Setup {
                policy: Some(Policy::Restless),
                speculation: Some((algorithm, shape)),
                radix: true,
                ..hybrid(split)
            };
            let (registry, _) = Policy::Restless.watched();
            let mut engine = setup.start_with(registry);
            let found = run("restless", &mut engine, &jobs, |_| {});
            same(&format!("{setup:?}"), &found, &expected);
            idle(&mut engine);
        }
    }
}

/// Requests that are often retracted, for want of pages.
#[test]
fn scarce_pages_change_no_bit() {
    let mut jobs = jobs(6, 100);
    for job in &mut jobs {
        job.request.generation.sampling.ignore_eos = true;
    }
    let expected = answers(&hybrid((1, 1)), &jobs);
    for speculation in [None, Some((Algorithm::Ngram, Shape::TREE))] {
        let scarce = Setup {
            speculation,
            page: 4,
            tokens: 360,
            spare_states: 6,
            care: 0,
            radix: true,
            ..hybrid((1, 1))
        };
        let mut engine = scarce.start();
        let found = run("scarce", &mut engine, &jobs, |_| {});
        assert!(engine.load().counters.retractions > 0);
        same(&format!("{scarce:?}"), &found, &expected);
        idle(&mut engine);
    }
}

/// A device finds ancestors in trees that it has grown itself, and replays what it has accepted,
/// with another depth in every step. Hosts draft n-grams, of which rows have none now and then.
#[test]
fn drafts_on_gpus_change_no_bit() {
    let _alone = alone(5);
    let (jobs, mut accepted) = (jobs_of_devices(10), 0);
    let drafts = [
        (Algorithm::Standalone, Shape::TREE, 16),
        (Algorithm::Ngram, Shape::TREE, 1),
        (Algorithm::Standalone, Shape::chain(3), 4),
    ];
    for (split, drafts) in [
        ((1, 1), &drafts[1..]),
        ((2, 1), &drafts[..1]),
        ((2, 2), &drafts[2..]),
    ] {
        accepted += with_drafts(&on_gpus(&hybrid(split)), &jobs, drafts);
    }
    assert!(accepted > 0);
    let expected = answers(&on_gpus(&hybrid((1, 1))), &jobs);
    let setup = Setup {
        policy: Some(Policy::Restless),
        speculation: Some((Algorithm::Standalone, Shape::TREE)),
        radix: true,
        ..on_gpus(&hybrid((1, 1)))
    };
    let (registry, _) = Policy::Restless.watched();
    let mut engine = setup.start_with(registry);
    let found = run("restless", &mut engine, &jobs, |_| {});
    same("restless", &found, &expected);
    idle(&mut engine);
}

/// Replays of Mamba-2 and of short convolutions on GPUs. Texts have few tokens, so that n-grams
/// come again.
#[test]
fn drafts_on_gpus_change_no_bit_of_other_rules() {
    let _alone = alone(7);
    let mut jobs = jobs_of_devices(12);
    few_tokens(&mut jobs);
    let drafts = [
        (Algorithm::Ngram, Shape::TREE, 1),
        (Algorithm::Standalone, Shape::chain(3), 16),
    ];
    let plain = on_gpus(&three_rules((1, 1)));
    assert!(with_drafts(&plain, &jobs, &drafts) > 0);
}

/// Prompts part at states and beside them; chunks are of any size.
#[test]
fn hits_and_chunks_on_gpus_change_no_bit() {
    let _alone = alone(6);
    let mut jobs = jobs_with_stems(16);
    jobs.truncate(3);
    for job in &mut jobs {
        job.request.max_new_tokens = 12;
    }
    let plain = on_gpus(&hybrid((1, 1)));
    let expected = answers(&plain, &jobs);
    let setup = Setup {
        page: 1,
        chunk: Some(7),
        spare_states: 4,
        speculation: Some((Algorithm::Standalone, Shape::chain(3))),
        radix: true,
        ..plain
    };
    cold_and_warm(&setup, &jobs, &expected);
}
