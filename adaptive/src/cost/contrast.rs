//! Comparison of steps without drafts with those that ran just before or behind them.

use super::mul_div;

/// One in fixed point with 16 binary places.
const ONE: u64 = 1 << 16;
/// A step goes into the pace by one part in so many.
const RATE: i64 = 16;
/// Steps after a change of depth that are compared with those before it, at the least and
/// at the most.
const LEAST_STEPS: u64 = 4;
const MOST_STEPS: u64 = 16;
/// Nanoseconds after a change of depth of which no shorter step is compared: weights of the
/// depth before are still in the caches, in place of others.
const SETTLES_NS: u64 = 2_000_000;
/// Sizes that are this much of one another are one.
const SAME: u32 = 8;

/// Compares passes without drafts with those that have some, where one follows the other.
///
/// Neighbours on a machine slow all steps alike, for seconds, and a time measured before
/// serving may be wrong of one size alone. If passes without drafts took 0.75 of
/// what was expected of them, and passes with drafts right behind them take all of it,
/// then the former were measured a third too long beside the latter, whatever others do.
#[derive(Debug, Clone)]
pub(super) struct Contrast {
    /// The steps that run at one depth now, and those before them.
    now: Stint,
    before: Stint,
}

/// Steps at one depth.
#[derive(Debug, Clone, Copy)]
struct Stint {
    depth: u32,
    /// Nanoseconds of its first steps, until they are compared.
    settled_ns: u64,
    /// The least and the most tokens of their passes, but for steps that are not compared.
    sizes: (u32, u32),
    /// Their number, and the sum of what the first ones took of what was expected.
    steps: u64,
    took: u64,
    /// Part of the expected time that the last ones took, in fixed point.
    pace: u64,
}

/// Result of a comparison: steps without drafts beside steps with some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    /// Tokens of the former.
    pub size: u32,
    /// Part of the expected time that they took, over the same of the latter; in fixed point.
    pub relative: u64,
    /// Number of steps at the changed depth that show it.
    pub steps: u64,
}

impl Stint {
    fn new(depth: u32) -> Self {
        Self {
            depth,
            settled_ns: 0,
            sizes: (u32::MAX, 0),
            steps: 0,
            took: 0,
            pace: 0,
        }
    }

    fn add(&mut self, size: u32, ratio: u64) {
        self.steps += 1;
        let (least, most) = self.sizes;
        self.sizes = match self.steps {
            ..=MOST_STEPS => (least.min(size), most.max(size)),
            // A batch changes its size slowly: that of the last steps counts.
            _ => (size, size),
        };
        if self.steps <= MOST_STEPS {
            self.took += ratio;
            self.pace = self.took / self.steps;
        } else {
            let change = (ratio as i64 - self.pace as i64) / RATE;
            self.pace = self.pace.saturating_add_signed(change).max(1);
        }
    }

    /// True where its steps were enough, and all of about one size.
    fn is_sound(&self) -> bool {
        let (least, most) = self.sizes;
        self.steps >= LEAST_STEPS && most - least <= least / SAME
    }
}

impl Contrast {
    pub fn new() -> Self {
        Self {
            now: Stint::new(u32::MAX),
            before: Stint::new(u32::MAX),
        }
    }

    /// A step's pass of `size` tokens took so many nanoseconds where `expected` were; gives
    /// what the last change of depth has shown, once.
    pub fn observe(&mut self, depth: u32, size: u32, took: u64, expected: u64) -> Option<Shown> {
        let ratio = mul_div(took, ONE, expected).clamp(ONE / 4, ONE * 4);
        let mut shown = None;
        if depth != self.now.depth {
            if self.now.steps < MOST_STEPS {
                shown = self.compare();
            }
            self.before = std::mem::replace(&mut self.now, Stint::new(depth));
        }
        if took < SETTLES_NS && self.now.settled_ns < SETTLES_NS {
            self.now.settled_ns += took;
            return shown;
        }
        // No step counts for far more than those before it.
        let ratio = match self.before.pace {
            0 => ratio,
            pace => ratio.clamp(pace / 2, pace + pace / 2),
        };
        self.now.add(size, ratio);
        if self.now.steps == MOST_STEPS {
            shown = shown.or_else(|| self.compare());
        }
        shown
    }

    /// Scales what passes without drafts took, since the time expected of them was multiplied
    /// with `factor`.
    pub fn corrected(&mut self, factor: u64) {
        let stints = [&mut self.now, &mut self.before];
        for stint in stints.into_iter().filter(|stint| stint.depth == 0) {
            stint.took = mul_div(stint.took, ONE, factor);
            stint.pace = mul_div(stint.pace, ONE, factor);
        }
    }

    fn compare(&self) -> Option<Shown> {
        let (without, with) = match (self.now.depth, self.before.depth) {
            (0, 1..) => (&self.now, &self.before),
            (1.., 0) => (&self.before, &self.now),
            _ => return None,
        };
        // Drafters that find nothing make passes like those without drafts.
        let differ = with.sizes.0 > without.sizes.1;
        (differ && without.is_sound() && with.is_sound()).then(|| Shown {
            size: without.sizes.1,
            relative: mul_div(without.pace, ONE, with.pace),
            steps: self.now.steps.min(MOST_STEPS),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nanoseconds of a hundredth of what is expected: steps are long enough to be compared
    /// from the first one on.
    const PART: u64 = 40_000;

    /// Results of passes, each `(depth, size, took of 100 expected)` and how often.
    fn shown(passes: &[(u32, u32, u64, usize)]) -> Vec<Shown> {
        let mut contrast = Contrast::new();
        let all = passes.iter();
        let all =
            all.flat_map(|(depth, size, took, times)| vec![(*depth, *size, *took * PART); *times]);
        all.filter_map(|(depth, size, took)| contrast.observe(depth, size, took, 100 * PART))
            .collect()
    }

    #[test]
    fn a_change_of_depth_shows_how_passes_without_drafts_compare() {
        let three_quarters = |steps| Shown {
            size: 8,
            relative: ONE * 3 / 4,
            steps,
        };
        for (times, steps) in [(4, vec![4]), (15, vec![15]), (16, vec![16]), (90, vec![16])] {
            let expected: Vec<_> = steps.into_iter().map(three_quarters).collect();
            // Twice: into drafting, and out of it.
            let passes = [(0, 8, 75, 90), (2, 24, 100, times), (0, 8, 75, 1)];
            assert_eq!(shown(&passes), expected, "{times}");
            let passes = [(2, 24, 100, 90), (0, 8, 75, times), (2, 24, 100, 1)];
            assert_eq!(shown(&passes), expected, "{times}");
        }
        // Others slow both alike.
        let passes = [(0, 8, 150, 20), (2, 24, 200, 8), (0, 8, 150, 1)];
        assert_eq!(shown(&passes), [three_quarters(8)]);
    }

    #[test]
    fn passes_that_differ_in_more_than_drafts_show_nothing() {
        for passes in [
            // Too few of either.
            [(0, 8, 75, 3), (2, 24, 100, 8), (0, 8, 75, 1)],
            [(0, 8, 75, 8), (2, 24, 100, 3), (0, 8, 75, 1)],
            // Both with drafts.
            [(1, 16, 75, 8), (2, 24, 100, 8), (1, 16, 75, 1)],
            // Of passes that are no larger drafters have found nothing.
            [(0, 8, 75, 8), (2, 8, 100, 8), (0, 8, 75, 1)],
            // A batch that grows.
            [(0, 8, 75, 8), (0, 10, 75, 1), (2, 24, 100, 8)],
            [(0, 8, 75, 8), (2, 24, 100, 4), (2, 28, 100, 4)],
        ] {
            let next = [(3, 40, 100, 1)];
            assert_eq!(shown(&[&passes[..], &next].concat()), [], "{passes:?}");
        }
        // It may have grown before: that of the last steps counts.
        let passes = [
            (0, 6, 75, 20),
            (0, 8, 75, 1),
            (2, 24, 100, 8),
            (0, 8, 75, 1),
        ];
        assert_eq!(shown(&passes).len(), 1);
    }

    /// Steps of half a millisecond, the first two of which take twice as long without drafts.
    #[test]
    fn short_steps_are_not_compared_until_caches_have_settled() {
        let mut contrast = Contrast::new();
        let mut shown = vec![];
        let steps = [
            (0, 8, 1_000, 2),
            (0, 8, 500, 8),
            (2, 24, 500, 4 + 7),
            (0, 8, 500, 1),
        ];
        for (depth, size, us, times) in steps {
            let result = (0..times).map(|_| contrast.observe(depth, size, us * 1_000, 500_000));
            shown.extend(result.flatten());
        }
        let shown: Vec<_> = shown
            .iter()
            .map(|shown| (shown.relative, shown.steps))
            .collect();
        assert_eq!(shown, [(ONE, 7)]);
    }

    #[test]
    fn a_corrected_time_is_corrected_in_what_is_compared_next() {
        let mut contrast = Contrast::new();
        let [most, all] = [75 * PART, 100 * PART];
        (0..8).for_each(|_| assert_eq!(contrast.observe(0, 8, most, all), None));
        contrast.corrected(ONE * 3 / 4);
        (0..8).for_each(|_| assert_eq!(contrast.observe(2, 24, all, all), None));
        let shown = contrast.observe(0, 8, most, most).unwrap();
        assert_eq!(shown.relative, ONE);
    }
}
