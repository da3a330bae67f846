//! Page tables of a group of layers with a sliding window.

use std::num::NonZeroUsize;

use lockstep_backend_cpu::CpuBackend;
use lockstep_types::step::{PlanPart, SlotExtend, SlotOpen, StepPlan};
use lockstep_types::{Dtype, EngineConfig, LoadFormat};

use super::support::{config, load_alone, row};
use crate::worker::{PlanError, Worker, WorkerError};

/// Tokens per page, and positions that a query sees.
const PAGE: usize = 16;
const WINDOW: usize = 18;

/// Returns the configuration of a model with two groups, of which the second has a window and
/// fewer pages.
fn windowed() -> EngineConfig {
    let mut config = config(1, PAGE, Dtype::Float32);
    config.model.load_format = LoadFormat::Dummy;
    config.model.layers[0].attention_mut().unwrap().window = NonZeroUsize::new(WINDOW);
    config.schedule.chunked_prefill_size = Some(64);
    config.schedule.max_prefill_tokens = 64;
    config
}

fn worker() -> Worker<CpuBackend> {
    load_alone(&windowed()).unwrap()
}

/// Opens `slot` with 100 tokens, of which `cached_len` are cached.
fn open(slot: u32, cached_len: u32) -> SlotOpen {
    SlotOpen {
        cached_len,
        ..SlotOpen::new(slot, (10..110).collect())
    }
}

fn plan(step: u64, opens: Vec<SlotOpen>, extends: Vec<SlotExtend>) -> StepPlan {
    StepPlan {
        step,
        parts: vec![PlanPart {
            opens,
            extends,
            ..PlanPart::default()
        }],
        ..StepPlan::default()
    }
}

fn refusal(mut worker: Worker<CpuBackend>, plan: &StepPlan) -> PlanError {
    match worker.step(plan).unwrap_err() {
        WorkerError::Plan { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

/// Pages that no query sees any more may be left out, and no others.
#[test]
fn an_absent_page_is_refused_where_a_query_reads() {
    let absent = |group, position| PlanError::PageAbsent {
        slot: 0,
        group,
        position,
    };
    // The query at 48 sees the positions from 31 on.
    let cached = |pages: &[u32]| plan(1, vec![open(0, 48)], vec![row(0, 16, false, pages)]);
    worker().step(&cached(&[1, 0, 2, 4, 3, 5, 4, 6])).unwrap();
    // The query at 64 sees the positions from 47 on.
    let later = plan(
        1,
        vec![open(0, 64)],
        vec![row(0, 16, false, &[1, 0, 2, 0, 3, 5, 4, 6, 5, 7])],
    );
    worker().step(&later).unwrap();
    for (pages, expected) in [
        ([1, 0, 2, 0, 3, 5, 4, 6], absent(1, 16)),
        ([1, 3, 2, 4, 3, 0, 4, 6], absent(1, 32)),
        ([1, 3, 2, 4, 3, 5, 4, 0], absent(1, 48)),
        ([0, 3, 2, 4, 3, 5, 4, 6], absent(0, 0)),
    ] {
        assert_eq!(refusal(worker(), &cached(&pages)), expected, "{pages:?}");
    }
}

#[test]
fn a_group_with_a_window_has_fewer_pages() {
    let pages = windowed().kv_pages();
    assert!(pages.window < pages.full);
    let last = pages.window as u32 - 1;
    let granting = |page| plan(1, vec![open(0, 0)], vec![row(0, 16, false, &[1, page])]);
    worker().step(&granting(last)).unwrap();
    let unknown = PlanError::UnknownPage {
        slot: 0,
        page: last + 1,
        pages: pages.window,
    };
    assert_eq!(refusal(worker(), &granting(last + 1)), unknown);
}

/// A page behind a slot's window belongs to whoever gets it next, at once.
#[test]
fn pages_behind_the_window_go_to_other_slots() {
    let after_64 = || {
        let mut worker = worker();
        let pages = [1, 1, 2, 2, 3, 3, 4, 4];
        let first = plan(1, vec![open(0, 0)], vec![row(0, 64, false, &pages)]);
        worker.step(&first).unwrap();
        worker
    };
    // The query at 64 sees the positions from 47 on, which lie on pages 3 and 4.
    let other = |page| plan(2, vec![open(1, 0)], vec![row(1, 16, false, &[5, page])]);
    for page in [1, 2] {
        let mut worker = after_64();
        worker.step(&other(page)).unwrap();
        let more = row(0, 16, false, &[6, 5]);
        worker.step(&plan(3, Vec::new(), vec![more])).unwrap();
    }
    for page in [3, 4] {
        let shared = PlanError::PageShared {
            slot: 1,
            group: 1,
            page,
            owners: 2,
        };
        assert_eq!(refusal(after_64(), &other(page)), shared);
    }
}

/// A slot that closes gives back what it still has, and counts nothing twice.
#[test]
fn a_closed_slot_has_no_page() {
    let mut worker = worker();
    let pages = [1, 1, 2, 2, 3, 3, 4, 4];
    for step in 1..4 {
        let mut next = plan(step, vec![open(0, 0)], vec![row(0, 64, false, &pages)]);
        next.parts[0].closes = if step > 1 { vec![0] } else { Vec::new() };
        worker.step(&next).unwrap();
    }
}
