//! The operations that steps ask of the device.

use std::sync::Arc;

use lockstep_collective::Single;
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{
    Dtype, EngineConfig,
    step::{PlanPart, StepPlan},
};

use super::{
    counting::{Counting, Counts},
    speculation::speculating,
    support::{Request, config, cpu, open, row},
};
use crate::worker::{Worker, WorkerOptions};

/// Returns the operations of decode steps of two requests of five tokens, at each of `depths`.
fn operations(config: &EngineConfig, depths: &[u32]) -> Vec<Counts> {
    steps(config, &[5], depths).split_off(1)
}

/// Returns the operations of steps of two requests. Their prompts come in `pieces` of so many
/// tokens, without drafts. Then both decode, at each of `depths`.
fn steps(config: &EngineConfig, pieces: &[u32], depths: &[u32]) -> Vec<Counts> {
    let counts = Arc::default();
    let backend = Counting {
        device: cpu(config, Box::new(Single::new())),
        counts: Arc::clone(&counts),
        vocab: 0,
        control: None,
    };
    let options = WorkerOptions {
        drafters: &DrafterRegistry::builtin(),
        weight_cache: None,
        progress: &mut |_| {},
    };
    let mut worker = Worker::load(config, 0, backend, options).unwrap();
    let text: Vec<u32> = (5..5 + pieces.iter().sum::<u32>()).collect();
    let prompt = Request::greedy(&text, 64);
    let pages = |slot| (6 * slot + 1..6 * slot + 7).collect::<Vec<_>>();
    let prefills = pieces.iter().enumerate().map(|(at, piece)| {
        let first = at == 0;
        let slots = if first { 0..2 } else { 0..0 };
        let last = at + 1 == pieces.len();
        StepPlan {
            parts: vec![PlanPart {
                opens: slots.map(|slot| open(slot, &prompt)).collect(),
                extends: (0..2)
                    .map(|slot| match first {
                        true => row(slot, *piece, last, &pages(slot)),
                        false => row(slot, *piece, last, &[]),
                    })
                    .collect(),
                ..PlanPart::default()
            }],
            ..StepPlan::default()
        }
    });
    let decodes = depths.iter().map(|depth| StepPlan {
        draft_steps: *depth,
        parts: vec![PlanPart {
            extends: (0..2).map(|slot| row(slot, 0, true, &[])).collect(),
            ..PlanPart::default()
        }],
        ..StepPlan::default()
    });
    let plans = prefills.chain(decodes).zip(1..);
    let steps = plans.map(|(plan, step)| {
        counts.lock().unwrap().clear();
        worker.step(&StepPlan { step, ..plan }).unwrap();
        counts.lock().unwrap().clone()
    });
    steps.collect()
}

/// Returns the operations of `more` that `less` lacks.
fn beyond(more: &Counts, less: &Counts) -> Vec<(&'static str, usize)> {
    let mut more = more.clone();
    for (name, count) in less {
        *more.entry(name).or_default() -= count;
    }
    more.into_iter().filter(|(_, count)| *count > 0).collect()
}

#[test]
fn a_drafter_that_pauses_runs_nothing() {
    let plain = config(1, 16, Dtype::Float32);
    let alone = &operations(&plain, &[0])[0];
    for (algorithm, kept) in [
        // The hidden states of layers, and the rows that move to the drafter's window.
        ("EAGLE3", &[("copy_rows", 1), ("place_columns", 3)][..]),
        ("EAGLE", &[("copy_rows", 1), ("place_columns", 1)]),
        ("STANDALONE", &[]),
    ] {
        let mut drafting = speculating(plain.clone(), algorithm, [3, 1, 4]);
        drafting.speculation.pause_window = 8;
        let found = operations(&drafting, &[0, 0, 3, 0]);
        for at in [0, 1, 3] {
            assert_eq!(beyond(&found[at], alone), kept, "{algorithm}, step {at}");
        }
        let passes = beyond(&found[2], alone);
        assert!(passes.iter().any(|(name, _)| *name == "attention"));
        // A drafter that may not pause runs in these steps too.
        drafting.speculation.pause_window = 0;
        let found = operations(&drafting, &[0, 0]);
        let passes = beyond(&found[1], alone);
        assert!(
            passes.iter().any(|(name, _)| *name == "attention"),
            "{algorithm}: {passes:?}"
        );
    }
}

/// While nothing is drafted, the drafter takes in neither prompts nor answers, whether prompts
/// complete pages or not.
#[test]
fn prompts_are_taken_in_as_somebody_drafts() {
    let plain = config(1, 16, Dtype::Float32);
    // Two pieces end within a page of 16; three complete pages.
    let pieces = [7, 5, 20, 2, 16];
    let alone = steps(&plain, &pieces, &[]);
    for algorithm in ["EAGLE3", "EAGLE", "STANDALONE"] {
        let mut drafting = speculating(plain.clone(), algorithm, [3, 1, 4]);
        drafting.speculation.pause_window = 64;
        let found = steps(&drafting, &pieces, &[0, 3]);
        for at in 0..pieces.len() {
            let [more, less] = [&found, &alone].map(|counts| counts[at].get("stage"));
            assert_eq!(more, less, "{algorithm}, piece {at}");
        }
        let drafts = &found[pieces.len() + 1];
        assert!(drafts["stage"] > 1, "{algorithm}: {drafts:?}");
    }
}

/// Devices keep operands in another type than sums. The tensors of the target's and of a
/// draft's passes hold what each operation takes.
#[test]
fn operations_get_what_they_take() {
    for algorithm in ["EAGLE3", "EAGLE", "STANDALONE"] {
        for shape in [[3, 1, 4], [3, 2, 6]] {
            let drafting = speculating(config(1, 16, Dtype::Float32), algorithm, shape);
            let steps = operations(&drafting, &[3, 0, 3]);
            let (drafts, plain) = (&steps[0], &steps[1]);
            let passes = beyond(drafts, plain);
            assert!(
                passes.iter().any(|(name, _)| *name == "attention"),
                "{algorithm}: {passes:?}"
            );
        }
    }
}
