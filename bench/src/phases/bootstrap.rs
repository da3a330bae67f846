//! Intervals of ratios, by resampling slices of equal work.

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

/// Number of resamples.
const DRAWS: usize = 4_000;

/// A value and the interval with 95 % of its resamples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The value of all slices as they were measured.
    pub value: f64,
    /// The 2.5th and the 97.5th percentile; `None` where a phase has fewer than two slices.
    pub interval: Option<(f64, f64)>,
}

/// Paired bootstrap (Efron, 1979), stratified. Computes `value` of slices named by index,
/// again and again, each time with as many slices of each phase drawn with replacement.
/// `sizes` are the phases' numbers of slices; indices count through all phases. The arms of
/// a slice stay together, so that a machine that drifts does not widen the interval. Equal
/// data give equal intervals.
pub fn paired(
    sizes: &[usize],
    value: impl Fn(&mut dyn Iterator<Item = usize>) -> Option<f64>,
) -> Option<Estimate> {
    let count = sizes.iter().sum();
    let whole = value(&mut (0..count))?;
    if sizes.iter().any(|size| *size < 2) {
        return Some(Estimate {
            value: whole,
            interval: None,
        });
    }
    let mut rng = StdRng::seed_from_u64(12);
    let mut drawn = Vec::with_capacity(count);
    let mut values: Vec<f64> = (0..DRAWS)
        .filter_map(|_| {
            drawn.clear();
            let mut first = 0;
            for size in sizes {
                drawn.extend((0..*size).map(|_| first + rng.random_range(0..*size)));
                first += size;
            }
            value(&mut drawn.iter().copied())
        })
        .collect();
    values.sort_by(f64::total_cmp);
    let at = |part: f64| values.get((part * values.len() as f64) as usize).copied();
    Some(Estimate {
        value: whole,
        interval: at(0.025).zip(at(0.975)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(one: &[f64], other: &[f64]) -> Option<Estimate> {
        paired(&[one.len()], |slices| {
            let (mut above, mut below) = (0.0, 0.0);
            for at in slices {
                above += one[at];
                below += other[at];
            }
            Some(above / below)
        })
    }

    #[test]
    fn drift_that_both_share_does_not_widen_the_interval() {
        let slow = [10.0, 20.0, 40.0, 15.0, 30.0];
        let fast = slow.map(|seconds| seconds / 1.25);
        let found = ratio(&slow, &fast).expect("a ratio");
        assert_eq!(found.value, 1.25);
        assert_eq!(found.interval, Some((1.25, 1.25)));
    }

    #[test]
    fn the_interval_holds_the_value_and_narrows_with_slices() {
        let noisy = |count: usize| {
            let one: Vec<f64> = (0..count).map(|at| 10.0 + (at % 3) as f64).collect();
            let other: Vec<f64> = (0..count).map(|at| 8.0 + (at % 2) as f64).collect();
            ratio(&one, &other).expect("a ratio")
        };
        let widths = [6, 60].map(|count| {
            let Estimate { value, interval } = noisy(count);
            let (low, high) = interval.expect("an interval");
            assert!(low < value && value < high, "{low} {value} {high}");
            high - low
        });
        assert!(widths[1] < widths[0] / 2.0, "{widths:?}");
        assert_eq!(noisy(6), noisy(6));
    }

    #[test]
    fn one_slice_has_no_interval() {
        let found = ratio(&[3.0], &[2.0]);
        let alone = Estimate {
            value: 1.5,
            interval: None,
        };
        assert_eq!(found, Some(alone));
        assert_eq!(paired(&[3], |_| None), None);
    }

    #[test]
    fn phases_keep_their_part_of_the_slices() {
        // Two phases that differ much, with equal slices in each.
        let seconds = [1.0, 1.0, 1.0, 100.0, 100.0];
        let sum = |slices: &mut dyn Iterator<Item = usize>| slices.map(|at| seconds[at]).sum();
        let found = paired(&[3, 2], |slices| Some(sum(slices))).expect("a sum");
        assert_eq!((found.value, found.interval), (203.0, Some((203.0, 203.0))));
    }
}
