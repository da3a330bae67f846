//! `goodput`: the depth with the most expected tokens per second.

use super::{Moment, Outlook, Policy, PolicyFactory};
use crate::{AdaptiveConfig, Digest, POSITIONS, Seen, StepSize};

mod explore;
mod hazards;
mod logit;
mod probe;
mod resume;
mod switch;
mod waits;

#[cfg(test)]
mod tests;

use hazards::{Hazards, Tokens};
use logit::ONE;
use probe::Probe;
use resume::Resume;
use switch::Switch;
use waits::Waits;

/// Inverse of a step's weight in the mean share of proposed drafts.
const FILL_RATE: i64 = 16;

/// Makes policies that maximise tokens per second.
#[derive(Debug)]
pub(super) struct Goodputs;

impl PolicyFactory for Goodputs {
    fn name(&self) -> &str {
        "goodput"
    }

    fn summary(&self) -> &str {
        "the most tokens per second, from acceptance by position and measured times"
    }

    fn obeys(&self, _key: &str) -> bool {
        false
    }

    fn build(&self, config: &AdaptiveConfig) -> Box<dyn Policy> {
        Box::new(Goodput::new(config))
    }
}

/// The argmax over all candidates of
/// `(1 + Σ_{i≤d} Π_{j≤i} h[j]) / (draft(d) + verify(d) + extend(d))`.
///
/// Hazards come from counts by position ([`Hazards`]), times from measured curves
/// ([`Costs`](crate::Costs)) at the batch's present size. Depth 0 is a depth like others. The
/// policy moves when the regret of staying has added up ([`Switch`]). Rare [`Probe`]s run other
/// depths, to learn facts that the present depth does not show. The policy follows TurboSpec
/// (arXiv 2406.14066), but has hazards by position instead of one acceptance rate. Prompts add the
/// same time to a step at any depth, so they leave the best depth as it is. The policy does not
/// learn from the times of such steps.
#[derive(Debug)]
struct Goodput {
    depth: u32,
    /// Rows of the last batch that decoded.
    rows: u32,
    /// Share of the drafts allowed by a depth that are proposed, in fixed point.
    fill: i64,
    waits: Waits,
    hazards: Hazards,
    /// Expected tokens of a row at each depth, and the score of each candidate.
    tokens: Tokens,
    scores: Vec<Score>,
    switch: Switch,
    probe: Probe,
    resume: Resume,
    outlook: Outlook,
}

/// A candidate and its expected rate.
#[derive(Debug, Clone, Copy)]
struct Score {
    depth: u32,
    /// Tokens of a row per time, in an arbitrary unit.
    rate: u64,
}

impl Score {
    /// Returns the part of `best`'s rate that this score loses.
    fn loss_to(self, best: Self) -> i64 {
        let lost = best.rate.saturating_sub(self.rate);
        i64::try_from(lost * ONE as u64 / best.rate.max(1)).unwrap_or(ONE)
    }
}

impl Policy for Goodput {
    fn decide(&mut self, moment: &Moment<'_>) -> u32 {
        if moment.rows == 0 {
            return self.depth;
        }
        if moment.seen.decodes > 0 && moment.seen_rows > 0 {
            self.observe(moment);
        }
        if moment.rows.ilog2() != self.rows.max(1).ilog2() {
            self.probe.reset();
        }
        self.rows = moment.rows;
        self.waits.begin(moment);
        self.hazards.turn_over(moment.joined, moment.all_rows);
        self.tokens = self.hazards.tokens(false);
        let mut scores = std::mem::take(&mut self.scores);
        scores.clear();
        scores.extend(
            moment
                .candidates
                .iter()
                .filter_map(|depth| self.score(*depth, moment)),
        );
        self.scores = scores;
        let Some(best) = self.scores.iter().copied().reduce(better) else {
            return self.depth;
        };
        let present = self.scores.iter().find(|score| score.depth == self.depth);
        let loss = present.map_or(ONE, |present| present.loss_to(best));
        let cost = self.cost_to_draft(best.depth, moment);
        if present.is_none() || self.switch.is_due(loss, cost) {
            self.move_to(best.depth);
        }
        self.tell(moment);
        let probe = self.probe.going_on();
        let probe = probe.or_else(|| self.consider_probe(moment, best));
        probe.unwrap_or(self.depth)
    }

    fn digest(&self, digest: &mut Digest) {
        digest.word(u64::from(self.depth));
        digest.word(u64::from(self.rows));
        digest.word(self.fill as u64);
        self.waits.digest(digest);
        self.hazards.digest(digest);
        self.switch.digest(digest);
        self.probe.digest(digest);
        self.resume.digest(digest);
    }

    fn outlook(&self) -> Outlook {
        self.outlook
    }
}

/// Returns the tokens of a row at a depth. A depth beyond the counted positions counts as the
/// last one.
fn row_tokens(tokens: &Tokens, depth: u32) -> i64 {
    tokens[(depth as usize).min(POSITIONS)]
}

/// Returns the better score, the first of equal ones.
fn better(best: Score, score: Score) -> Score {
    if score.rate > best.rate { score } else { best }
}

/// Returns `part`, in fixed point, to the power `times`.
fn power(mut part: i64, mut times: u32) -> i64 {
    let mut whole = ONE;
    while times > 0 {
        if times % 2 == 1 {
            whole = whole * part / ONE;
        }
        part = part * part / ONE;
        times /= 2;
    }
    whole
}

/// Returns the drafts of a step in which every row proposes as many as it may.
fn most_drafts(depth: u32, decodes: u32, moment: &Moment<'_>) -> u64 {
    u64::from(moment.costs.row_tokens(depth).saturating_sub(1)) * u64::from(decodes)
}

impl Goodput {
    fn new(config: &AdaptiveConfig) -> Self {
        Self {
            depth: config.initial_depth,
            rows: 0,
            fill: ONE,
            waits: Waits::new(),
            tokens: Hazards::new().tokens(false),
            hazards: Hazards::new(),
            scores: Vec::with_capacity(config.tiers.len()),
            switch: Switch::new(),
            probe: Probe::new(),
            resume: Resume::new(),
            outlook: Outlook::default(),
        }
    }

    fn move_to(&mut self, depth: u32) {
        if depth != self.depth {
            self.switch.moved();
            self.probe.reset();
            self.probe.stop();
            self.depth = depth;
        }
    }

    /// Takes in the statistics of a step.
    fn observe(&mut self, moment: &Moment<'_>) {
        let seen = moment.seen;
        let us = [seen.draft_us, seen.verify_us, seen.extend_us].map(u64::from);
        let us = us.into_iter().sum::<u64>();
        self.switch.pass(us);
        let expected = self.expected_ns(seen.depth, moment.seen_rows, moment);
        self.waits.observe(moment, us, expected);
        // The cost of drafting again grows with the rows of the rank with most.
        let there = Seen {
            decodes: moment.seen_rows,
            ..*seen
        };
        let resumes = self
            .resume
            .observe(&there, us, expected.map(|ns| ns / 1000));
        if seen.is_decode() && !resumes {
            self.observe_fill(moment);
        }
        self.hazards.observe(seen);
    }

    fn observe_fill(&mut self, moment: &Moment<'_>) {
        let seen = moment.seen;
        let most = moment.costs.row_tokens(seen.depth).saturating_sub(1);
        let most = u64::from(most) * u64::from(moment.seen_rows);
        if seen.depth > 0 && most > 0 {
            let proposed = u64::from(seen.tokens.saturating_sub(moment.seen_rows)).min(most);
            let share = i64::try_from((proposed << 16) / most).unwrap_or(ONE);
            self.fill += (share - self.fill) / FILL_RATE;
        }
    }

    /// Returns the expected nanoseconds of a step. Some drafters, such as n-grams, find nothing
    /// for some rows. If rows are few, such drafters make passes of two sizes, with drafts and
    /// without. Both sizes count by their expected frequency: a pass of the mean size may fit a
    /// limit that a pass with drafts exceeds.
    fn expected_ns(&self, depth: u32, decodes: u32, moment: &Moment<'_>) -> Option<u64> {
        let size = self.size(depth, decodes, moment);
        let without = power(ONE - self.hazards.coverage(), decodes) as u64;
        let with = ONE as u64 - without;
        if depth == 0 || without == 0 || with == 0 {
            return moment.costs.sized_ns(&size);
        }
        let most = most_drafts(depth, decodes, moment);
        let drafts = u128::from(most) * self.fill as u128 / u128::from(with);
        let drafts = u32::try_from(drafts.min(most.into())).unwrap_or(u32::MAX);
        let of = |drafts| {
            let tokens = decodes.saturating_add(drafts);
            moment.costs.sized_ns(&StepSize { tokens, ..size })
        };
        let [none, some] = [of(0)?, of(drafts)?].map(u128::from);
        let mean = (none * u128::from(without) + some * u128::from(with)) >> 16;
        u64::try_from(mean).ok()
    }

    /// Returns the size of a step of `decodes` rows at a depth.
    fn size(&self, depth: u32, decodes: u32, moment: &Moment<'_>) -> StepSize {
        let rows = u64::from(decodes);
        let drafts = u128::from(most_drafts(depth, decodes, moment));
        let drafts = (drafts * self.fill as u128 + (1 << 15)) >> 16;
        let taken = (rows * row_tokens(&self.tokens, depth) as u64) >> 16;
        let whole = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let tokens = whole(rows.saturating_add(u64::try_from(drafts).unwrap_or(u64::MAX)));
        StepSize {
            decodes,
            depth,
            tokens,
            loads: moment.loads,
            taken: whole(taken),
        }
    }

    fn score(&self, depth: u32, moment: &Moment<'_>) -> Option<Score> {
        self.rate(depth, &self.tokens, moment)
    }

    fn rate(&self, depth: u32, tokens: &Tokens, moment: &Moment<'_>) -> Option<Score> {
        let ns = self.expected_ns(depth, moment.rows, moment)?;
        let rate = self.waits.rate(row_tokens(tokens, depth) as u64, ns);
        let rate = rate.min(1 << 46);
        Some(Score { depth, rate })
    }

    /// Returns the cost of going from the present depth to `depth`, in steps, in fixed point.
    fn cost_to_draft(&self, depth: u32, moment: &Moment<'_>) -> i64 {
        match (self.depth, depth) {
            (0, 1..) => self.resume.steps(moment.rows, self.step_us(moment)),
            _ => 0,
        }
    }

    /// Returns the expected microseconds of a step at the present depth.
    fn step_us(&self, moment: &Moment<'_>) -> u64 {
        let ns = self.expected_ns(self.depth, moment.rows, moment);
        ns.map_or(0, |ns| ns / 1000)
    }

    fn tell(&mut self, moment: &Moment<'_>) {
        self.outlook.step_us = u32::try_from(self.step_us(moment)).unwrap_or(u32::MAX);
        for (at, value) in self.outlook.acceptance.iter_mut().enumerate() {
            *value = u32::try_from(self.hazards.hazard(at)).unwrap_or(0);
        }
    }
}
