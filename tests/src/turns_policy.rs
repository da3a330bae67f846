//! A policy that decides on another depth in every step, and in one process, if
//! its environment says so, on a different one than the others.

use lockstep_adaptive::{AdaptiveConfig, Digest, Moment, Policy, PolicyFactory};

/// Names the step in which a process decides differently.
pub const ASTRAY: &str = "TEST_ASTRAY_IN_STEP";

/// Goes through all candidates.
#[derive(Debug)]
pub struct Turns;

#[derive(Debug)]
struct Turn {
    astray: Option<u64>,
}

impl PolicyFactory for Turns {
    fn name(&self) -> &str {
        "turns"
    }

    fn summary(&self) -> &str {
        "another depth in every step"
    }

    fn reads_costs(&self) -> bool {
        false
    }

    fn build(&self, _config: &AdaptiveConfig) -> Box<dyn Policy> {
        let astray = std::env::var(ASTRAY).ok();
        Box::new(Turn {
            astray: astray.and_then(|step| step.parse().ok()),
        })
    }
}

impl Policy for Turn {
    fn decide(&mut self, moment: &Moment<'_>) -> u32 {
        let astray = usize::from(self.astray == Some(moment.step));
        let turn = moment.step as usize + astray;
        moment.candidates[turn % moment.candidates.len()]
    }

    fn digest(&self, _digest: &mut Digest) {}
}
