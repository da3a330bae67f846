//! Every round accepts as many drafts as the same round of the reference implementation.

use lockstep_local_engine::{Completion, LocalEngine};
use lockstep_types::Dtype;
use lockstep_types::request::SpeculationUsage;

use crate::{
    goldens::{DEEPEST, GOLDENS, Golden},
    load::idle,
    requests::golden,
    setup::{Algorithm, Setup, Shape},
};

#[test]
fn chains_of_eagle3() {
    chains(Algorithm::Eagle3);
}

#[test]
fn chains_of_eagle() {
    chains(Algorithm::Eagle);
}

#[test]
fn chains_of_a_standalone_draft() {
    chains(Algorithm::Standalone);
}

/// A block is drafted whole, however few of its drafts are verified.
#[test]
fn chains_of_dflash() {
    chains(Algorithm::Dflash);
}

#[test]
fn trees_of_eagle3() {
    let mut engine = Setup::drafting(Dtype::Float32, 1, Algorithm::Eagle3, Shape::TREE).start();
    let expected: Vec<&[u32]> = GOLDENS
        .iter()
        .map(|golden| &golden.accepted.tree[..])
        .collect();
    // The best nodes of a tree need not reach its last level.
    check("trees", &mut engine, None, &expected, 1);
    idle(&mut engine);
}

/// Compares chains of every length. The request's own limit lowers the engine's depth. From
/// the second length on, prompts come from the prefix cache.
fn chains(algorithm: Algorithm) {
    let shape = Shape::chain(DEEPEST as usize);
    let mut engine = Setup::drafting(Dtype::Float32, 1, algorithm, shape).start();
    for steps in 1..=DEEPEST {
        let accepted = |golden: &'static Golden| golden.accepted.chain(algorithm, steps);
        let expected: Vec<&[u32]> = GOLDENS.iter().map(accepted).collect();
        let what = format!("{algorithm:?}, chains of {steps}");
        check(&what, &mut engine, Some(steps), &expected, steps as usize);
    }
    idle(&mut engine);
    // An engine of just that depth, one request at a time, without overlap: one of each domain.
    let setup = Setup {
        overlap: false,
        running: 1,
        ..Setup::drafting(Dtype::Float32, 1, algorithm, Shape::chain(3))
    };
    let mut engine = setup.start();
    let some: Vec<&Golden> = GOLDENS.iter().step_by(2).collect();
    let (answers, rounds) = answer(&mut engine, &some, None);
    for (at, golden) in some.iter().enumerate() {
        let expected = golden.accepted.chain(algorithm, 3);
        compare(
            &format!("{setup:?}, prompt {}", 2 * at),
            &answers[at],
            &rounds[at],
            expected,
            3,
        );
    }
    idle(&mut engine);
}

fn check(
    what: &str,
    engine: &mut LocalEngine,
    limit: Option<u32>,
    expected: &[&[u32]],
    sure: usize,
) {
    let all: Vec<&Golden> = GOLDENS.iter().collect();
    let (answers, rounds) = answer(engine, &all, limit);
    for (at, expected) in expected.iter().enumerate() {
        let what = format!("{what}, prompt {at}");
        assert_eq!(answers[at].token_ids, GOLDENS[at].output_ids, "{what}");
        compare(&what, &answers[at], &rounds[at], expected, sure);
    }
}

/// The answers to goldens, and the number of tokens of each of their steps.
fn answer(
    engine: &mut LocalEngine,
    goldens: &[&Golden],
    limit: Option<u32>,
) -> (Vec<Completion>, Vec<Vec<u32>>) {
    let mut ids = Vec::new();
    for mut request in goldens.iter().map(|text| golden(text)) {
        request.generation.max_draft_steps = limit;
        ids.push(engine.submit(request).unwrap());
    }
    let mut answers = vec![Completion::default(); ids.len()];
    let mut rounds = vec![Vec::new(); ids.len()];
    while engine.step().unwrap() {
        for (id, output) in engine.take_outputs() {
            let at = ids.iter().position(|known| *known == id).unwrap();
            rounds[at].push(output.token_ids.len() as u32);
            answers[at].add(output);
        }
    }
    (answers, rounds)
}

/// Compares the rounds of an answer. The first step is the prompt's. The last round is cut
/// at the end of the text, but the counts of the whole request are not. Every round proposes
/// the first `sure` positions.
fn compare(what: &str, answer: &Completion, rounds: &[u32], expected: &[u32], sure: usize) {
    assert_eq!(rounds[0], 1, "{what}: the prompt's step");
    let found: Vec<u32> = rounds[1..].iter().map(|tokens| tokens - 1).collect();
    if let (Some((last, found)), Some((end, expected))) =
        (found.split_last(), expected.split_last())
    {
        assert_eq!(found, expected, "{what}: accepted by round");
        assert!(
            last <= end,
            "{what}: {last} accepted in the last round, not {end}"
        );
    }
    assert_eq!(found.len(), expected.len(), "{what}: rounds");
    if expected.is_empty() {
        return;
    }
    let usage = answer.finish.clone().unwrap().speculation;
    let SpeculationUsage {
        verify_steps,
        proposed,
        accepted,
        ..
    } = usage.expect("it speculated");
    let count = expected.len() as u32;
    assert_eq!(verify_steps, count, "{what}: rounds in the usage");
    assert!(
        proposed.iter().all(|rounds| *rounds <= count),
        "{what}: {proposed:?}"
    );
    assert_eq!(
        proposed[..sure],
        vec![count; sure],
        "{what}: proposed by position"
    );
    let reached = |position: u32| {
        expected
            .iter()
            .filter(|accepted| **accepted > position)
            .count() as u32
    };
    let deepest = expected.iter().copied().max().unwrap_or(0);
    let by_position: Vec<u32> = (0..deepest).map(reached).collect();
    assert_eq!(accepted, by_position, "{what}: accepted by position");
}
