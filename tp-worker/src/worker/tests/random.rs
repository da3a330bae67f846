//! Plans from a broken or hostile scheduler.

use lockstep_types::{Dtype, EngineConfig};
use lockstep_types::{
    sampling::{LogprobParams, SamplingParams},
    step::{PlanPart, SlotExtend, SlotOpen, StepPlan},
};
use proptest::{collection::vec, option, prelude::*};

use super::support::{config, load_alone, repository};
use crate::worker::WorkerError;

const VOCAB: u32 = 331;

/// Returns the configuration of a tiny model with three slots and nine pages of four tokens.
fn small() -> EngineConfig {
    let mut config = config(1, 4, Dtype::Float32);
    let model = repository().join("tests/fixtures/architectures/llama");
    config.model = lockstep_model_folder::load(&model).unwrap();
    config.kv.num_pages = 9;
    config.schedule.max_running_requests = 3;
    config.schedule.max_prefill_tokens = 16;
    config.schedule.chunked_prefill_size = Some(16);
    config.server.context_length = 24;
    config
}

fn opens() -> impl Strategy<Value = SlotOpen> {
    let lengths = (0u32..4, vec(0..VOCAB + 1, 1..12), 0u32..3, 0u32..3);
    let reports = (any::<bool>(), 0u32..400, option::of(0u32..14));
    let sampling = (
        prop_oneof![Just(0.0f32), Just(1.0)],
        0.5f32..1.0,
        any::<u64>(),
    );
    (lengths, reports, sampling).prop_map(|(lengths, reports, sampling)| {
        let (slot, token_ids, emitted, cached) = lengths;
        let mut open = SlotOpen {
            prompt_len: (token_ids.len() as u32).saturating_sub(emitted),
            cached_len: 4 * cached.saturating_sub(1),
            ..SlotOpen::new(slot, token_ids)
        };
        open.generation.sampling = SamplingParams {
            temperature: sampling.0,
            repetition_penalty: sampling.1,
            seed: sampling.2,
            ..SamplingParams::default()
        };
        open.generation.logprobs = LogprobParams {
            output: reports.0,
            top: reports.1,
            prompt_start: reports.2,
        };
        open
    })
}

fn extends() -> impl Strategy<Value = SlotExtend> {
    (0u32..4, 0u32..13, any::<bool>(), vec(0u32..10, 0..5)).prop_map(
        |(slot, prefill_len, sample, new_pages)| SlotExtend {
            slot,
            prefill_len,
            sample,
            new_pages,
            ..SlotExtend::default()
        },
    )
}

fn plans() -> impl Strategy<Value = Vec<StepPlan>> {
    let plan = (vec(0u32..4, 0..2), vec(opens(), 0..3), vec(extends(), 0..3));
    vec(plan, 1..5).prop_map(|plans| {
        let numbered = plans.into_iter().zip(1..);
        let plan = |((closes, opens, extends), step)| StepPlan {
            step,
            parts: vec![PlanPart {
                closes,
                opens,
                extends,
            }],
            ..StepPlan::default()
        };
        numbered.map(plan).collect()
    })
}

/// Makes a random plan more plausible: rows that end where tokens end sample, and every row
/// gets pages that no other row has.
fn repaired(mut plans: Vec<StepPlan>) -> Vec<StepPlan> {
    let mut pages = 1..9u32;
    for plan in &mut plans {
        let part = &mut plan.parts[0];
        part.closes.clear();
        part.opens.truncate(1);
        part.extends.truncate(1);
        if let (Some(open), Some(extend)) = (part.opens.first(), part.extends.first_mut()) {
            extend.slot = open.slot;
            extend.prefill_len = (open.token_ids.len() as u32).saturating_sub(open.cached_len);
            extend.sample = true;
            extend.new_pages = pages.by_ref().take(3).collect();
        }
    }
    plans
}

fn follow(plans: &[StepPlan]) -> usize {
    let config = small();
    let mut worker = load_alone(&config).unwrap();
    let mut followed = 0;
    for plan in plans {
        match worker.step(plan) {
            Ok(result) => {
                assert_eq!(result.step, plan.step);
                followed += 1;
            }
            Err(WorkerError::Plan { step, .. }) => {
                assert_eq!(step, plan.step);
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    followed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Every plan is followed or refused with a reason.
    #[test]
    fn any_plan_is_followed_or_refused(plans in plans()) {
        follow(&plans);
        follow(&repaired(plans));
    }
}

/// Some plausible plans are followed, so the test above does not pass by refusals alone.
#[test]
fn plausible_plans_are_followed() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let followed: usize = (0..50)
        .map(|_| {
            let tree = plans().new_tree(&mut runner).unwrap();
            let plans = repaired(proptest::strategy::ValueTree::current(&tree));
            let with_rows = plans.iter().take(follow(&plans));
            with_rows
                .filter(|plan| !plan.parts[0].extends.is_empty() && !plan.parts[0].opens.is_empty())
                .count()
        })
        .sum();
    assert!(followed > 5, "{followed}");
}
