//! A policy in a replay, which is shown the same figures as by ranks.

use lockstep_adaptive::{Crowd, Decider, DepthRange, Row as RankRow, Seen};

use super::{Chooser, Planned, Replay, Row};
use crate::phases::cost::Costs;

/// One rank, and the planner of its steps.
pub(super) struct Simulated {
    decider: Decider,
    crowd: Crowd,
    step: u64,
    seen: Seen,
}

impl Simulated {
    pub fn new(decider: Decider) -> Self {
        Self {
            decider,
            crowd: Crowd::default(),
            step: 0,
            seen: Seen::default(),
        }
    }
}

impl Chooser for Simulated {
    fn depth(&mut self, _: &Replay<'_>, _: &[Row], step: &Planned) -> Option<u32> {
        let (decodes, joined) = super::sizes(step);
        let agreed = self.decider.depth();
        let depth = if self.crowd.is_met(decodes) {
            0
        } else {
            agreed
        };
        self.step += 1;
        self.decider.begin();
        self.crowd.begin(decodes + joined);
        let row = RankRow {
            step: self.step,
            depth,
            depths: u32::MAX,
            decodes: decodes + joined,
            joined,
            seen: self.seen,
            ..RankRow::default()
        };
        self.decider.decide(&[row], DepthRange::default());
        Some(depth)
    }

    fn saw(&mut self, seen: &Seen) {
        self.seen = *seen;
    }
}

/// The profile that measuring steps before serving would have shown, up to `streams` rows.
pub fn profile(costs: &Costs, streams: u32) -> Vec<Seen> {
    let sizes = (0..).map(|power| 1 << power);
    let sizes: Vec<u32> = sizes.take_while(|rows| *rows < 2 * streams).collect();
    let all = costs.depths().flat_map(|depth| {
        let rows = sizes.iter().map(move |decodes| (depth, *decodes));
        rows.filter_map(|(depth, decodes)| {
            let seconds = costs.seconds(depth, decodes, 0.0)?;
            let stages = costs.stages(depth, decodes, seconds);
            Some(Seen {
                depth,
                decodes,
                tokens: decodes * (depth + 1),
                draft_us: stages.draft_us,
                verify_us: stages.verify_us,
                extend_us: stages.extend_us,
                ..Seen::default()
            })
        })
    });
    all.collect()
}
