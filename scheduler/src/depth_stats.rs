//! Counts of steps by depth: their times, and the times that were expected.

use std::collections::VecDeque;

use lockstep_adaptive::{DepthRange, LAG};
use lockstep_proto::pb::lockstep::DepthLoad;
use lockstep_types::step::{StepPlan, StepResult};

/// Counts by depth, over steps with rows that decode.
pub struct DepthStats {
    /// Draft steps of the newest step.
    now: u32,
    switches: u64,
    /// Number of steps by depth, from 0.
    steps: Vec<u64>,
    us: Vec<u64>,
    /// Steps sent whose results are not back.
    flight: VecDeque<SentPlan>,
    /// Expected times of the steps to come, by the steps' numbers.
    expected: VecDeque<(u64, u32)>,
    predicted: PredictedTimes,
    range: DepthRange,
}

/// Steps of decode rows alone for which a time was expected.
#[derive(Default)]
struct PredictedTimes {
    steps: u64,
    expected_us: u64,
    took_us: u64,
}

/// Facts of a plan that its result is counted by.
struct SentPlan {
    step: u64,
    depth: u32,
    decodes: bool,
    prefills: bool,
}

impl DepthStats {
    /// Makes empty counts for depths up to `most`, beginning with `initial`.
    pub fn new(initial: u32, most: usize) -> Self {
        Self {
            now: initial,
            switches: 0,
            steps: vec![0; most + 1],
            us: vec![0; most + 1],
            flight: VecDeque::with_capacity(LAG as usize + 1),
            expected: VecDeque::with_capacity(2 * LAG as usize + 1),
            predicted: PredictedTimes::default(),
            range: DepthRange::default(),
        }
    }

    /// Notes the depths that an operator allows.
    pub fn set_range(&mut self, range: DepthRange) {
        self.range = range;
    }

    /// Counts a plan that is sent.
    pub fn sent(&mut self, plan: &StepPlan) {
        let decodes = plan.rows().any(|extend| extend.prefill_len == 0);
        let prefills = plan.rows().any(|extend| extend.prefill_len > 0);
        if decodes && plan.draft_steps != self.now {
            self.now = plan.draft_steps;
            self.switches += 1;
        }
        self.flight.push_back(SentPlan {
            step: plan.step,
            depth: plan.draft_steps,
            decodes,
            prefills,
        });
    }

    /// Counts a result.
    pub fn done(&mut self, result: &StepResult) {
        if result.expected_us > 0 {
            self.expected
                .push_back((result.step + LAG, result.expected_us));
        }
        let Some(sent) = self.flight.pop_front() else {
            return;
        };
        while self
            .expected
            .front()
            .is_some_and(|(step, _)| *step < sent.step)
        {
            self.expected.pop_front();
        }
        let stages = result.stages;
        let took = [stages.draft_us, stages.verify_us, stages.extend_us];
        let took = took.into_iter().map(u64::from).sum::<u64>();
        if !sent.decodes {
            return;
        }
        if let (Some(steps), Some(us)) = (
            self.steps.get_mut(sent.depth as usize),
            self.us.get_mut(sent.depth as usize),
        ) {
            *steps += 1;
            *us += took;
        }
        let expected = self.expected.front().filter(|(step, _)| *step == sent.step);
        if let Some((_, expected)) = expected.filter(|_| !sent.prefills) {
            self.predicted.steps += 1;
            self.predicted.expected_us += u64::from(*expected);
            self.predicted.took_us += took;
        }
    }

    /// Returns the counts as a message.
    pub fn wire(&self) -> DepthLoad {
        let free = self.range == DepthRange::default();
        DepthLoad {
            depth: self.now,
            switches: self.switches,
            steps: self.steps.clone(),
            us: self.us.clone(),
            predicted_steps: self.predicted.steps,
            predicted_us: self.predicted.expected_us,
            measured_us: self.predicted.took_us,
            range: (!free).then(|| self.range.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::step::{PlanPart, SlotExtend, StageTimes};

    use super::*;

    fn plan(step: u64, draft_steps: u32, prefills: &[u32]) -> StepPlan {
        let extend = |prefill_len: &u32| SlotExtend {
            prefill_len: *prefill_len,
            ..SlotExtend::default()
        };
        StepPlan {
            step,
            draft_steps,
            parts: vec![PlanPart {
                extends: prefills.iter().map(extend).collect(),
                ..PlanPart::default()
            }],
            ..StepPlan::default()
        }
    }

    fn result(step: u64, us: u32, expected_us: u32) -> StepResult {
        StepResult {
            step,
            expected_us,
            stages: StageTimes {
                draft_us: us,
                verify_us: us,
                extend_us: us,
            },
            ..StepResult::default()
        }
    }

    #[test]
    fn steps_count_under_the_depth_that_they_ran_at() {
        let mut depths = DepthStats::new(3, 3);
        // (depth, prompt tokens of each row, µs of each stage, µs expected two steps later)
        let steps: [(u32, &[u32], u32, u32); 7] = [
            (3, &[5], 1000, 0),
            (3, &[0], 10, 40),
            (3, &[0, 0], 20, 50),
            // Prompts are in the step too: its time counts, but no prediction does.
            (1, &[0, 7], 100, 60),
            (1, &[0], 30, 0),
            (0, &[0], 5, 0),
            (3, &[0], 10, 0),
        ];
        // Two in flight, as under overlap.
        for (at, (depth, prompts, ..)) in steps.iter().enumerate() {
            depths.sent(&plan(at as u64 + 1, *depth, prompts));
            if let Some(done) = at.checked_sub(1) {
                let (.., us, expected) = steps[done];
                depths.done(&result(done as u64 + 1, us, expected));
            }
        }
        depths.done(&result(7, 10, 0));
        let wire = depths.wire();
        assert_eq!((wire.depth, wire.switches), (3, 3));
        assert_eq!(wire.steps, [1, 2, 0, 3]);
        assert_eq!(wire.us, [15, 390, 0, 120]);
        // A time was expected only for steps 5 (expected 50, took 90) and 6 (60, 15), which
        // only decoded. Step 4 had a prompt.
        assert_eq!(
            (wire.predicted_steps, wire.predicted_us, wire.measured_us),
            (2, 110, 105)
        );
        assert_eq!(wire.range, None);
        depths.set_range(DepthRange { least: 2, most: 2 });
        let range = depths.wire().range.expect("it is pinned");
        assert_eq!((range.least, range.most), (2, 2));
    }
}
