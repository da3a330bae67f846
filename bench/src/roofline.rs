//! The roofline bound: work takes at least as long as its bytes take to read,
//! and at least as long as its operations take to do (Williams, Waterman &
//! Patterson, CACM 52(4), 2009).

mod measured;

pub use measured::{Drift, Traffic, measure, working_set};

use serde_json::{Value, json};

/// Amount of some work.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Bytes that memory has to deliver.
    pub bytes: f64,
    /// Multiplications and additions.
    pub operations: f64,
}

/// Amounts that the machine can do in a second. `None` is no limit: for work with bytes that
/// lie in a cache, or without multiplications.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceiling {
    /// Bytes read.
    pub bandwidth: Option<f64>,
    /// Operations.
    pub peak: Option<f64>,
}

/// Parts of the machine's limits that some work reached, 1 at the limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reached {
    /// Part of the bandwidth.
    pub bandwidth: Option<f64>,
    /// Part of the arithmetic.
    pub compute: Option<f64>,
    /// Part of the limit that binds: the bound's time over the time taken.
    pub limit: Option<f64>,
}

impl Ceiling {
    /// No known limit.
    pub const NONE: Self = Self {
        bandwidth: None,
        peak: None,
    };

    /// Parts of the limits that work of `seconds` seconds reached.
    pub fn reached(&self, work: Work, seconds: f64) -> Reached {
        let part = |amount: f64, limit: Option<f64>| {
            limit
                .filter(|limit| *limit > 0.0 && seconds > 0.0)
                .map(|limit| amount / limit / seconds)
                .filter(|_| amount > 0.0)
        };
        let bandwidth = part(work.bytes, self.bandwidth);
        let compute = part(work.operations, self.peak);
        let limit = match (bandwidth, compute) {
            (Some(bandwidth), Some(compute)) => Some(bandwidth.max(compute)),
            (one, other) => one.or(other),
        };
        Reached {
            bandwidth,
            compute,
            limit,
        }
    }
}

impl Reached {
    /// Returns true if more was reached than is possible: the limits were measured while
    /// something else held this machine up.
    pub fn is_beyond(&self) -> bool {
        self.limit.is_some_and(|part| part > 1.0)
    }

    /// Column names of [`Self::cells`].
    pub const COLUMNS: [&'static str; 3] = ["of bandwidth", "of compute", "of limit"];

    /// The parts as cells of a table.
    pub fn cells(&self) -> [Value; 3] {
        [self.bandwidth, self.compute, self.limit].map(|part| json!(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_time_binds() {
        let all = (Some(10.0), Some(100.0));
        // bytes, operations, seconds; limits; bandwidth, compute, limit.
        let table = [
            ((10.0, 10.0, 1.0), all, (Some(1.0), Some(0.1), Some(1.0))),
            ((10.0, 200.0, 4.0), all, (Some(0.25), Some(0.5), Some(0.5))),
            ((10.0, 0.0, 2.0), all, (Some(0.5), None, Some(0.5))),
            ((0.0, 100.0, 2.0), all, (None, Some(0.5), Some(0.5))),
            (
                (10.0, 50.0, 1.0),
                (None, Some(100.0)),
                (None, Some(0.5), Some(0.5)),
            ),
            ((10.0, 50.0, 1.0), (None, None), (None, None, None)),
            ((10.0, 50.0, 0.0), all, (None, None, None)),
        ];
        for ((bytes, operations, seconds), (bandwidth, peak), wanted) in table {
            let ceiling = Ceiling { bandwidth, peak };
            let reached = ceiling.reached(Work { bytes, operations }, seconds);
            let found = (reached.bandwidth, reached.compute, reached.limit);
            assert_eq!(
                found, wanted,
                "{bytes} bytes, {operations} operations in {seconds} s"
            );
        }
    }

    #[test]
    fn nothing_is_faster_than_its_limit() {
        let ceiling = |peak| Ceiling {
            bandwidth: None,
            peak,
        };
        let work = Work {
            bytes: 0.0,
            operations: 100.0,
        };
        for (peak, beyond) in [(Some(99.0), true), (Some(100.0), false), (None, false)] {
            assert_eq!(
                ceiling(peak).reached(work, 1.0).is_beyond(),
                beyond,
                "{peak:?}"
            );
        }
    }

    #[test]
    fn what_binds_nothing_is_null() {
        let ceiling = Ceiling {
            bandwidth: None,
            peak: Some(2.0),
        };
        let reached = ceiling.reached(
            Work {
                bytes: 1.0,
                operations: 1.0,
            },
            1.0,
        );
        assert_eq!(reached.cells(), [Value::Null, json!(0.5), json!(0.5)]);
    }
}
