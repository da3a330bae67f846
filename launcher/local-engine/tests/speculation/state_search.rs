//! A search for a state, a text or a page that goes wrong on recurrent models: random
//! conversations that branch, are left and crowd each other out, with drafts of any depth, against
//! plain decoding. Texts and the bits of all states have to be equal.
//!
//! An ordinary run has a few cases. More are run by
//!
//! ```text
//! LOCKSTEP_STATE_CASES=10000 cargo test --release -p lockstep-local-engine --test speculation -- \
//!     --nocapture state_search
//! ```
//!
//! `LOCKSTEP_STATE_SEED` has the number from which the cases follow, 1 if it is not given.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use lockstep_local_engine::Completion;
use lockstep_types::{request::FinishReason, sampling::SamplingParams};
use proptest::{
    prelude::*,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

use crate::{
    conversations::{Compared, DENSE, EXPERTS, FORMS, Plain, ask, cached, plain, words},
    requests::Job,
    setup::{Algorithm, FIXTURE_CONTEXT, Setup, Shape},
    soak::read,
};

/// Most tokens that a turn adds, those of the client and those of the answer.
const MOST: usize = 48;
/// Longest pause of a client between two turns, in steps.
const PAUSE: usize = 12;

/// One request of a conversation.
#[derive(Debug, Clone)]
struct Turn {
    /// Number of a beginning or of an earlier turn, with whose text this one begins; modulo the
    /// number of those.
    after: usize,
    /// Tokens that are cut from the end of that text before this turn's own follow.
    cut: usize,
    own: Vec<u32>,
    max_new_tokens: u32,
    sampling: SamplingParams,
    /// Most draft steps.
    cap: Option<u32>,
    /// Steps until the next turn.
    pause: usize,
    patience: Option<usize>,
}

/// An engine and what it is asked.
#[derive(Debug, Clone)]
struct Case {
    setup: Setup,
    /// Tokens of the two beginnings that conversations have.
    stem: usize,
    turns: Vec<Turn>,
    /// Draft steps in turn; empty if the depth stays.
    depths: Vec<u32>,
}

fn sampling() -> impl Strategy<Value = SamplingParams> {
    let stops = prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec(3u32..323, 1..24),
    ];
    (
        prop_oneof![3 => Just(0.0f32), 1 => Just(0.7)],
        any::<u64>(),
        stops,
    )
        .prop_map(|(temperature, seed, stop_token_ids)| SamplingParams {
            temperature,
            seed,
            stop_token_ids,
            ignore_eos: true,
            ..SamplingParams::default()
        })
}

prop_compose! {
    fn turn()(
        after in 0usize..8,
        cut in prop_oneof![3 => Just(0), 1 => 0usize..40],
        own in prop::collection::vec(3u32..323, 1..14),
        max_new_tokens in 1u32..34,
        sampling in sampling(),
        cap in prop_oneof![4 => Just(None), 1 => (0u32..3).prop_map(Some)],
        pause in 0usize..PAUSE,
        patience in prop_oneof![5 => Just(None), 1 => (0usize..16).prop_map(Some)],
    ) -> Turn {
        Turn { after, cut, own, max_new_tokens, sampling, cap, pause, patience }
    }
}

fn drafts() -> impl Strategy<Value = Option<(Algorithm, Shape)>> {
    let algorithm =
        prop::sample::select(vec![Algorithm::Nextn, Algorithm::Nextn, Algorithm::Ngram]);
    let chain = (1usize..=6).prop_map(Shape::chain);
    let tree = (1usize..=3, 2usize..=3).prop_flat_map(|(steps, topk)| {
        let tokens = steps + 1..=steps * topk + 1;
        tokens.prop_map(move |tokens| Shape {
            steps,
            topk,
            tokens,
        })
    });
    let shape = prop_oneof![chain, tree];
    prop_oneof![1 => Just(None), 6 => (algorithm, shape).prop_map(Some)]
}

prop_compose! {
    fn setup()(
        layers in prop::sample::select(vec![DENSE, DENSE, DENSE, EXPERTS]),
        // Ranks that wait for each other take most of the time.
        form in prop_oneof![
            10 => Just(FORMS[0]),
            4 => Just(FORMS[1]),
            1 => Just(FORMS[2]),
            1 => Just(FORMS[3]),
        ],
        speculation in drafts(),
        page in prop::sample::select(vec![1usize, 4, 16, 64]),
        chunk in prop::sample::select(vec![None, Some(5), Some(16), Some(64)]),
        overlap in any::<bool>(),
        spare_states in prop_oneof![1 => Just(0usize), 3 => 1usize..6, 1 => Just(64)],
        running in 1usize..=4,
        more in 0usize..=96,
        roomy in any::<bool>(),
    ) -> Setup {
        let shape = speculation.map_or(Shape::chain(0), |(_, shape)| shape);
        let written = (shape.steps * shape.topk).max(shape.tokens);
        // What steps in flight may write, and a page for each slot of a DP rank.
        let least = FIXTURE_CONTEXT + 6 * (written + page) + 32;
        let tokens = if roomy { 4096 } else { least + more };
        Setup {
            speculation,
            page,
            chunk,
            overlap,
            spare_states,
            running: running * form.dp,
            tokens: tokens.next_multiple_of(page),
            care: if roomy { 1000 } else { 0 },
            radix: true,
            ..plain(layers, form)
        }
    }
}

prop_compose! {
    fn case()(
        setup in setup(),
        // Where it is long, outputs pass position 256, where states of outputs are kept.
        stem in prop_oneof![2 => 2usize..60, 1 => 228usize..=254],
        turns in prop::collection::vec(turn(), 2..7),
        depths in prop_oneof![Just(Vec::new()), prop::collection::vec(0u32..7, 1..6)],
    ) -> Case {
        Case { setup, stem, turns, depths }
    }
}

/// Sums over all cases.
#[derive(Debug, Default, Clone, Copy)]
struct Met {
    cases: u64,
    turns: u64,
    tokens: u64,
    accepted: u64,
    hits: u64,
    evicted: u64,
    retractions: u64,
    aborted: u64,
    compared: Compared,
}

/// Returns the jobs of a case and their plain answers: an answer is part of the next turn's prompt.
fn jobs(case: &Case, plain: &mut Plain) -> (Vec<Job>, Vec<Completion>) {
    let mut texts = vec![words(1, case.stem), words(2, case.stem)];
    let (mut jobs, mut expected, mut arrival) = (Vec::new(), Vec::new(), 0);
    for turn in &case.turns {
        let before = &texts[turn.after % texts.len()];
        let most = FIXTURE_CONTEXT - MOST;
        let mut ids = before[..before.len().saturating_sub(turn.cut).min(most)].to_vec();
        ids.extend(&turn.own);
        let mut request = ask(&ids, turn.max_new_tokens);
        request.generation.sampling = turn.sampling.clone();
        request.generation.max_draft_steps = turn.cap;
        let answer = plain.answer(&case.setup, &request);
        ids.extend(&answer.token_ids);
        texts.push(ids);
        expected.push(answer);
        jobs.push(Job {
            request,
            arrival,
            patience: turn.patience,
        });
        arrival += turn.pause;
    }
    (jobs, expected)
}

fn check(case: &Case, plain: &mut Plain, met: &mut Met) {
    plain.forget();
    let (jobs, expected) = jobs(case, plain);
    let (mut step, depths) = (0, &case.depths);
    let compared = plain.check(
        &case.setup,
        (&jobs, &expected),
        |engine| {
            if !depths.is_empty() {
                engine.set_draft_steps(depths[step % depths.len()]);
                step += 1;
            }
        },
        |engine, found| {
            let counters = engine.load().counters;
            met.tokens += counters.generated_tokens;
            met.accepted += engine.speculation().accepted_tokens;
            met.evicted += counters.evicted_tokens;
            met.retractions += counters.retractions;
            let of = |answer: &&Completion| answer.finish.as_ref().unwrap().outcome.clone();
            let left = |answer: &&Completion| of(answer) == Ok(FinishReason::Abort);
            met.aborted += found.iter().filter(left).count() as u64;
            let whole = found.iter().filter(|answer| !left(answer));
            met.hits += whole.filter(|answer| cached(answer) > 0).count() as u64;
        },
    );
    met.cases += 1;
    met.turns += jobs.len() as u64;
    met.compared.live += compared.live;
    met.compared.kept += compared.kept;
}

#[test]
fn no_case_of_the_state_search_goes_wrong() {
    let cases: u32 = read("LOCKSTEP_STATE_CASES", 12);
    let seed: u64 = read("LOCKSTEP_STATE_SEED", 1);
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let state = RefCell::new((Plain::default(), Met::default(), Instant::now(), 0));
    let result = TestRunner::new_with_rng(config, rng).run(&case(), |case| {
        // A case that fails leaves engines that others must not use.
        let mut state = state.borrow_mut();
        let (plain, met, begun, minutes) = &mut *state;
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check(&case, plain, met);
        }));
        if begun.elapsed() >= Duration::from_secs(60 * (*minutes + 1)) {
            *minutes = begun.elapsed().as_secs() / 60;
            println!("{minutes} min, seed {seed}: {met:?}");
        }
        outcome.map_err(|panic| {
            *plain = Plain::default();
            let literal = panic.downcast_ref::<&str>();
            let literal = literal.map(|said| (*said).to_owned());
            let said = panic.downcast_ref::<String>().cloned().or(literal);
            TestCaseError::fail(said.unwrap_or_default())
        })
    });
    let (_, met, begun, _) = &*state.borrow();
    println!("seed {seed}, {} s: {met:?}", begun.elapsed().as_secs());
    assert!(result.is_ok(), "{}", result.unwrap_err());
    let rare = [met.accepted, met.hits, met.compared.live, met.compared.kept];
    assert!(rare.iter().all(|count| *count > 0), "{met:?}");
    let often = [met.evicted, met.retractions, met.aborted];
    assert!(
        met.cases < 1000 || often.iter().all(|count| *count > 0),
        "{met:?}"
    );
}
