//! Comparison of steps without drafts with the steps with drafts right before or after them.

use super::mul_div;

/// One in fixed point with 16 binary places.
const ONE: u64 = 1 << 16;
/// Inverse of a step's weight in the pace.
const RATE: i64 = 16;
/// Steps after a change of depth that are compared with the steps before it: the least and the
/// greatest number.
const LEAST_STEPS: u64 = 4;
const MOST_STEPS: u64 = 16;
/// Nanoseconds after a change of depth in which steps are not compared, unless a step takes
/// longer than this: the caches still hold weights of the depth before.
const SETTLES_NS: u64 = 2_000_000;
/// Divisor of the difference up to which sizes count as equal: at most an eighth.
const SAME: u32 = 8;

/// Compares passes without drafts with passes with drafts, when one kind follows the other.
///
/// Other programs on a machine slow all steps alike, for seconds. But a time measured before
/// serving may be wrong for one size alone. Suppose passes without drafts take 0.75 of their
/// expected time, and passes with drafts right after them take all of theirs. Then the times of
/// the former were measured a third too long relative to the latter, whatever other programs
/// do.
#[derive(Debug, Clone)]
pub(super) struct Contrast {
    /// Steps at the present depth, and those at the depth before.
    now: Stint,
    before: Stint,
}

/// Consecutive steps at one depth.
#[derive(Debug, Clone, Copy)]
struct Stint {
    depth: u32,
    /// Nanoseconds of the first steps, until steps are compared.
    settled_ns: u64,
    /// The least and the most tokens of the compared passes.
    sizes: (u32, u32),
    /// Number of compared steps, and sum of the parts of the expected time that the first ones
    /// took.
    steps: u64,
    took: u64,
    /// Part of the expected time that the last steps took, in fixed point.
    pace: u64,
}

/// Result of a comparison of steps without drafts with steps with drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    /// Tokens of a pass without drafts.
    pub size: u32,
    /// Part of the expected time that passes without drafts took, divided by the same part for
    /// passes with drafts; in fixed point.
    pub relative: u64,
    /// Number of compared steps at the newer depth.
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
            // A batch changes its size slowly, so the size of the last steps counts.
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

    /// Returns true if there are enough steps, all of about one size.
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

    /// Takes in a pass of `size` tokens that took `took` nanoseconds, where `expected` were
    /// expected. Returns the result of the last change of depth, once.
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
        // No step may count for far more than the steps before it.
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

    /// Scales the remembered times of passes without drafts, because their expected time was
    /// multiplied by `factor`.
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
        // A drafter that finds nothing makes passes like those without drafts.
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

    /// Nanoseconds of a hundredth of the expected time: steps are long enough to be compared
    /// from the first one on.
    const PART: u64 = 40_000;

    /// Returns the results for passes, each `(depth, size, took of 100 expected, times)`.
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
            // The change is compared both into drafting and out of it.
            let passes = [(0, 8, 75, 90), (2, 24, 100, times), (0, 8, 75, 1)];
            assert_eq!(shown(&passes), expected, "{times}");
            let passes = [(2, 24, 100, 90), (0, 8, 75, times), (2, 24, 100, 1)];
            assert_eq!(shown(&passes), expected, "{times}");
        }
        // Other programs slow both kinds alike.
        let passes = [(0, 8, 150, 20), (2, 24, 200, 8), (0, 8, 150, 1)];
        assert_eq!(shown(&passes), [three_quarters(8)]);
    }

    #[test]
    fn passes_that_differ_in_more_than_drafts_show_nothing() {
        for passes in [
            // Too few steps of one kind.
            [(0, 8, 75, 3), (2, 24, 100, 8), (0, 8, 75, 1)],
            [(0, 8, 75, 8), (2, 24, 100, 3), (0, 8, 75, 1)],
            // Both kinds have drafts.
            [(1, 16, 75, 8), (2, 24, 100, 8), (1, 16, 75, 1)],
            // Passes that are no larger show that drafters have found nothing.
            [(0, 8, 75, 8), (2, 8, 100, 8), (0, 8, 75, 1)],
            // The batch grows.
            [(0, 8, 75, 8), (0, 10, 75, 1), (2, 24, 100, 8)],
            [(0, 8, 75, 8), (2, 24, 100, 4), (2, 28, 100, 4)],
        ] {
            let next = [(3, 40, 100, 1)];
            assert_eq!(shown(&[&passes[..], &next].concat()), [], "{passes:?}");
        }
        // The batch may have grown before: the size of the last steps counts.
        let passes = [
            (0, 6, 75, 20),
            (0, 8, 75, 1),
            (2, 24, 100, 8),
            (0, 8, 75, 1),
        ];
        assert_eq!(shown(&passes).len(), 1);
    }

    /// Steps of half a millisecond. The first two take twice as long without drafts.
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
