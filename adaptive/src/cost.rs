//! Time of a step, by its size.

use crate::{AdaptiveConfig, Seen};

mod contrast;
mod curve;
#[cfg(test)]
mod tests;
mod uneven;

pub use uneven::Loads;

use contrast::Contrast;
use curve::Curve;

/// Time of a step as a function of its size, measured before serving and corrected while
/// serving.
///
/// The time is `draft + verify + extend`, each a monotone curve. Drafting is a curve over rows,
/// once for the first draft step and once for each later one. A head's first draft comes from
/// features that are there already, and each later one takes a pass. Verification is a curve
/// over the tokens of the pass. The drafter's work after the pass is a curve over the tokens
/// that it takes in. In steps without drafts the drafter's part is a curve over rows of its
/// own, near zero.
///
/// The rank with most rows counts, since all ranks wait for it. The evenness of the tokens over
/// the ranks changes the [pass](Loads). Without steps measured before serving, curves begin
/// empty and are learnt from the steps that are seen.
#[derive(Debug, Clone)]
pub struct Costs {
    /// Depth and tokens of a row's verification.
    tiers: Vec<(u32, u32)>,
    idle: Curve,
    first: Curve,
    later: Curve,
    verify: Curve,
    extend: Curve,
    contrast: Contrast,
}

/// Size of a step on the rank that has most to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSize {
    /// Rows that decode.
    pub decodes: u32,
    /// Draft steps.
    pub depth: u32,
    /// Tokens of the pass.
    pub tokens: u32,
    /// Evenness of all ranks' tokens over the ranks.
    pub loads: Loads,
    /// Tokens that the drafter takes in afterwards.
    pub taken: u32,
}

impl Costs {
    /// Makes the curves from steps measured before serving, joined over all ranks.
    pub fn new(config: &AdaptiveConfig, profile: &[Seen]) -> Self {
        let pure = || profile.iter().filter(|seen| seen.is_decode());
        let of_depth = |depth: u32| pure().filter(move |seen| seen.depth == depth);
        let (first, later) = drafting(&pure().copied().collect::<Vec<_>>());
        let drafted = || pure().filter(|seen| seen.depth > 0);
        Self {
            tiers: config
                .tiers
                .iter()
                .map(|tier| (tier.depth, tier.tokens))
                .collect(),
            idle: Curve::new(of_depth(0).map(|seen| (seen.decodes, drafter_ns(seen)))),
            verify: Curve::new(pure().map(|seen| (seen.tokens, ns(seen.verify_us)))),
            extend: Curve::new(drafted().map(|seen| (seen.taken(), ns(seen.extend_us)))),
            first,
            later,
            contrast: Contrast::new(),
        }
    }

    /// Corrects the curves by the times of a step, whose tokens lay on the ranks as `loads`
    /// says. Steps with prompts or without decode rows are ignored.
    pub fn correct(&mut self, seen: &Seen, loads: Loads) {
        if !seen.is_decode() {
            return;
        }
        let seen = &self.evened(seen, loads);
        if seen.forced_rows > 0 {
            // The drafter may have run for fewer rows, so its time says nothing of all of them.
            let pass = ns(seen.verify_us);
            return self.verify.correct(seen.tokens, pass, pass);
        }
        let all = ns(seen.verify_us).saturating_add(drafter_ns(seen));
        self.prove(seen, all);
        self.verify.correct(seen.tokens, ns(seen.verify_us), all);
        if let Some(expected) = self.verify.measured_at(seen.tokens) {
            let pass = ns(seen.verify_us);
            let shown = self
                .contrast
                .observe(seen.depth, seen.tokens, pass, expected);
            if let Some(shown) = shown {
                let factor = self.verify.reshape(shown);
                self.contrast.corrected(factor);
            }
        }
        if seen.depth == 0 {
            return self.idle.correct(seen.decodes, drafter_ns(seen), all);
        }
        self.extend.correct(seen.taken(), ns(seen.extend_us), all);
        let [first, later] = self.shares(seen);
        self.first.correct(seen.decodes, first, all);
        if seen.depth > 1 {
            self.later.correct(seen.decodes, later, all);
        }
    }

    /// Compares times measured before serving with the first steps of a size. If those steps
    /// show that other programs spoilt a measured time, the times measured beside it were
    /// spoilt too. They are corrected by the same factor, unless steps have proved them. If the
    /// pass was spoilt, these are all times of the drafter; if drafting was, the times of
    /// drafting and of the work after the pass.
    fn prove(&mut self, seen: &Seen, all: u64) {
        if let Some(ratio) = self.verify.prove(seen.tokens, ns(seen.verify_us), all) {
            // Comparisons with the old times say nothing of the new ones.
            self.contrast = Contrast::new();
            self.idle.follow(ratio);
            self.first.follow(ratio);
            self.later.follow(ratio);
            self.extend.follow(ratio);
        }
        if seen.depth == 0 {
            self.idle.prove(seen.decodes, drafter_ns(seen), all);
            return;
        }
        self.extend.prove(seen.taken(), ns(seen.extend_us), all);
        let [first, later] = self.shares(seen);
        // Drafting counts if all of it is a large enough part of the step, even if one draft
        // step is not.
        let part = |took| mul_div(all, took, ns(seen.draft_us).max(1));
        let ratio = match seen.depth {
            1 => self.first.prove(seen.decodes, first, part(first)),
            _ => self.later.prove(seen.decodes, later, part(later)),
        };
        if let Some(ratio) = ratio {
            self.first.follow(ratio);
            self.later.follow(ratio);
            self.extend.follow(ratio);
        }
    }

    /// Returns the times of the first draft step and of each later one in a step. The drafting
    /// time is divided in proportion to the expected times, or equally if nothing is known yet.
    fn shares(&self, seen: &Seen) -> [u64; 2] {
        let took = ns(seen.draft_us);
        let first = self.first.at(seen.decodes);
        let later = self.later.at(seen.decodes);
        let share = |part: Option<u64>| match (part, draft_ns(first, later, seen.depth)) {
            (Some(part), Some(all)) => mul_div(took, part, all),
            _ => took / u64::from(seen.depth.max(1)),
        };
        [share(first), share(later)]
    }

    /// Returns the nanoseconds of a step in which `decodes` rows draft `depth` deep and nothing
    /// else runs; `None` if nothing is known.
    pub fn step_ns(&self, decodes: u32, depth: u32) -> Option<u64> {
        self.sized_ns(&self.size(decodes, depth))
    }

    /// Returns [`Self::step_ns`] as it was measured before serving.
    pub fn profiled_step_ns(&self, decodes: u32, depth: u32) -> Option<u64> {
        self.sum(&self.size(decodes, depth), Curve::before)
    }

    /// Returns the nanoseconds of a step of any size.
    pub fn sized_ns(&self, size: &StepSize) -> Option<u64> {
        self.sum(size, Curve::at)
    }

    /// Returns true if steps of about this size have been seen, before serving or since.
    pub fn knows(&self, size: &StepSize) -> bool {
        let drafts = size.depth == 0 || self.first.knows(size.decodes);
        drafts && self.verify.knows(size.loads.even(size.tokens))
    }

    /// Returns true if steps of this depth and about this many rows have run while serving.
    /// Also true if nothing was measured before that they could prove wrong.
    pub fn is_proven(&self, size: &StepSize) -> bool {
        match size.depth {
            0 => true,
            1 => self.first.is_proven(size.decodes),
            _ => self.later.is_proven(size.decodes),
        }
    }

    /// Returns the shortest nanoseconds that a step may take, if its drafts did not run while
    /// serving: the times measured before may be far too long. Drafts may take almost no time.
    /// A pass that did not run either may take half of its measured time; passes of smaller
    /// sizes bound that.
    pub fn hoped_ns(&self, size: &StepSize) -> Option<u64> {
        let pass = self.pass_ns(size.tokens, size.loads, Curve::at)?;
        let proven = self.verify.is_proven(size.loads.even(size.tokens));
        Some(if proven { pass } else { pass / 2 })
    }

    /// Returns the tokens of one row's verification at `depth`.
    pub fn row_tokens(&self, depth: u32) -> u32 {
        let tier = self.tiers.iter().find(|tier| tier.0 == depth);
        tier.map_or(depth.saturating_add(1), |tier| tier.1)
    }

    /// Returns the size of a step in which all rows draft as deep as they may and nothing is
    /// accepted. A profile before serving measures such steps.
    fn size(&self, decodes: u32, depth: u32) -> StepSize {
        StepSize {
            decodes,
            depth,
            tokens: decodes.saturating_mul(self.row_tokens(depth)),
            loads: Loads::EVEN,
            taken: decodes,
        }
    }

    fn sum(&self, size: &StepSize, at: impl Fn(&Curve, u32) -> Option<u64>) -> Option<u64> {
        let verify = self.pass_ns(size.tokens, size.loads, &at)?;
        if size.depth == 0 {
            // Before the drafter's part was seen, it counts as nothing.
            let idle = at(&self.idle, size.decodes).unwrap_or(0);
            return Some(verify.saturating_add(idle));
        }
        let first = at(&self.first, size.decodes);
        let draft = draft_ns(first, at(&self.later, size.decodes), size.depth)?;
        let extend = at(&self.extend, size.taken)?;
        Some(verify.saturating_add(draft).saturating_add(extend))
    }
}

/// Makes the curves of the first draft step and of each later one over rows, from steps
/// measured before serving. More rows or a deeper chain draft no faster, so a time longer than
/// that of a larger step was spoilt by other programs.
fn drafting(measured: &[Seen]) -> (Curve, Curve) {
    let drafted = || measured.iter().filter(|seen| seen.depth > 0);
    let least = |decodes: u32, depth: u32| {
        let larger = drafted().filter(|seen| seen.decodes >= decodes && seen.depth >= depth);
        larger.map(|seen| ns(seen.draft_us)).min()
    };
    let draft = |seen: &Seen| least(seen.decodes, seen.depth).unwrap_or(0);
    let of_depth = |depth: u32| drafted().filter(move |seen| seen.depth == depth);
    let first = Curve::new(of_depth(1).map(|seen| {
        // If one draft step took longer than two, it is taken for half of the two.
        let two = least(seen.decodes, 2).unwrap_or(u64::MAX);
        let spoilt = ns(seen.draft_us) > two.saturating_mul(9) / 8;
        (seen.decodes, if spoilt { two / 2 } else { draft(seen) })
    }));
    let deeper = || drafted().filter(|seen| seen.depth > 1);
    let later = Curve::new(deeper().map(|seen| {
        let begun = first.at(seen.decodes);
        let (mut more, mut steps, mut most) = (0, 0, u64::MAX);
        for same in deeper().filter(|same| same.decodes == seen.decodes) {
            let each = u64::from(same.depth - 1);
            more += draft(same).saturating_sub(begun.unwrap_or(0));
            steps += each + u64::from(begun.is_none());
            most = most.min(draft(same) / each);
        }
        (seen.decodes, (more / steps.max(1)).min(most))
    }));
    match (of_depth(1).next(), deeper().next()) {
        (Some(_), None) => (first.clone(), first),
        (None, Some(_)) => (later.clone(), later),
        _ => (first, later),
    }
}

/// Returns the time of all draft steps, from the time of the first one and of each later one.
fn draft_ns(first: Option<u64>, later: Option<u64>, depth: u32) -> Option<u64> {
    let first = first?;
    let more = u64::from(depth.saturating_sub(1));
    Some(first.saturating_add(later.unwrap_or(first).saturating_mul(more)))
}

fn drafter_ns(seen: &Seen) -> u64 {
    ns(seen.draft_us).saturating_add(ns(seen.extend_us))
}

fn ns(us: u32) -> u64 {
    u64::from(us) * 1000
}

/// Returns `value · factor / divisor` without overflow.
fn mul_div(value: u64, factor: u64, divisor: u64) -> u64 {
    let product = u128::from(value) * u128::from(factor) / u128::from(divisor.max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}
