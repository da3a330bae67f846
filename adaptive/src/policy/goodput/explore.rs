//! Which depth to probe, and when.

use super::{Goodput, Score, better, hazards::Tokens, logit::ONE, probe::Probe, row_tokens};
use crate::Moment;

/// A deeper depth is worth a probe where hope says this much more of it.
const HOPE: i64 = ONE / 100;
/// Steps that prove what was measured of a depth: the first of them may take in what
/// a paused drafter missed.
const PROOF: u32 = 6;
/// What such a probe is taken to cost at the most, in steps: what tells how much it
/// costs is what it is to prove.
const PROOF_COST: i64 = ONE / 4;
/// Where drafting is expected to bring no more than this over not drafting, what it really
/// brings is worth a look.
const DOUBT: i64 = ONE / 4;
/// Moves that must be left for that: others are worth more.
const SPARE: u64 = 6;
/// Loads are uneven where the mean rank has less than this part of the tokens of the
/// one that has most.
const UNEVEN: u32 = 1 << 14;

impl Goodput {
    /// Begins a probe where one is due: of a depth whose time nobody knows yet, or
    /// was only measured before serving; where nothing is drafted, of the best depth
    /// that does; else of a deeper one that may be better than is known.
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

    /// Steps that a probe loses, in fixed point.
    fn probe_cost(&self, score: Score, moment: &Moment<'_>) -> Option<i64> {
        let present = self.score(self.depth, moment)?;
        let lost = score.loss_to(present) * i64::from(Probe::steps(moment.rows));
        Some(lost + self.cost_to_draft(score.depth, moment))
    }

    /// A depth that never drafted with so many rows, and would be the best if
    /// drafting took no time: what was measured of it before serving may be wrong,
    /// and nothing else would tell. Its probe is due whatever it costs by that.
    ///
    /// Not while one rank has far more to do than the others: what is measured is of
    /// even loads, and such steps prove little of it.
    fn to_prove(&self, moment: &Moment<'_>, best: Score) -> Option<u32> {
        if moment.loads.balance < UNEVEN {
            return None;
        }
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

    /// Begins a few steps without drafts where drafting hardly pays by what was measured
    /// before serving, and nothing has shown yet whether that is right: such steps among
    /// others tell what drafts cost, for others who use the machine slow both alike.
    pub(super) fn consider_doubt(&mut self, moment: &Moment<'_>, best: Score) -> Option<u32> {
        let compared = moment.costs.is_compared(moment.rows, moment.loads);
        if self.depth == 0 || best.depth == 0 || compared {
            return None;
        }
        // Steps that carry prompts are not compared.
        let carries_prompts = moment.seen.prompt_tokens > 0 || moment.long_prompts.ranks > 0;
        if carries_prompts || moment.loads.balance < UNEVEN || !self.switch.can_spare(SPARE) {
            return None;
        }
        let none = self.scores.iter().find(|score| score.depth == 0)?;
        if none.loss_to(best) >= DOUBT || !self.doubt.is_due(moment.step, 0) {
            return None;
        }
        self.switch.spend(2);
        let step_us = self.expected_ns(0, moment.rows, moment)? / 1000;
        self.doubt.begin(moment.step, 0, doubt_steps(step_us));
        self.doubt.going_on()
    }

    /// Whether it would be the best if its logits were a deviation higher.
    fn is_hopeful(&self, depth: u32, hope: &Tokens, moment: &Moment<'_>, best: Score) -> bool {
        let present = self.rate(self.depth, hope, moment);
        let hope = self.rate(depth, hope, moment);
        let pair = hope.zip(present);
        pair.is_some_and(|(hope, present)| hope.rate > best.rate && present.loss_to(hope) > HOPE)
    }
}

/// Number of steps of so many microseconds that a doubt lasts: as many as a
/// [comparison](crate::Costs::is_compared) takes, and of short ones those before, in which
/// caches settle.
fn doubt_steps(step_us: u64) -> u32 {
    match step_us {
        2_000.. => 4,
        250.. => 2 + 6_000_u64.div_ceil(step_us) as u32,
        _ => 24,
    }
}
