//! What steps ask of the device.

use std::sync::Arc;

use lockstep_collective::Single;
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{Dtype, EngineConfig, step::StepPlan};

use super::{
    speculation::speculating,
    support::{Request, config, cpu, open, row},
    watched::{Counts, Watched},
};
use crate::worker::{Worker, WorkerOptions};

/// Operations of the steps in which two requests decode at the `depths` in turn,
/// after their prompts.
fn operations(config: &EngineConfig, depths: &[u32]) -> Vec<Counts> {
    let counts = Arc::default();
    let backend = Watched {
        device: cpu(config, Box::new(Single::new())),
        counts: Arc::clone(&counts),
        control: None,
    };
    let options = WorkerOptions {
        drafters: &DrafterRegistry::builtin(),
        weight_cache: None,
        progress: &mut |_| {},
    };
    let mut worker = Worker::load(config, 0, backend, options).unwrap();
    let prompt = Request::greedy(&[5, 6, 7, 8, 9], 64);
    let pages = |slot| vec![3 * slot + 1, 3 * slot + 2, 3 * slot + 3];
    let prefill = StepPlan {
        step: 1,
        opens: (0..2).map(|slot| open(slot, &prompt)).collect(),
        extends: (0..2)
            .map(|slot| row(slot, 5, true, &pages(slot)))
            .collect(),
        ..StepPlan::default()
    };
    worker.step(&prefill).unwrap();
    let steps = (2..).zip(depths).map(|(step, depth)| {
        counts.lock().unwrap().clear();
        let plan = StepPlan {
            step,
            extends: (0..2).map(|slot| row(slot, 0, true, &[])).collect(),
            draft_steps: *depth,
            ..StepPlan::default()
        };
        worker.step(&plan).unwrap();
        counts.lock().unwrap().clone()
    });
    steps.collect()
}

/// The operations of `more` that `less` has not.
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
        // The hidden states of layers, and the rows that move to the window.
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
        // Where it may not pause, it runs in these steps too.
        drafting.speculation.pause_window = 0;
        let found = operations(&drafting, &[0, 0]);
        let passes = beyond(&found[1], alone);
        assert!(
            passes.iter().any(|(name, _)| *name == "attention"),
            "{algorithm}: {passes:?}"
        );
    }
}

/// Devices keep operands in another type than sums: whatever the target's or a
/// draft's pass hands to an operation holds what that takes.
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
