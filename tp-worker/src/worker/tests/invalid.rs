//! Plans that can't be followed.

use lockstep_types::step::{PlanPart, SlotExtend, SlotOpen, StepPlan};
use lockstep_types::{Dtype, LoadFormat};

use super::support::{CONTEXT, Request, SLOTS, config, load_alone, open, row};
use crate::worker::{PlanError, Worker, WorkerError};

fn worker() -> Worker<lockstep_backend_cpu::CpuBackend> {
    let config = config(1, 16, Dtype::Float32);
    load_alone(&config).unwrap()
}

fn request() -> Request {
    Request::greedy(&(10..40).collect::<Vec<_>>(), 8)
}

/// Returns a plan that opens slot 0 with 30 tokens on pages 1 and 2, and samples.
fn good() -> StepPlan {
    StepPlan {
        step: 1,
        parts: vec![PlanPart {
            closes: vec![],
            opens: vec![open(0, &request())],
            extends: vec![row(0, 30, true, &[1, 2])],
        }],
        ..StepPlan::default()
    }
}

fn next(extend: SlotExtend) -> StepPlan {
    StepPlan {
        step: 2,
        parts: vec![PlanPart {
            extends: vec![extend],
            ..PlanPart::default()
        }],
        ..StepPlan::default()
    }
}

fn changed(mut plan: StepPlan, change: impl FnOnce(&mut PlanPart)) -> StepPlan {
    change(&mut plan.parts[0]);
    plan
}

fn opening(change: impl FnOnce(&mut SlotOpen)) -> StepPlan {
    changed(good(), |part| change(&mut part.opens[0]))
}

fn extending(change: impl FnOnce(&mut SlotExtend)) -> StepPlan {
    changed(good(), |part| change(&mut part.extends[0]))
}

/// Returns the reason with which a worker refuses `plan` after following `before`.
fn reason(before: &[StepPlan], plan: &StepPlan) -> PlanError {
    let mut worker = worker();
    for plan in before {
        worker.step(plan).unwrap();
    }
    refusal(worker, plan)
}

fn refusal(mut worker: Worker<lockstep_backend_cpu::CpuBackend>, plan: &StepPlan) -> PlanError {
    let WorkerError::Plan { step, reason } = worker.step(plan).unwrap_err() else {
        panic!("another error");
    };
    assert_eq!(step, plan.step);
    // The worker refuses again instead of going on from an unknown state.
    let again = worker.step(plan).unwrap_err();
    assert!(matches!(again, WorkerError::Broken));
    reason
}

#[test]
fn bad_opens_and_closes() {
    let slots = SLOTS;
    for (plan, expected) in [
        (
            StepPlan { step: 2, ..good() },
            PlanError::OutOfOrder { expected: 1 },
        ),
        (
            StepPlan {
                parts: Vec::new(),
                ..good()
            },
            PlanError::NoPart {
                parts: 0,
                dp_rank: 0,
            },
        ),
        (
            changed(good(), |part| part.closes = vec![0]),
            PlanError::NotOpen { slot: 0 },
        ),
        (
            changed(good(), |part| part.closes = vec![99]),
            PlanError::UnknownSlot { slot: 99, slots },
        ),
        (
            opening(|open| open.slot = 40),
            PlanError::UnknownSlot { slot: 40, slots },
        ),
        (
            opening(|open| open.cached_len = 30),
            PlanError::Lengths {
                slot: 0,
                tokens: 30,
                prompt_len: 30,
                cached_len: 30,
            },
        ),
        (
            opening(|open| open.prompt_len = 31),
            PlanError::Lengths {
                slot: 0,
                tokens: 30,
                prompt_len: 31,
                cached_len: 0,
            },
        ),
        (
            opening(|open| open.token_ids.clear()),
            PlanError::Lengths {
                slot: 0,
                tokens: 0,
                prompt_len: 30,
                cached_len: 0,
            },
        ),
        (
            opening(|open| open.token_ids.resize(1000, 1)),
            PlanError::Lengths {
                slot: 0,
                tokens: 1000,
                prompt_len: 30,
                cached_len: 0,
            },
        ),
        (
            opening(|open| open.token_ids[3] = 4096),
            PlanError::Token {
                slot: 0,
                token: 4096,
                vocab: 4096,
            },
        ),
        (
            opening(|open| {
                open.generation.logprobs.prompt_start = Some(9);
                open.cached_len = 16;
            }),
            PlanError::ScoredPrefixCached {
                slot: 0,
                start: 9,
                cached_len: 16,
            },
        ),
    ] {
        assert_eq!(reason(&[], &plan), expected);
    }
}

#[test]
fn bad_first_rows() {
    let longest = CONTEXT as u32 + 4;
    for (plan, expected) in [
        (
            extending(|row| row.slot = 1),
            PlanError::NotOpen { slot: 1 },
        ),
        (
            extending(|row| row.prefill_len = 31),
            PlanError::PrefillPastEnd {
                slot: 0,
                prefill_len: 31,
                kv_len: 0,
                tokens: 30,
            },
        ),
        (
            extending(|row| row.prefill_len = u32::MAX),
            PlanError::PrefillPastEnd {
                slot: 0,
                prefill_len: u32::MAX,
                kv_len: 0,
                tokens: 30,
            },
        ),
        (
            extending(|row| row.prefill_len = 0),
            PlanError::NotDecoding {
                slot: 0,
                kv_len: 0,
                tokens: 30,
            },
        ),
        (
            extending(|row| row.prefill_len = 20),
            PlanError::Sample {
                slot: 0,
                end: 20,
                tokens: 30,
                sample: true,
            },
        ),
        (
            extending(|row| row.new_pages = vec![1, 801]),
            PlanError::UnknownPage {
                slot: 0,
                page: 801,
                pages: 801,
            },
        ),
        (
            extending(|row| row.new_pages = vec![1]),
            PlanError::PagesMissing {
                slot: 0,
                end: 30,
                needed: 2,
                granted: 1,
            },
        ),
        (
            extending(|row| row.new_pages = vec![1, 1]),
            PlanError::PageShared {
                group: 0,
                slot: 0,
                page: 1,
                owners: 2,
            },
        ),
        (
            extending(|row| row.new_pages = (1..=longest).collect()),
            PlanError::TableFull { slot: 0, width: 22 },
        ),
    ] {
        assert_eq!(reason(&[], &plan), expected);
    }
}

/// A block of 16 tokens has a page of each of two groups.
#[test]
fn bad_pages_of_two_groups() {
    let worker = || {
        let mut config = config(1, 16, Dtype::Float32);
        config.model.load_format = LoadFormat::Dummy;
        config.model.layers[1].attention_mut().unwrap().kv_heads = 2;
        load_alone(&config).unwrap()
    };
    let granting = |pages: &[u32]| extending(|row| row.new_pages = pages.to_vec());
    worker().step(&granting(&[1, 2, 2, 1])).unwrap();
    for (pages, expected) in [
        (
            &[1, 2, 2][..],
            PlanError::UnevenPages {
                slot: 0,
                pages: 3,
                groups: 2,
            },
        ),
        (
            &[1, 2, 2, 801],
            PlanError::UnknownPage {
                slot: 0,
                page: 801,
                pages: 801,
            },
        ),
        (
            &[1, 2, 3, 2],
            PlanError::PageShared {
                group: 1,
                slot: 0,
                page: 2,
                owners: 2,
            },
        ),
    ] {
        assert_eq!(refusal(worker(), &granting(pages)), expected, "{pages:?}");
    }
}

#[test]
fn bad_later_plans() {
    let twice = changed(next(row(0, 0, true, &[])), |part| {
        part.extends.push(row(0, 0, true, &[]));
    });
    let reopened = StepPlan {
        step: 2,
        ..changed(good(), |part| part.extends.clear())
    };
    let other = changed(next(row(1, 30, true, &[3, 2])), |part| {
        part.opens.push(open(1, &request()));
    });
    for (plan, expected) in [
        (good(), PlanError::OutOfOrder { expected: 2 }),
        (twice, PlanError::ExtendedTwice { slot: 0 }),
        (reopened, PlanError::AlreadyOpen { slot: 0 }),
        (
            other,
            PlanError::PageShared {
                group: 0,
                slot: 1,
                page: 2,
                owners: 2,
            },
        ),
        (
            next(row(0, 0, false, &[])),
            PlanError::Sample {
                slot: 0,
                end: 31,
                tokens: 31,
                sample: false,
            },
        ),
        (
            next(row(0, 2, true, &[])),
            PlanError::PrefillPastEnd {
                slot: 0,
                prefill_len: 2,
                kv_len: 30,
                tokens: 31,
            },
        ),
    ] {
        assert_eq!(reason(&[good()], &plan), expected);
    }
}

/// A slot's pages can go to another slot as soon as it closes, in the same plan.
#[test]
fn pages_move_on_with_a_close() {
    let mut worker = worker();
    let first = worker.step(&good()).unwrap();
    let moved = changed(next(row(0, 30, true, &[2, 1])), |part| {
        part.closes.push(0);
        part.opens.push(open(0, &request()));
    });
    let second = worker.step(&moved).unwrap();
    assert_eq!(first.outputs, second.outputs);
    assert_ne!(first.digests.tensor, second.digests.tensor);
    assert_ne!(first.digests.world, second.digests.world);
    // An empty plan is a step too.
    let idle = StepPlan {
        step: 3,
        parts: vec![PlanPart::default()],
        ..StepPlan::default()
    };
    assert!(worker.step(&idle).unwrap().outputs.is_empty());
}

#[test]
fn more_tokens_than_buffers_hold_are_an_error() {
    let mut config = config(1, 16, Dtype::Float32);
    config.schedule.chunked_prefill_size = Some(16);
    config.schedule.max_prefill_tokens = 16;
    config.schedule.max_running_requests = 2;
    let mut worker = load_alone(&config).unwrap();
    let error = worker.step(&good()).unwrap_err();
    let WorkerError::Plan {
        reason: PlanError::NoPass(found),
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((found.requests, found.tokens), (1, 30));
}

#[test]
fn a_group_that_contradicts_the_configuration_is_an_error() {
    let config = config(2, 16, Dtype::Float32);
    let error = load_alone(&config).err().unwrap();
    assert!(matches!(
        error,
        WorkerError::Group {
            rank: 0,
            size: 2,
            found: (0, 1)
        }
    ));
}
