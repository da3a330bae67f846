//! Setups to explore, in tests and for minutes.

use lockstep_adaptive::DepthRange;

use super::{Fault, Lacks, Load, Setup};

const PINNED: [DepthRange; 3] = [pinned(0), pinned(1), pinned(2)];
const FREE: DepthRange = DepthRange {
    least: 0,
    most: u32::MAX,
};

const fn pinned(depth: u32) -> DepthRange {
    DepthRange {
        least: depth,
        most: depth,
    }
}

impl Setup {
    /// Returns a setup in which DP ranks come and go.
    pub fn idle(steps: u8) -> Self {
        Self {
            initial: 1,
            steps,
            steps_again: 2,
            in_flight: 2,
            loads: vec![Load::Rows(0), Load::Rows(1)],
            ranges: 0,
            allowed: Vec::new(),
            crashes: 0,
            lacks: None,
            fault: None,
        }
    }

    /// Returns a setup in which more rows come at once than a depth was decided for, with long
    /// prompts.
    pub fn crowd(steps: u8) -> Self {
        Self {
            loads: vec![Load::Rows(0), Load::Rows(1), Load::Rows(6), Load::Prompt],
            ..Self::idle(steps)
        }
    }

    /// Returns a setup in which an operator pins depths and lets go while crowds come. One rank
    /// can't run the depth `lacking`.
    pub fn pinned(steps: u8, lacking: u8) -> Self {
        Self {
            initial: if lacking == 1 { 2 } else { 1 },
            loads: vec![Load::Rows(0), Load::Rows(6)],
            ranges: 2,
            allowed: [&PINNED[..], &[FREE]].concat(),
            lacks: Some(Lacks {
                rank: 2,
                depth: lacking,
            }),
            ..Self::idle(steps)
        }
    }

    /// Returns a setup in which a rank crashes anywhere, and a new group begins.
    pub fn crash(steps: u8) -> Self {
        Self {
            crashes: 1,
            ..Self::idle(steps)
        }
    }

    /// Returns the setup with one step in flight.
    pub fn without_overlap(self) -> Self {
        Self {
            in_flight: 1,
            ..self
        }
    }

    /// Returns the planted mistakes, each with words of the fault that is found.
    pub fn planted() -> [(Fault, &'static str, Self); 6] {
        let idle = Self::idle(5);
        [
            (Fault::MinimumOnOneRank, "rank 1 decides depth", &idle),
            (Fault::IdleSkipsOpening, "waits in", &idle),
            (Fault::EarlyOnOneRank, "rank 1 takes depth", &idle),
            (Fault::EarlyInScheduler, "asks for depth", &idle),
            (Fault::PlanExceeds, "asks for depth", &idle),
            (
                Fault::RangeIgnored,
                "where an operator allows",
                &Self::pinned(3, 2),
            ),
        ]
        .map(|(fault, found, setup)| {
            let setup = Self {
                fault: Some(fault),
                ..setup.clone()
            };
            (fault, found, setup)
        })
    }

    /// Returns setups that take a second or two.
    pub fn short() -> Vec<(&'static str, Self)> {
        vec![
            ("idle ranks", Self::idle(5)),
            ("no overlap", Self::crowd(5).without_overlap()),
            ("crowds", Self::crowd(3)),
            ("a pin, a depth that one rank lacks", Self::pinned(3, 1)),
            ("the same of the deepest", Self::pinned(3, 2)),
            ("a crash", Self::crash(3)),
        ]
    }

    /// Returns setups that take minutes.
    pub fn long() -> Vec<(&'static str, Self)> {
        vec![
            ("idle ranks", Self::idle(8)),
            ("no overlap", Self::crowd(8).without_overlap()),
            ("crowds", Self::crowd(5)),
            ("a pin, a depth that one rank lacks", Self::pinned(5, 1)),
            ("the same of the deepest", Self::pinned(5, 2)),
            ("a crash", Self::crash(6)),
        ]
    }
}
