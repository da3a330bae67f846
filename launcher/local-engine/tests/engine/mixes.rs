//! Random requests that come, leave and crowd each other out, in random configurations. Each
//! gets the answer that it gets alone.

use std::{cell::RefCell, collections::BTreeMap};

use lockstep_local_engine::{Completion, LocalEngine};
use lockstep_planner::Counters;
use lockstep_types::Dtype;
use lockstep_types::{
    request::{FinishReason, Request, Usage},
    sampling::{LogprobParams, SamplingParams},
};
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use crate::{
    same::{assert_same, assert_same_logprobs},
    setup::{Setup, alone, flush, idle},
};

const CASES: u32 = 36;
const VOCABULARY: u32 = 331;
const LONGEST_PROMPT: usize = 68;
const MOST_NEW: u32 = 112;

/// A request, and the times of its coming and leaving.
#[derive(Debug, Clone)]
struct Job {
    request: Request,
    /// Turn at which the request comes.
    arrival: usize,
    /// Turns after which its client leaves.
    patience: Option<usize>,
}

#[derive(Debug, Clone)]
struct Mix {
    setup: Setup,
    jobs: Vec<Job>,
}

#[test]
fn company_changes_nothing() {
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        ..Config::default()
    };
    // The cases are always the same, so the test can assert which events they met.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let references = RefCell::new(BTreeMap::new());
    let met = RefCell::new(Counters::default());
    let checked = runner.run(&mix(), |mix| {
        let counters = check(&mix, &mut references.borrow_mut());
        let mut met = met.borrow_mut();
        met.retractions += counters.retractions - counters.preemptions;
        met.preemptions += counters.preemptions;
        met.evicted_tokens += counters.evicted_tokens;
        met.cached_tokens += counters.cached_tokens;
        met.aborted += counters.aborted;
        met.finished += counters.finished;
        Ok(())
    });
    checked.unwrap();
    let met = met.into_inner();
    let rare = [met.retractions, met.preemptions, met.aborted].into_iter();
    let tokens = [met.evicted_tokens, met.cached_tokens];
    assert!(rare.chain(tokens).all(|count| count >= 5), "{met:?}");
    assert!(met.finished >= 100, "{met:?}");
}

/// Runs the mix and compares every answer with the request's alone.
fn check(mix: &Mix, references: &mut BTreeMap<usize, LocalEngine>) -> Counters {
    let tp = mix.setup.tp;
    let reference = references.entry(tp).or_insert_with(|| {
        let roomy = Setup {
            radix: false,
            priorities: true,
            ..Setup::random("llama", Dtype::Float32, tp)
        };
        roomy.start()
    });
    let requests = mix.jobs.iter().map(|job| job.request.clone());
    let expected = alone(reference, requests.collect());
    let mut engine = mix.setup.start();
    let found = run(&mut engine, &mix.jobs);
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        compare(&format!("job {i}"), found, expected);
    }
    idle(&engine);
    flush(&mut engine);
    engine.load().counters
}

/// Lets jobs come and leave turn by turn, until all have ended.
fn run(engine: &mut LocalEngine, jobs: &[Job]) -> Vec<Completion> {
    let mut completions = vec![Completion::default(); jobs.len()];
    let mut ids = vec![None; jobs.len()];
    let mut turn = 0;
    while completions
        .iter()
        .any(|completion| completion.finish.is_none())
    {
        for (job, id) in jobs.iter().zip(&mut ids) {
            if job.arrival == turn {
                *id = Some(engine.submit(job.request.clone()).unwrap());
            }
            if let (Some(id), Some(patience)) = (*id, job.patience)
                && turn == job.arrival + patience
            {
                engine.abort(id);
            }
        }
        turn += 1;
        engine.step().unwrap();
        engine.check_integrity().unwrap();
        for (id, output) in engine.take_outputs() {
            let job = ids.iter().position(|known| *known == Some(id)).unwrap();
            assert!(completions[job].finish.is_none(), "an output after the end");
            completions[job].add(output);
        }
    }
    // Rows of aborted requests may still be in flight.
    while engine.step().unwrap() {}
    assert_eq!(engine.take_outputs().count(), 0);
    completions
}

/// Checks that a whole answer is the expected one, and that an aborted answer is its
/// beginning.
fn compare(what: &str, found: &Completion, expected: &Completion) {
    let finish = found.finish.as_ref().expect("it ended");
    let usage = |completion: &Completion| Usage {
        cached_tokens: 0,
        ..completion.finish.as_ref().expect("it ended").usage
    };
    if finish.outcome != Ok(FinishReason::Abort) {
        assert_same(what, found, expected);
        assert_eq!(usage(found), usage(expected), "{what}");
        return;
    }
    let tokens = found.token_ids.len();
    assert_eq!(found.token_ids, expected.token_ids[..tokens], "{what}");
    let reported = found.logprobs.len();
    assert_same_logprobs(what, &found.logprobs, &expected.logprobs[..reported]);
    if tokens > 0 {
        let prompt = &expected.prompt_logprobs;
        assert_same_logprobs(what, &found.prompt_logprobs, prompt);
    }
}

fn mix() -> impl Strategy<Value = Mix> {
    let setup = (
        prop::sample::select(vec![1, 2]),
        prop::sample::select(vec![1, 3, 16, 64]),
        prop::option::weighted(0.8, 1i64..48),
        any::<(bool, bool)>(),
        prop::bool::weighted(0.8),
        1usize..13,
        // KV tokens, from just enough for the longest request to plenty.
        prop::sample::select(vec![192, 192, 224, 256, 768]),
    );
    let setup = setup.prop_map(
        |(tp, page, chunk, (overlap, lpm), radix, running, tokens)| Setup {
            page,
            chunk,
            overlap,
            lpm: lpm && radix,
            radix,
            priorities: true,
            running,
            tokens,
            context: 184,
            ..Setup::random("llama", Dtype::Float32, tp)
        },
    );
    let jobs = prop::collection::vec(job(), 1..20);
    (setup, jobs).prop_map(|(setup, jobs)| Mix { setup, jobs })
}

prop_compose! {
    fn job()(
        input_ids in prompt(),
        max_new_tokens in prop_oneof![1 => Just(0), 6 => 1..=MOST_NEW],
        sampling in sampling(),
        output in any::<bool>(),
        top in 0u32..3,
        start in prop::option::weighted(0.3, 0usize..LONGEST_PROMPT),
        priority in prop::sample::select(vec![0, 0, 0, 5, 20]),
        arrival in 0usize..16,
        patience in prop::option::weighted(0.15, 0usize..40),
    ) -> Job {
        let start = start.map(|start| (start % input_ids.len()) as u32);
        let start = start.or((max_new_tokens == 0).then_some(0));
        let mut request = Request {
            priority,
            generation: sampling.into(),
            ..Request::new(input_ids, max_new_tokens)
        };
        request.generation.logprobs = LogprobParams { output, top, prompt_start: start };
        Job { request, arrival, patience }
    }
}

/// Prompts that share beginnings: three stems, cut anywhere, with own ends.
fn prompt() -> impl Strategy<Value = Vec<u32>> {
    let own = prop::collection::vec(0..VOCABULARY, 1..20);
    (1u32..4, 0u32..50, own).prop_map(|(stem, cut, own)| {
        let stem = (0..cut).map(|at| (at * 7 + stem * 101) % VOCABULARY);
        stem.chain(own).collect()
    })
}

prop_compose! {
    fn sampling()(
        temperature in prop::sample::select(vec![0.0, 0.7, 1.0, 1.5]),
        top_p in prop::sample::select(vec![1.0, 0.8]),
        top_k in prop::sample::select(vec![0, 0, 20]),
        min_p in prop::sample::select(vec![0.0, 0.0, 0.05]),
        penalties in prop::option::weighted(0.3, (-1.0f32..1.0, -1.0f32..1.0, 0.7f32..1.5)),
        logit_bias in prop::collection::vec((0..VOCABULARY, -5.0f32..5.0), 0..3),
        seed in any::<u64>(),
        min_new_tokens in 0u32..8,
        stop_token_ids in prop_oneof![
            3 => Just(Vec::new()),
            1 => prop::collection::vec(0..VOCABULARY, 1..16),
        ],
        ignore_eos in any::<bool>(),
    ) -> SamplingParams {
        let (frequency, presence, repetition) = penalties.unwrap_or((0.0, 0.0, 1.0));
        SamplingParams {
            temperature,
            top_p,
            top_k,
            min_p,
            presence_penalty: presence,
            frequency_penalty: frequency,
            repetition_penalty: repetition,
            logit_bias,
            seed,
            min_new_tokens,
            stop_token_ids,
            ignore_eos,
        }
    }
}
