//! Time for which rows of some ranks wait while others run prompts.

use super::Moment;
use crate::Digest;

/// A step's wait goes into the mean by one part in so many.
const RATE: u64 = 8;
/// Steps without prompts that go on, after which nobody is taken to wait any more:
/// where one ends, the next one often begins.
const PAUSE: u32 = 3;

/// What prompts that go on on some ranks add to a step.
///
/// Where a rank's own rows share a step with a prompt, the prompt is paid once,
/// however many steps its rows take: it leaves their best depth as it is. But rows of
/// other ranks wait for it in every step, as long at any depth, so that deeper drafts
/// share the wait among more tokens.
#[derive(Debug)]
pub(super) struct Waits {
    /// Nanoseconds, in the mean; 0 = none was seen.
    ns: u64,
    /// Rows that wait and those that do not, in the newest step in which some did.
    waiting: u32,
    others: u32,
    /// Steps since.
    since: u32,
}

impl Waits {
    pub fn new() -> Self {
        Self {
            ns: 0,
            waiting: 0,
            others: 0,
            since: 0,
        }
    }

    /// A step begins.
    pub fn begin(&mut self, moment: &Moment<'_>) {
        self.since = self.since.saturating_add(1);
        if moment.waiting > 0 {
            self.waiting = moment.waiting;
            self.others = moment.all_rows.saturating_sub(moment.waiting);
            self.since = 0;
        } else if self.since > PAUSE {
            self.waiting = 0;
        }
    }

    /// A step took `us`, and without prompts would have taken `expected_ns`.
    pub fn observe(&mut self, moment: &Moment<'_>, us: u64, expected_ns: Option<u64>) {
        let waited = self.waiting > 0 && self.since == 0 && moment.seen.prompt_tokens > 0;
        let (true, Some(expected_ns)) = (waited, expected_ns) else {
            return;
        };
        let over = us.saturating_mul(1000).saturating_sub(expected_ns);
        self.ns = match self.ns {
            0 => over,
            // No step counts for more than twice the mean: one that was slow for
            // another reason.
            mean => mean - mean / RATE + over.min(2 * mean) / RATE,
        };
    }

    /// Nanoseconds that a step takes longer for those who wait.
    pub fn ns(&self) -> u64 {
        if self.waiting > 0 { self.ns } else { 0 }
    }

    /// For each token of a row that waits, tokens that come out on the ranks for which
    /// it does, if their rows get `each` in a step: so many at any depth, since their
    /// requests are as many as their prompts let in.
    pub fn tied(&self, each: u64) -> u64 {
        let waiting = u64::from(self.waiting);
        let others = u64::from(self.others).min(16 * waiting);
        (each * others).checked_div(waiting).unwrap_or(0)
    }

    pub fn digest(&self, digest: &mut Digest) {
        digest.word(self.ns);
        for count in [self.waiting, self.others, self.since] {
            digest.word(u64::from(count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdaptiveConfig, Costs, Seen};

    #[test]
    fn waits_are_those_of_rows_beside_prompts_that_go_on_and_end_soon_after_them() {
        let costs = Costs::new(&AdaptiveConfig::new("", 0, vec![], vec![]), &[]);
        let seen = Seen {
            prompt_tokens: 256,
            ..Seen::default()
        };
        let moment = |waiting| Moment {
            step: 1,
            depth: 0,
            decided: 0,
            seen: &seen,
            seen_rows: 4,
            seen_taken: 4,
            rows: 4,
            all_rows: 12,
            joined: 0,
            balance: 1 << 16,
            waiting,
            candidates: &[0],
            costs: &costs,
        };
        let mut waits = Waits::new();
        // Nobody waits: a prompt beside its rank's own rows is paid once.
        waits.begin(&moment(0));
        waits.observe(&moment(0), 90, Some(40_000));
        assert_eq!((waits.ns(), waits.tied(1_000)), (0, 0));
        waits.begin(&moment(8));
        assert_eq!(
            (waits.ns(), waits.tied(1_000)),
            (0, 500),
            "not measured yet"
        );
        waits.observe(&moment(8), 90, Some(40_000));
        assert_eq!(waits.ns(), 50_000);
        // An outlier counts for twice the mean, and costs nobody knows for nothing.
        waits.observe(&moment(8), 9_000, Some(40_000));
        assert_eq!(waits.ns(), 56_250);
        waits.observe(&moment(8), 9_000, None);
        for step in 0..=PAUSE {
            assert!(waits.ns() > 0, "{step}");
            waits.begin(&moment(0));
        }
        assert_eq!(waits.ns(), 0);
    }
}
