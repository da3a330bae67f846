//! Choice of the depth to probe, and of the time.

use super::{Goodput, Score, better, hazards::Tokens, logit::ONE, probe::Probe, row_tokens};
use crate::Moment;

/// Least gain, in the hopeful case, for which a deeper depth is worth a probe.
const HOPE: i64 = ONE / 100;
/// Steps of a probe that tests a measured time. The first of them may take in what a paused
/// drafter missed.
const PROOF: u32 = 6;
/// Most that such a probe is taken to cost, in steps. Its expected cost comes from the very
/// time that it tests.
const PROOF_COST: i64 = ONE / 4;

impl Goodput {
    /// Begins a probe if one is due. First come depths of unknown time, then depths of a time
    /// that was only measured before serving. Otherwise, while nothing is drafted, the best
    /// depth with drafts is probed; else a deeper depth that may be better than known.
    pub(super) fn consider_probe(&mut self, moment: &Moment<'_>, best: Score) -> Option<u32> {
        if !self.switch.can_spare(2) || !self.probe.is_due(moment.step, 0) {
            return None;
        }
        let mut depths = moment.candidates.iter().copied();
        let unknown =
            depths.find(|depth| !moment.costs.knows(&self.size(*depth, moment.rows, moment)));
        if let Some(depth) = unknown {
            let steps = Probe::steps(moment.rows);
            self.begin_probe(moment, depth, steps);
            self.probe.reset();
            return self.probe.going_on();
        }
        if let Some(depth) = self.to_prove(moment, best) {
            self.begin_probe(moment, depth, PROOF.max(Probe::steps(moment.rows)));
            return self.probe.going_on();
        }
        let deeper = self
            .scores
            .iter()
            .copied()
            .filter(|score| score.depth > self.depth);
        let score = if self.depth == 0 {
            deeper.reduce(better)?
        } else {
            let hope = self.hazards.tokens(true);
            deeper
                .filter(|score| self.is_hopeful(score.depth, &hope, moment, best))
                .reduce(better)?
        };
        if !self
            .probe
            .is_due(moment.step, self.probe_cost(score, moment)?)
        {
            return None;
        }
        self.begin_probe(moment, score.depth, Probe::steps(moment.rows));
        self.probe.going_on()
    }

    fn begin_probe(&mut self, moment: &Moment<'_>, depth: u32, steps: u32) {
        self.switch.spend(2);
        self.probe.begin(moment.step, depth, steps);
    }

    /// Returns the steps that a probe loses, in fixed point.
    fn probe_cost(&self, score: Score, moment: &Moment<'_>) -> Option<i64> {
        let present = self.score(self.depth, moment)?;
        let lost = score.loss_to(present) * i64::from(Probe::steps(moment.rows));
        Some(lost + self.cost_to_draft(score.depth, moment))
    }

    /// Returns a depth to test, if a test is due. The depth never drafted with about this many
    /// rows, and would be the best if drafting took no time. Its time measured before serving
    /// may be wrong, and nothing else would tell. Its cost by that time does not delay the
    /// test.
    fn to_prove(&self, moment: &Moment<'_>, best: Score) -> Option<u32> {
        let would_be_best = |score: &Score| {
            let size = self.size(score.depth, moment.rows, moment);
            let hoped = moment.costs.hoped_ns(&size).unwrap_or(u64::MAX);
            let rate = self
                .waits
                .rate(row_tokens(&self.tokens, score.depth) as u64, hoped);
            !moment.costs.is_proven(&size) && rate.min(1 << 46) > best.rate
        };
        let score = { self.scores.iter().copied() }
            .filter(|score| score.depth != self.depth)
            .filter(would_be_best)
            .reduce(better)?;
        let cost = self.probe_cost(score, moment)?.min(PROOF_COST);
        self.probe.is_due(moment.step, cost).then_some(score.depth)
    }

    /// Returns true if the depth would be the best with its logits one standard deviation
    /// higher.
    fn is_hopeful(&self, depth: u32, hope: &Tokens, moment: &Moment<'_>, best: Score) -> bool {
        let present = self.rate(self.depth, hope, moment);
        let hope = self.rate(depth, hope, moment);
        let pair = hope.zip(present);
        pair.is_some_and(|(hope, present)| hope.rate > best.rate && present.loss_to(hope) > HOPE)
    }
}
