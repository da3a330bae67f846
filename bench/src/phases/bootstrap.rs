//! Intervals of ratios, by resampling whole repetitions.

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

/// Resamples.
const DRAWS: usize = 10_000;

/// A value and the interval that has 95 % of its resamples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Of the repetitions as they were.
    pub value: f64,
    /// The 2.5th and the 97.5th percentile; `None` with less than two repetitions.
    pub interval: Option<(f64, f64)>,
}

/// Paired bootstrap (Efron, 1979): `value` of the repetitions that are named by
/// index, again and again of as many drawn from `repetitions` with replacement.
/// The arms of a repetition stay together, so that a machine that drifts does
/// not widen the interval. Equal data give equal intervals.
pub fn paired(
    repetitions: usize,
    value: impl Fn(&mut dyn Iterator<Item = usize>) -> Option<f64>,
) -> Option<Estimate> {
    let whole = value(&mut (0..repetitions))?;
    if repetitions < 2 {
        return Some(Estimate {
            value: whole,
            interval: None,
        });
    }
    let mut rng = StdRng::seed_from_u64(12);
    let mut drawn = Vec::with_capacity(repetitions);
    let mut values: Vec<f64> = (0..DRAWS)
        .filter_map(|_| {
            drawn.clear();
            drawn.extend((0..repetitions).map(|_| rng.random_range(0..repetitions)));
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
        paired(one.len(), |repetitions| {
            let (mut above, mut below) = (0.0, 0.0);
            for at in repetitions {
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
    fn the_interval_holds_the_value_and_narrows_with_repetitions() {
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
    fn one_repetition_has_no_interval() {
        let found = ratio(&[3.0], &[2.0]);
        let alone = Estimate {
            value: 1.5,
            interval: None,
        };
        assert_eq!(found, Some(alone));
        assert_eq!(paired(3, |_| None), None);
    }
}
