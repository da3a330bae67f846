//! Tests of the planner's promises, one case at a time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use lockstep_planner::{
    Millis, Planner, PlannerConfig, RequestId,
    sim::{SimEngine, SimGroup, SimModel},
};
use lockstep_types::{
    request::{Finish, Request},
    sampling::SamplingParams,
    step::StepPlan,
};

mod adapters;
mod cache;
mod choices;
mod dp_ranks;
mod hold;
mod limits;
mod order;
mod salts;
mod speculation;
mod states;
mod steps;
mod times;
mod windows;

const MODEL: SimModel = SimModel { vocab_size: 1000 };

fn config() -> PlannerConfig {
    PlannerConfig {
        max_running_requests: 4,
        page_size: 4,
        num_pages: 65,
        context_length: 128,
        chunked_prefill_size: Some(32),
        ..PlannerConfig::default()
    }
}

fn engine(config: &PlannerConfig) -> SimEngine {
    let planner = Planner::new(config.clone()).unwrap();
    SimEngine::new(planner, SimGroup::new(config, MODEL, true))
}

fn request(input_ids: Vec<u32>, max_new_tokens: u32) -> Request {
    Request {
        generation: SamplingParams::greedy().into(),
        ..Request::new(input_ids, max_new_tokens)
    }
}

/// Returns a prompt that shares no token with any other.
fn prompt(id: u64, len: u32) -> Vec<u32> {
    (0..len)
        .map(|at| (id as u32 * 131 + at * 7) % 1000)
        .collect()
}

fn submit(engine: &mut SimEngine, id: u64, request: Request) {
    engine
        .planner
        .submit(Millis(0), RequestId(id), request)
        .unwrap();
}

fn submit_choice(engine: &mut SimEngine, id: u64, parent: u64, request: Request) {
    let (id, parent) = (RequestId(id), Some(RequestId(parent)));
    engine
        .planner
        .submit_choice(Millis(0), id, parent, request)
        .unwrap();
}

fn run(engine: &mut SimEngine) {
    let mut turns = 0;
    while engine.turn(Millis(0)).unwrap() {
        engine.planner.check_integrity().unwrap();
        turns += 1;
        assert!(turns < 10_000);
    }
    assert!(engine.planner.is_idle());
}

fn finish(engine: &SimEngine, id: u64) -> Finish {
    let mut of_id = engine
        .outputs
        .iter()
        .filter(|(other, _)| *other == RequestId(id));
    let finish = of_id.find_map(|(_, output)| output.finish.clone());
    finish.expect("the request has ended")
}

fn tokens(engine: &SimEngine, id: u64) -> Vec<u32> {
    let of_id = engine
        .outputs
        .iter()
        .filter(|(other, _)| *other == RequestId(id));
    of_id
        .flat_map(|(_, output)| output.token_ids.clone())
        .collect()
}

/// Plans one step, runs it, takes the result.
fn step(engine: &mut SimEngine, planner_sees: impl FnOnce(&StepPlan)) {
    let plan = engine.planner.plan().expect("there is work");
    planner_sees(&plan);
    let result = engine.workers.execute(&plan).unwrap();
    engine.planner.complete(Millis(0), result).unwrap();
    engine.outputs.extend(engine.planner.take_outputs());
}

fn prefills(plan: &StepPlan) -> Vec<u32> {
    plan.parts[0]
        .extends
        .iter()
        .map(|extend| extend.prefill_len)
        .collect()
}
