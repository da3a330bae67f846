//! The fastest of several ways to go through memory.

use std::fmt::Display;
use std::ops::Range;

use super::{Measured, ROUNDS};
use crate::partition::{Shared, share};
use crate::pool::Pool;

/// A cache line, the unit of exchange between cache and memory.
pub(super) type Line = [u64; 8];

/// Parts of the memory for trials, one after another: each way is tried on all parts, and
/// finds no part in a cache.
pub(super) const TRIALS: usize = 3;
/// Ways that are measured again after the trial.
const FINALISTS: usize = 3;

/// Tries each way on thirds of `lines` lines, then measures the most promising ones
/// alternately on all lines. `rate` gives bytes per second over a range of lines.
pub(super) fn fastest<W: Copy + Display>(
    ways: &[W],
    lines: usize,
    mut rate: impl FnMut(W, Range<usize>) -> f64,
) -> Measured {
    let mut tried: Vec<(f64, W)> = Vec::new();
    for &way in ways {
        let trial = |trial| rate(way, share(lines, TRIALS, trial));
        let rates = (0..TRIALS).map(trial).collect();
        tried.push((Measured::of(rates, "").median, way));
    }
    tried.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let finalists = tried.into_iter().take(FINALISTS).map(|(_, way)| way);
    let mut measured: Vec<(W, Vec<f64>)> = finalists.map(|way| (way, Vec::new())).collect();
    for _ in 0..ROUNDS {
        for (way, rates) in &mut measured {
            rates.push(rate(*way, 0..lines));
        }
    }
    measured
        .into_iter()
        .map(|(way, rates)| Measured::of(rates, way.to_string()))
        .max_by(|a, b| a.median.total_cmp(&b.median))
        .expect("there is a way")
}

/// Writes to every page: until they are written, all pages are one page of zeros.
pub(super) fn touch(pool: &mut Pool, memory: &mut [Line]) {
    let threads = pool.threads();
    let lines = memory.len();
    let shared = Shared::new(memory);
    pool.run(|thread| {
        // SAFETY: the threads' shares are disjoint.
        let part = unsafe { shared.slice(share(lines, threads, thread)) };
        for (index, line) in part.iter_mut().enumerate() {
            line[0] = index as u64;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_way_is_measured_on_everything() {
        // Here the number of a way is its speed.
        let mut whole = Vec::new();
        let measured = fastest(&[3, 9, 1, 7, 5], 30, |way, part| {
            if part == (0..30) {
                whole.push(way);
            }
            f64::from(way)
        });
        assert_eq!((measured.median, measured.method.as_str()), (9.0, "9"));
        assert_eq!(whole, [9, 7, 5].repeat(ROUNDS));
    }
}
