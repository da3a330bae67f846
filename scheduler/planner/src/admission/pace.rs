//! Estimate of the time after which a refused client should try again.

use std::collections::VecDeque;

const WINDOW: usize = 32;
const LONGEST_S: u64 = 60;

/// Times at which the last requests left the queue, milliseconds.
#[derive(Debug, Default)]
pub(super) struct AdmissionPace(VecDeque<u64>);

impl AdmissionPace {
    pub fn record(&mut self, now: u64) {
        if self.0.len() == WINDOW {
            self.0.pop_front();
        }
        self.0.push_back(now);
    }

    /// Returns the seconds until about `places` requests have left the queue, from the pace of
    /// the last ones. If the queue has stood still for longer than that pace, the time of
    /// standing still counts.
    pub fn seconds_for(&self, places: u64, now: u64) -> u32 {
        let (Some(first), Some(last)) = (self.0.front(), self.0.back()) else {
            return 1;
        };
        let gaps = (self.0.len() as u64 - 1).max(1);
        let pace = (last - first).div_ceil(gaps);
        let pace = pace.max(now.saturating_sub(*last));
        let seconds = pace
            .saturating_mul(places)
            .div_ceil(1000)
            .clamp(1, LONGEST_S);
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_pace() {
        let mut rate = AdmissionPace::default();
        assert_eq!(rate.seconds_for(5, 0), 1);
        for at in 0..40 {
            rate.record(at * 500);
        }
        assert_eq!(rate.seconds_for(1, 39 * 500), 1);
        assert_eq!(rate.seconds_for(10, 39 * 500), 5);
        assert_eq!(rate.seconds_for(1, 39 * 500 + 7000), 7);
        assert_eq!(rate.seconds_for(1_000_000, 39 * 500), 60);
    }
}
