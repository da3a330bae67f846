//! Tests of the whole planner under random work, against requests run alone.

use std::collections::BTreeMap;

use lockstep_types::{
    request::{ErrorKind, FinishReason, Request, RequestError},
    sampling::{LogprobParams, SamplingParams},
};
use proptest::prelude::*;

use super::*;
use crate::{DraftKv, PlannerConfig, ReserveConfig, SchedulePolicy};
use states::{fitted, states};
use windows::windows;

mod salts;
mod speculation;
mod states;
mod turns;
mod windows;

const MODEL: SimModel = SimModel { vocab_size: 11 };
const CONTEXT: u32 = 96;
/// Number of DP ranks that requests name.
const DP_RANKS: u32 = 4;

#[derive(Debug, Clone)]
enum Op {
    Submit,
    Abort(u8),
    Wait(u8),
    Plan,
    Execute,
    Complete,
    Flush,
    Depth(u8),
    Hold(bool),
    LoseWorker,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => Just(Op::Submit),
        1 => any::<u8>().prop_map(Op::Abort),
        1 => any::<u8>().prop_map(Op::Wait),
        12 => Just(Op::Plan),
        11 => Just(Op::Execute),
        10 => Just(Op::Complete),
        1 => Just(Op::Flush),
        2 => any::<u8>().prop_map(Op::Depth),
        1 => any::<bool>().prop_map(Op::Hold),
    ]
}

fn op_with_losses() -> impl Strategy<Value = Op> {
    prop_oneof![40 => op(), 1 => Just(Op::LoseWorker)]
}

/// Generates prompts that share prefixes: a few stems, cut anywhere, with their own endings.
fn prompt() -> impl Strategy<Value = Vec<u32>> {
    let tail = prop::collection::vec(0..MODEL.vocab_size, 1..8);
    (0u32..3, 0usize..72, tail).prop_map(|(stem, cut, tail)| {
        let stem = (0..cut as u32).map(|at| (at * (stem + 1)) % MODEL.vocab_size);
        stem.chain(tail).collect()
    })
}

prop_compose! {
    fn request()(
        input_ids in prompt(),
        max_new_tokens in 0u32..48,
        stops in 0usize..3,
        min_new_tokens in 0u32..6,
        seed in 0u64..4,
        logprobs in any::<bool>(),
        start in prop::option::weighted(0.25, 0u32..8),
        priority in -20i32..20,
        timeout_ms in prop::option::weighted(0.1, 1u32..400),
        max_draft_steps in prop::option::weighted(0.4, 0u32..8),
        data_parallel_rank in prop::option::weighted(0.3, 0u32..DP_RANKS),
        cache_salt in prop::option::weighted(0.2, Just("salt".to_owned())),
    ) -> Request {
        let len = input_ids.len() as u32;
        let scores = max_new_tokens == 0;
        let start = start.or(scores.then_some(1));
        let mut request = Request {
            priority,
            timeout_ms,
            data_parallel_rank,
            cache_salt,
            ..Request::new(input_ids, max_new_tokens)
        };
        request.generation.sampling = SamplingParams {
            seed,
            min_new_tokens,
            stop_token_ids: vec![3, 7][..stops].to_vec(),
            ..SamplingParams::default()
        };
        request.generation.logprobs = LogprobParams {
            output: logprobs,
            top: 0,
            // Any position of the prompt, its ends included.
            prompt_start: start.map(|start| (start * len / 7).min(len)),
        };
        request.generation.max_draft_steps = max_draft_steps;
        request
    }
}

/// Makes a request name one of the DP ranks that there are.
fn among(config: &PlannerConfig, request: Request) -> Request {
    let named = request.data_parallel_rank;
    Request {
        data_parallel_rank: named.map(|named| named % config.dp_size),
        ..request
    }
}

/// Returns the client request of a choice, by its seed. Most requests are choices of a few
/// client requests.
fn parent(request: &Request) -> Option<RequestId> {
    let seed = request.generation.sampling.seed;
    (seed > 0).then_some(RequestId(1000 + seed))
}

/// Generates chains and trees, some with fewer tokens than a path of all steps has.
fn speculative() -> impl Strategy<Value = ReserveConfig> {
    (1u32..7, 1u32..5, 2u32..20).prop_map(|(steps, topk, tokens)| ReserveConfig {
        steps,
        topk,
        draft_tokens: if topk == 1 {
            tokens.min(steps + 1)
        } else {
            tokens
        },
    })
}

fn reserve() -> impl Strategy<Value = ReserveConfig> {
    prop_oneof![
        1 => Just(ReserveConfig::none()),
        1 => speculative(),
    ]
}

fn draft_kv() -> impl Strategy<Value = DraftKv> {
    prop_oneof![
        Just(DraftKv::None),
        Just(DraftKv::Tokens),
        Just(DraftKv::Pairs)
    ]
}

prop_compose! {
    fn config()(
        dp_size in prop_oneof![2 => Just(1u32), 1 => Just(2), 1 => Just(DP_RANKS)],
        page_size in prop_oneof![Just(1u32), Just(2), Just(3), Just(16), Just(64), 1u32..65],
        kv_groups in prop_oneof![2 => Just(1u32), 2 => Just(2), 1 => Just(3)],
        windows in windows(),
        states in states(),
        state_interval in 1u32..40,
        spare in 0u32..8,
        tokens in 50u32..200,
        slots in 1u32..9,
        queued in 1u32..20,
        budget in 1u32..60,
        chunk in prop::option::weighted(0.8, 1u32..40),
        overlap in any::<bool>(),
        radix_cache in prop::bool::weighted(0.8),
        lpm in any::<bool>(),
        priority_scheduling in any::<bool>(),
        queue_timeout_ms in prop::option::weighted(0.1, 50u64..500),
        reserve in reserve(),
        initial_depth in 0u32..8,
        adapts in any::<bool>(),
        draft_kv in draft_kv(),
        pause_window in prop_oneof![Just(0u32), 1u32..12, 12u32..80],
    ) -> PlannerConfig {
        PlannerConfig {
            dp_size,
            max_running_requests: slots,
            max_queued_requests: queued,
            max_queued_tokens: u64::from(queued) * 40,
            max_prefill_tokens: budget,
            chunked_prefill_size: chunk,
            page_size,
            kv_groups,
            num_pages: 1 + tokens.div_ceil(page_size),
            windows,
            // See `fitted`.
            window_pages: spare,
            states,
            state_interval,
            context_length: CONTEXT,
            overlap,
            radix_cache,
            schedule_policy: if lpm { SchedulePolicy::Lpm } else { SchedulePolicy::Fcfs },
            priority_scheduling,
            request_timeout_ms: None,
            queue_timeout_ms,
            reserve,
            initial_depth,
            adapts,
            draft_kv: if reserve.speculates() { draft_kv } else { DraftKv::None },
            pause_window,
            kv_events: true,
        }
    }
}

/// Depths that the workers agree on, step by step. One is deeper than anything that can run.
const DECISIONS: [Option<u32>; 7] = [Some(2), None, Some(0), Some(9), Some(1), None, Some(4)];

/// Outputs of one request.
#[derive(Debug, Default)]
struct Collected {
    output: Output,
    ends: usize,
}

struct Scenario {
    engine: SimEngine,
    accepted: BTreeMap<RequestId, Request>,
    next: Vec<Request>,
    now: u64,
}

impl Scenario {
    fn new(config: &PlannerConfig, mut requests: Vec<Request>) -> Self {
        let config = &fitted(config);
        if !config.priority_scheduling {
            requests.iter_mut().for_each(|request| request.priority = 0);
        }
        requests = requests
            .into_iter()
            .map(|request| among(config, request))
            .collect();
        let planner = Planner::new(config.clone()).unwrap();
        Self {
            engine: SimEngine::new(
                planner,
                SimGroup::new(config, MODEL, true).agreeing_on(&DECISIONS),
            ),
            accepted: BTreeMap::new(),
            next: requests,
            now: 0,
        }
    }

    fn submit(&mut self) {
        let Some(request) = self.next.pop() else {
            return;
        };
        let id = RequestId(self.next.len() as u64);
        let now = Millis(self.now);
        let accepted =
            self.engine
                .planner
                .submit_choice(now, id, parent(&request), request.clone());
        match accepted {
            Ok(()) => assert!(self.accepted.insert(id, request).is_none()),
            Err(error) if error.kind == ErrorKind::Overloaded => {
                assert!(error.retry_after_s.unwrap() >= 1);
            }
            Err(error) => assert!(error.message.contains("--max-total-tokens"), "{error}"),
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Submit => self.submit(),
            Op::Abort(pick) => {
                let known = self.accepted.len().max(1);
                let id = self.accepted.keys().nth(*pick as usize % known);
                self.engine
                    .planner
                    .abort(id.copied().unwrap_or(RequestId(999)));
            }
            Op::Wait(ms) => {
                self.now += u64::from(*ms);
                self.engine.planner.tick(Millis(self.now));
            }
            Op::Plan => {
                self.engine.plan();
            }
            Op::Execute => {
                self.engine.execute().unwrap();
            }
            Op::Complete => {
                self.engine.complete(Millis(self.now)).unwrap();
            }
            Op::Flush => {
                let planner = &mut self.engine.planner;
                let waits = planner.is_held() && planner.any_retracted();
                let idle = planner.load().running_requests == 0 && planner.in_flight() == 0;
                assert_eq!(planner.flush_cache().is_ok(), idle && !waits);
            }
            Op::Depth(any) => {
                let steps = u32::from(*any) % (self.engine.planner.config().reserve.steps + 1);
                self.engine.planner.set_draft_steps(steps);
            }
            Op::Hold(held) => self.engine.planner.hold_admission(*held),
            Op::LoseWorker => {
                self.engine.lose_worker();
                self.engine.planner.restart_engine();
            }
        }
        self.check();
    }

    fn check(&self) {
        self.engine.planner.check_integrity().unwrap();
        let load = self.engine.planner.load();
        assert_eq!((load.leaked_pages, load.leaked_states), (0, 0));
    }

    /// Runs until nothing is left. Fails if that takes too many steps.
    fn finish(&mut self) {
        self.engine.planner.hold_admission(false);
        let mut steps = 0;
        loop {
            self.submit();
            let went_on = self.engine.turn(Millis(self.now)).unwrap();
            self.check();
            if !went_on && self.next.is_empty() {
                break;
            }
            steps += 1;
            assert!(steps < 20_000, "no end: {:?}", self.engine.planner.load());
        }
        assert!(
            self.engine.planner.is_idle(),
            "stuck: {:?}",
            self.engine.planner.load()
        );
    }

    fn collect(&self) -> BTreeMap<RequestId, Collected> {
        let mut all = BTreeMap::<RequestId, Collected>::new();
        for (id, output) in &self.engine.outputs {
            let got = all.entry(*id).or_default();
            assert_eq!(got.ends, 0, "nothing comes after the end");
            let first = got.output == Output::default();
            assert!(
                first || output.prompt_logprobs.is_empty(),
                "once, with the first output"
            );
            got.output.token_ids.extend(&output.token_ids);
            got.output.logprobs.extend(output.logprobs.iter().cloned());
            got.output
                .prompt_logprobs
                .extend(output.prompt_logprobs.iter().cloned());
            got.ends += usize::from(output.finish.is_some());
            got.output.finish.clone_from(&output.finish);
        }
        all
    }

    /// Checks that every request got the output that it would have got alone, or the start of
    /// it.
    fn check_outputs(&mut self) {
        self.engine
            .outputs
            .extend(self.engine.planner.take_outputs());
        let got = self.collect();
        assert_eq!(got.len(), self.accepted.len());
        self.check_tallies(&got);
        for (id, request) in &self.accepted {
            let Collected { output, ends } = &got[id];
            assert_eq!(*ends, 1);
            let alone = run_alone(MODEL, CONTEXT, request);
            let finish = output.finish.as_ref().unwrap();
            assert_eq!(finish.usage.prompt_tokens as usize, request.input_ids.len());
            assert_eq!(
                finish.usage.completion_tokens as usize,
                output.token_ids.len()
            );
            assert!(finish.usage.cached_tokens < finish.usage.prompt_tokens);
            match &finish.outcome {
                Ok(FinishReason::Abort) => assert!(alone.token_ids.starts_with(&output.token_ids)),
                Ok(reason) => {
                    assert_eq!(
                        (reason, finish.matched_token),
                        (&alone.reason, alone.matched_token)
                    );
                    assert_eq!(output.token_ids, alone.token_ids);
                    assert_eq!(output.logprobs, alone.logprobs);
                    assert_eq!(output.prompt_logprobs, alone.prompt_logprobs);
                }
                Err(error) => {
                    let late = matches!(error.kind, ErrorKind::Timeout | ErrorKind::Overloaded);
                    assert!(late, "{error}");
                    assert!(alone.token_ids.starts_with(&output.token_ids));
                }
            }
        }
    }

    /// Checks that the counts told to requests add up to the planner's counts.
    fn check_tallies(&self, got: &BTreeMap<RequestId, Collected>) {
        let counted = self.engine.planner.speculation();
        let steps = self.engine.planner.config().reserve.steps as usize;
        let (mut proposed, mut accepted) = (vec![0; steps], vec![0; steps]);
        let mut verified = 0;
        for Collected { output, .. } in got.values() {
            let finish = output.finish.as_ref().unwrap();
            let Some(told) = &finish.speculation else {
                continue;
            };
            assert!(told.accepted_tokens() <= told.draft_tokens);
            verified += u64::from(told.verify_steps);
            for (sums, list) in [
                (&mut proposed, &told.proposed),
                (&mut accepted, &told.accepted),
            ] {
                assert!(list.is_sorted_by(|deeper, shallower| deeper >= shallower));
                for (sum, count) in sums.iter_mut().zip(list) {
                    *sum += u64::from(*count);
                }
            }
        }
        assert_eq!(
            (&proposed, &accepted),
            (&counted.proposed, &counted.accepted)
        );
        assert_eq!(accepted.iter().sum::<u64>(), counted.accepted_tokens);
        assert_eq!(
            counted.draft_tokens,
            counted.accepted_tokens + counted.wasted_tokens
        );
        assert!(verified <= counted.verify_steps);
    }

    /// Checks that only the cache holds pages when all requests are gone, and that it can drop
    /// them.
    fn check_nothing_left(&mut self) {
        let load = self.engine.planner.load();
        assert_eq!((load.kv_tokens_used, load.waiting_requests), (0, 0));
        assert_eq!((load.kv_window_tokens_used, load.kv_states_used), (0, 0));
        assert_eq!(
            self.engine.planner.flush_cache().unwrap(),
            load.kv_tokens_cached
        );
        let load = self.engine.planner.load();
        let cached = load.kv_tokens_cached + load.kv_window_tokens_cached;
        assert_eq!((cached, load.kv_states_cached), (0, 0));
        self.check();
    }

    fn careful(mut self, thousandths: u32) -> Self {
        self.engine.planner = self.engine.planner.with_conservativeness(thousandths);
        self
    }

    fn run(mut self, ops: &[Op]) {
        ops.iter().for_each(|op| self.apply(op));
        self.finish();
        self.check_outputs();
        self.check_nothing_left();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn everybody_gets_what_they_would_get_alone(
        config in config(),
        requests in prop::collection::vec(request(), 1..16),
        ops in prop::collection::vec(op(), 0..150),
        careful in 0u32..1500,
    ) {
        Scenario::new(&config, requests).careful(careful).run(&ops);
    }

    /// Every request with a slot is admitted, so that pages run out all the time.
    #[test]
    fn pressure_changes_nothing_but_time(
        config in config(),
        page_size in 1u32..9,
        requests in prop::collection::vec(request(), 10..40),
        ops in prop::collection::vec(op(), 0..150),
    ) {
        let config = PlannerConfig {
            max_running_requests: 8,
            max_queued_requests: 100,
            max_queued_tokens: 10_000,
            page_size,
            num_pages: 1 + 120u32.div_ceil(page_size),
            ..config
        };
        let longer = |mut request: Request| {
            let sampling = &mut request.generation.sampling;
            (sampling.stop_token_ids, sampling.min_new_tokens) = (vec![3], 12);
            request
        };
        // The number is chosen so that each DP rank has equally many to do.
        let requests = requests.into_iter().take(19 * config.dp_size as usize);
        let requests = requests.map(longer).collect();
        Scenario::new(&config, requests).careful(0).run(&ops);
    }

    #[test]
    fn a_lost_worker_costs_time_only(
        config in config(),
        requests in prop::collection::vec(request(), 1..12),
        ops in prop::collection::vec(op_with_losses(), 0..150),
    ) {
        Scenario::new(&config, requests).run(&ops);
    }

    /// Plans depend on nothing but the calls.
    #[test]
    fn plans_are_reproducible(
        config in config(),
        requests in prop::collection::vec(request(), 1..12),
    ) {
        let plans = || {
            let mut run = Scenario::new(&config, requests.clone());
            let mut plans = Vec::new();
            loop {
                run.submit();
                while let Some(plan) = run.engine.planner.plan() {
                    plans.push(plan.clone());
                    run.engine.plans.push_back(plan);
                }
                run.engine.execute().unwrap();
                if !run.engine.complete(Millis(0)).unwrap() && run.next.is_empty() {
                    return plans;
                }
            }
        };
        prop_assert_eq!(plans(), plans());
    }

    /// The naive planner, the simulated worker and the reference agree.
    #[test]
    fn the_naive_planner_agrees(
        requests in prop::collection::vec(request(), 1..6),
        reserve in reserve(),
        draft_kv in draft_kv(),
        kv_groups in 1u32..4,
    ) {
        let config = PlannerConfig {
            dp_size: DP_RANKS,
            kv_groups,
            context_length: CONTEXT,
            reserve,
            draft_kv,
            ..PlannerConfig::default()
        };
        let mut worker = SimGroup::new(&config, MODEL, true);
        let mut planner = NaivePlanner::new(&config);
        for (id, request) in (0..).zip(requests) {
            planner.submit(RequestId(id), request.clone());
            let mut got = Output::default();
            while got.finish.is_none() {
                let plan = planner.plan().unwrap();
                let result = worker.execute(&plan).unwrap();
                let (_, output) = planner.complete(result).unwrap();
                got.token_ids.extend(output.token_ids);
                got.logprobs.extend(output.logprobs);
                got.prompt_logprobs.extend(output.prompt_logprobs);
                got.finish = output.finish;
            }
            let alone = run_alone(MODEL, CONTEXT, &request);
            prop_assert_eq!(got.token_ids, alone.token_ids);
            prop_assert_eq!(got.logprobs, alone.logprobs);
            prop_assert_eq!(got.prompt_logprobs, alone.prompt_logprobs);
            let finish = got.finish.unwrap();
            prop_assert_eq!(finish.outcome, Ok(alone.reason));
            prop_assert_eq!(finish.matched_token, alone.matched_token);
        }
    }
}

#[test]
fn a_dead_engine_ends_everybody_once() {
    let config = PlannerConfig::default();
    let request = Request {
        timeout_ms: Some(9),
        ..Request::new(vec![1; 40], 50)
    };
    let mut run = Scenario::new(&config, vec![request; 60]);
    (0..60).for_each(|_| run.submit());
    (0..5).for_each(|_| assert!(run.engine.turn(Millis(0)).unwrap()));
    let error = RequestError::new(ErrorKind::Unavailable, "the engine died");
    run.engine.outputs.clear();
    run.engine.planner.fail_all(error.clone());
    run.check();
    let ends: Vec<_> = run.engine.planner.take_outputs().collect();
    assert_eq!(ends.len(), 60);
    let failed = |output: &Output| output.finish.as_ref().unwrap().outcome == Err(error.clone());
    assert!(ends.iter().all(|(_, output)| failed(output)));
    assert!(run.engine.planner.is_idle());
    run.check_nothing_left();
    run.engine.planner.tick(Millis(10));
    assert_eq!(run.engine.planner.take_outputs().count(), 0);
}
