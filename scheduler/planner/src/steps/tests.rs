use std::sync::Arc;

use super::*;

const ROW: RowInFlight = RowInFlight {
    index: 0,
    arrival: 1,
    slot: 0,
    prefill_to: Some(4),
    sample: false,
    depth: 0,
    pauses: false,
    max_tokens: 0,
    last_chunk: false,
};

/// Plans a step of `rows` rows in each batch, and takes its buffers back.
fn round(steps: &mut Steps, batches: &mut [Batch], rows: usize) {
    for batch in &mut *batches {
        batch.next.begin(0);
        for _ in 0..rows {
            let mut pages = batch.page_list();
            pages.extend([7; 100]);
            batch.next.extend(ROW, 4, pages, Vec::new());
        }
    }
    let plan = steps.launch(batches.iter_mut());
    let result = StepResult {
        step: plan.step,
        outputs: vec![Vec::new(); batches.len()],
        ..StepResult::default()
    };
    steps.recycle_plan(plan, batches.iter_mut());
    let step = steps.take(&result).expect("the oldest step's");
    steps.recycle(step);
}

#[test]
fn buffers_are_reused() {
    let config = Arc::new(PlannerConfig::default());
    let mut steps = Steps::new(&config);
    let mut batches = [config.clone(), config].map(Batch::new);
    // Capacities of rows, extends and a list of one page.
    let room = |batch: &mut Batch| {
        [
            batch.next.rows.capacity(),
            batch.next.plan.extends.capacity(),
            batch.page_list().capacity(),
        ]
    };
    round(&mut steps, &mut batches, 1);
    for batch in &mut batches {
        let before = room(batch);
        assert!(before[..2].iter().all(|room| *room < 100), "{before:?}");
    }
    round(&mut steps, &mut batches, 100);
    round(&mut steps, &mut batches, 1);
    for batch in &mut batches {
        let after = room(batch);
        assert!(after.iter().all(|room| *room >= 100), "{after:?}");
        assert!(batch.next.is_empty(), "nothing is left in them");
    }
}

#[test]
fn a_result_without_a_part_for_each_dp_rank_is_refused() {
    let config = Arc::new(PlannerConfig::default());
    let mut steps = Steps::new(&config);
    let mut batches = [config.clone(), config].map(Batch::new);
    batches[1].next.extend(ROW, 4, Vec::new(), Vec::new());
    let plan = steps.launch(batches.iter_mut());
    assert_eq!(plan.parts[0], PlanPart::default());
    assert!(steps.runs(1) && !steps.runs(0));
    for parts in [0, 1, 3] {
        let result = StepResult {
            step: plan.step,
            outputs: vec![Vec::new(); parts],
            ..StepResult::default()
        };
        let error = steps.take(&result).expect_err("too few or too many");
        let text = error.to_string();
        assert!(
            text.contains(&format!("{parts} parts for 2 DP ranks")),
            "{text}"
        );
        assert!(steps.runs(1), "nothing was taken");
    }
}
