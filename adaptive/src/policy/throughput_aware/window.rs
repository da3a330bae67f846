//! Acceptance by position over the last batches.

use super::Seen;
use crate::{Digest, POSITIONS};

/// One in fixed point with 30 binary places.
pub(super) const ONE: u64 = 1 << 30;
/// SGLang's `PositionAcceptanceTracker`: for each position, the share of requests that accepted
/// it, in each of the last batches that drafted so deep.
#[derive(Debug)]
pub(super) struct Windows {
    /// Batches in a window.
    size: usize,
    /// Shares, the windows of all positions one after the other.
    shares: Vec<u32>,
    /// By position: index of the next share, and number of shares.
    next: [usize; POSITIONS],
    count: [usize; POSITIONS],
}

impl Windows {
    pub fn new(size: u32) -> Self {
        let size = size.max(1) as usize;
        Self {
            size,
            shares: vec![0; size * POSITIONS],
            next: [0; POSITIONS],
            count: [0; POSITIONS],
        }
    }

    /// Adds a batch that decoded at least one row. Rows with forced drafts are left out.
    pub fn push(&mut self, seen: &Seen) {
        let rows = seen.telling();
        if rows == 0 {
            return;
        }
        for at in 0..(seen.depth as usize).min(POSITIONS) {
            let accepted = u64::from(seen.accepted[at].min(rows));
            let share = accepted * ONE / u64::from(rows);
            let next = self.next[at];
            self.shares[at * self.size + next] = u32::try_from(share).unwrap_or(u32::MAX);
            self.next[at] = (next + 1) % self.size;
            self.count[at] = (self.count[at] + 1).min(self.size);
        }
    }

    /// Forgets positions from `depth` on.
    pub fn clear_from(&mut self, depth: u32) {
        for at in (depth as usize).min(POSITIONS)..POSITIONS {
            self.next[at] = 0;
            self.count[at] = 0;
        }
    }

    /// Returns true if all positions of `depth` have full windows.
    pub fn full(&self, depth: u32) -> bool {
        let positions = (depth as usize).min(POSITIONS);
        self.count[..positions]
            .iter()
            .all(|count| *count == self.size)
    }

    /// Returns the mean of a position's window.
    pub fn rate(&self, at: usize) -> Option<u64> {
        let count = self.count[at];
        let from = at * self.size;
        let sum: u64 = self.shares[from..from + count]
            .iter()
            .map(|share| u64::from(*share))
            .sum();
        (count > 0).then(|| sum / count as u64)
    }

    /// Returns `1 + Σ p`, in units of [`ONE`]; `None` for depth 0, or before anything was seen.
    /// A position that was not seen yet continues the positions before it geometrically. With
    /// `n` known positions the ratio is `(p_last / p_first)^(1/(n − 1))`, never above 1.
    pub fn expected_tokens(&self, depth: u32) -> Option<u64> {
        if depth == 0 {
            return None;
        }
        let mut sum = ONE;
        let (mut first, mut last) = (0, 0);
        for at in 0..(depth as usize).min(POSITIONS) {
            let rate = match (self.rate(at), at) {
                (Some(rate), _) => rate,
                (None, 0) => return None,
                (None, 1) => first,
                (None, _) if first == 0 => 0,
                (None, _) => {
                    let ratio = root((last * ONE / first).min(ONE), at as u32 - 1);
                    last * ratio / ONE
                }
            };
            if at == 0 {
                first = rate;
            }
            last = rate;
            sum += rate;
        }
        Some(sum)
    }

    pub fn digest(&self, digest: &mut Digest) {
        for (next, count) in self.next.iter().zip(&self.count) {
            digest.word(*next as u64);
            digest.word(*count as u64);
        }
        digest.list(&self.shares);
    }
}

/// Returns the greatest number whose `power`-th power is not above `value`. Both are in units
/// of [`ONE`], and at most that.
fn root(value: u64, power: u32) -> u64 {
    let raised =
        |number: u64| (1..power).fold(number, |product, _| (product * number).div_ceil(ONE));
    let (mut least, mut most) = (0, ONE);
    while least < most {
        let middle = (least + most).div_ceil(2);
        if raised(middle) <= value {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_those_of_powers() {
        for (value, power, expected) in [
            (ONE, 3, ONE),
            (ONE / 4, 2, ONE / 2),
            (ONE / 8, 3, ONE / 2),
            (ONE * 3 / 4, 1, ONE * 3 / 4),
            (0, 5, 0),
        ] {
            assert!(
                root(value, power).abs_diff(expected) <= 8,
                "{value} {power}"
            );
        }
    }
}
