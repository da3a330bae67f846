//! Times of the steps timed so far, by batch size and depth.

use lockstep_adaptive::Seen;

/// Eighths by which two times may differ and still count as equal: up to 9/8.
const ALIKE: u64 = 9;

/// The shortest times of each batch size and depth. Other users of the machine make steps
/// longer, never shorter.
#[derive(Debug, Default)]
pub(super) struct Cells(Vec<Cell>);

#[derive(Debug)]
struct Cell {
    /// The shortest time of each part. Steps are equal, so parts of several steps make one.
    shortest: Seen,
    /// The shortest whole step, in microseconds; `second_us` is the second shortest.
    first_us: u64,
    second_us: u64,
}

/// Returns the microseconds of all timed parts of a step.
pub(super) fn total_us(seen: &Seen) -> u64 {
    let stages = [seen.draft_us, seen.verify_us, seen.extend_us];
    stages.into_iter().map(u64::from).sum()
}

impl Cells {
    /// Takes in one more step.
    pub fn take(&mut self, seen: Seen) {
        let us = total_us(&seen);
        let new = Cell {
            shortest: seen,
            first_us: us,
            second_us: u64::MAX,
        };
        let same = |cell: &&mut Cell| {
            (cell.shortest.decodes, cell.shortest.depth) == (seen.decodes, seen.depth)
        };
        let Some(cell) = self.0.iter_mut().find(same) else {
            return self.0.push(new);
        };
        let known = &mut cell.shortest;
        // The drafts of a step may depend on texts that the drafter has seen before.
        if (known.tokens, known.at_risk, known.accepted)
            != (seen.tokens, seen.at_risk, seen.accepted)
        {
            if us < cell.first_us {
                *cell = new;
            }
            return;
        }
        known.draft_us = known.draft_us.min(seen.draft_us);
        known.verify_us = known.verify_us.min(seen.verify_us);
        known.extend_us = known.extend_us.min(seen.extend_us);
        cell.second_us = cell.second_us.min(us.max(cell.first_us));
        cell.first_us = cell.first_us.min(us);
    }

    /// Returns the microseconds of one step of each size and depth.
    pub fn us(&self) -> u64 {
        self.0.iter().map(|cell| cell.first_us).sum()
    }

    /// Returns the batch sizes with doubtful times, ascending. A time is doubtful if no second
    /// step took as little, or if a step took longer than one with more rows or deeper drafts:
    /// other users may have slowed all steps of that size. The sizes returned take at most
    /// `most_us` together.
    pub fn doubtful(&self, most_us: u64) -> Vec<u32> {
        let doubtful = |cell: &&Cell| {
            let longer = |us: u64| us > cell.first_us.saturating_mul(ALIKE) / 8;
            longer(cell.second_us) || self.0.iter().any(|other| cell.contradicts(other))
        };
        let doubtful = self.0.iter().filter(doubtful);
        let mut sizes: Vec<u32> = doubtful.map(|cell| cell.shortest.decodes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut left = most_us;
        sizes.retain(|size| {
            let same = |cell: &&Cell| cell.shortest.decodes == *size;
            let us: u64 = self.0.iter().filter(same).map(|cell| cell.first_us).sum();
            let fits = us <= left;
            left -= if fits { us } else { 0 };
            fits
        });
        sizes
    }

    /// Returns the shortest steps, in the order in which they were timed first.
    pub fn into_seen(self) -> Vec<Seen> {
        self.0.into_iter().map(|cell| cell.shortest).collect()
    }
}

impl Cell {
    /// Returns true if the step took longer than one of at least as many rows and drafts.
    fn contradicts(&self, other: &Self) -> bool {
        let larger = other.shortest.decodes >= self.shortest.decodes
            && other.shortest.depth >= self.shortest.depth;
        larger && self.first_us > other.first_us.saturating_mul(ALIKE) / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(decodes: u32, depth: u32, us: [u32; 3]) -> Seen {
        Seen {
            depth,
            decodes,
            tokens: decodes * (depth + 1),
            draft_us: us[0],
            verify_us: us[1],
            extend_us: us[2],
            ..Seen::default()
        }
    }

    fn cells(steps: &[Seen]) -> Cells {
        let mut cells = Cells::default();
        steps.iter().for_each(|seen| cells.take(*seen));
        cells
    }

    #[test]
    fn the_shortest_time_of_every_part_is_kept() {
        let steps = [[90, 200, 5], [30, 900, 9], [31, 210, 4]].map(|us| seen(2, 1, us));
        let cells = cells(&steps);
        assert_eq!(cells.us(), 245);
        assert_eq!(cells.into_seen(), [seen(2, 1, [30, 200, 4])]);
    }

    #[test]
    fn parts_of_steps_that_drafted_otherwise_are_not_mixed() {
        let more = Seen {
            tokens: 3,
            ..seen(2, 1, [10, 300, 5])
        };
        let kept = cells(&[seen(2, 1, [90, 200, 5]), more]).into_seen();
        assert_eq!(kept, [seen(2, 1, [90, 200, 5])]);
        let fewer = Seen {
            tokens: 3,
            ..seen(2, 1, [90, 100, 5])
        };
        assert_eq!(
            cells(&[seen(2, 1, [80, 200, 5]), fewer]).into_seen(),
            [fewer]
        );
    }

    #[test]
    fn a_time_that_was_seen_once_or_contradicts_others_is_doubtful() {
        let twice = |decodes, depth, us| [seen(decodes, depth, us); 2];
        let steady = [
            twice(1, 0, [0, 100, 0]),
            twice(1, 1, [50, 100, 0]),
            twice(4, 0, [0, 110, 0]),
            twice(4, 1, [60, 120, 0]),
        ];
        let mut known = cells(&steady.concat());
        assert!(known.doubtful(u64::MAX).is_empty());
        known.take(seen(8, 0, [0, 130, 0]));
        assert_eq!(known.doubtful(u64::MAX), [8]);
        known.take(seen(8, 0, [0, 150, 0]));
        assert_eq!(known.doubtful(u64::MAX), [8], "not as short");
        known.take(seen(8, 0, [0, 135, 0]));
        assert!(known.doubtful(u64::MAX).is_empty());
        // Two rows took longer than four: both times are slowed.
        let mut spoilt = steady.concat();
        spoilt.extend(twice(2, 0, [0, 700, 0]));
        let mut known = cells(&spoilt);
        assert_eq!(known.doubtful(u64::MAX), [2]);
        assert!(known.doubtful(699).is_empty(), "no time is left for it");
        known.take(seen(2, 0, [0, 104, 0]));
        known.take(seen(2, 0, [0, 105, 0]));
        assert!(known.doubtful(u64::MAX).is_empty());
    }
}
