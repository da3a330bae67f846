//! The time that DP ranks lose while other DP ranks run long prompts.

use super::{Moment, logit::ONE, power};
use crate::{Digest, LongPrompts};

/// Inverse of a step's weight in the running means.
const RATE: u64 = 32;
/// The number 1 in the means of counts, in fixed point.
const FINE: u64 = 1 << 20;
/// Most requests of a rank that [`busy`] counts. More requests make a rank no busier.
const MOST_REQUESTS: u32 = 64;

/// Model of the time that long prompts cost, to compare depths by their tokens per time.
///
/// A chunk is the part of a long prompt that one step computes. A chunk takes the same time
/// at any draft depth, and all ranks wait for it. The requests of a rank decide how many tokens
/// the rank answers for each chunk; the depth does not change that number.
///
/// Deeper drafts finish answers in fewer steps, so the next prompt begins sooner. Once every
/// step of a rank has a chunk, deeper drafts bring no more tokens from that rank. The ranks
/// without long prompts still get more tokens per step from deeper drafts. Example: a rank has
/// one request at a time and answers 4 tokens per chunk. At 1 token per step one step in five
/// has a chunk; at 4 tokens per step, one in two.
#[derive(Debug)]
pub(super) struct Waits {
    /// Mean nanoseconds by which chunks make a step longer; 0 before any chunk was seen.
    ns: u64,
    /// Mean number of chunks in a step, and mean number of tokens that the ranks with long
    /// prompts answer in a step. 1 is [`FINE`].
    chunks: u64,
    tokens: u64,
    /// Counts of the present step.
    now: LongPrompts,
}

impl Waits {
    pub fn new() -> Self {
        Self {
            ns: 0,
            chunks: 0,
            tokens: 0,
            now: LongPrompts::default(),
        }
    }

    /// Begins a step and takes in its counts. The means of counts restart when no rank has long
    /// prompts.
    pub fn begin(&mut self, moment: &Moment<'_>) {
        self.now = moment.long_prompts;
        let LongPrompts {
            ranks,
            chunks,
            tokens,
            ..
        } = self.now;
        if ranks == 0 {
            (self.chunks, self.tokens) = (0, 0);
            return;
        }
        let follow = |mean: &mut u64, count: u32| {
            *mean = *mean - *mean / RATE + u64::from(count) * FINE / RATE;
        };
        follow(&mut self.chunks, chunks);
        follow(&mut self.tokens, tokens);
    }

    /// Takes in the time of a step: `us` microseconds. Without prompts the step would have taken
    /// `expected_ns` nanoseconds. A step without chunks, or of unknown cost, changes nothing.
    pub fn observe(&mut self, moment: &Moment<'_>, us: u64, expected_ns: Option<u64>) {
        let waited = moment.long_prompts.chunks > 0 && moment.seen.prompt_tokens > 0;
        let (true, Some(expected_ns)) = (waited, expected_ns) else {
            return;
        };
        let over = us.saturating_mul(1000).saturating_sub(expected_ns);
        self.ns = match self.ns {
            0 => over,
            // A step may be slow for another reason, so no step counts for more than twice the
            // mean.
            mean => mean - mean / RATE + over.min(2 * mean) / RATE,
        };
    }

    /// Returns the tokens per time of the mean row, in an arbitrary unit. `ns` is the time of a
    /// step without chunks. In such a step a row gets `each` tokens, in fixed point.
    pub fn rate(&self, each: u64, ns: u64) -> u64 {
        let LongPrompts {
            ranks,
            rows,
            waiting,
            ..
        } = self.now;
        if ranks == 0 || self.chunks == 0 || rows == 0 {
            return (each << 40) / ns.max(1);
        }
        // Tokens that these ranks together answer in a step if each runs a chunk in every step.
        let most = u128::from(self.tokens) * u128::from(ranks) * ONE as u128;
        let most = most / u128::from(self.chunks);
        // Steps in which a request decodes, for each chunk.
        let steps = most * ONE as u128 / (u128::from(each) * u128::from(ranks)).max(1);
        let busy = busy(rows.div_ceil(ranks), steps.min(1 << 32) as i64);
        let out = most * busy as u128 / ONE as u128;
        // Part of the steps without any chunk.
        let nobody = power(ONE - busy, ranks);
        let waits = u128::from(self.ns) * (ONE - nobody) as u128 / ONE as u128;
        let all = out + u128::from(each) * u128::from(waiting);
        let ns = (u128::from(ns) + waits).max(1);
        let rate = (all << 40) / (ns * u128::from(rows.saturating_add(waiting)));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    pub fn digest(&self, digest: &mut Digest) {
        let LongPrompts {
            ranks,
            rows,
            waiting,
            chunks,
            tokens,
        } = self.now;
        for mean in [self.ns, self.chunks, self.tokens] {
            digest.word(mean);
        }
        for count in [ranks, rows, waiting, chunks, tokens] {
            digest.word(u64::from(count));
        }
    }
}

/// Returns the share of a rank's steps that have a chunk, in fixed point. The rank has
/// `requests` requests. Each of them decodes in `steps` steps, in fixed point, for each chunk
/// of its prompt. This is the machine-repair model: 1 - B(requests, steps), with Erlang's loss
/// formula B. Example: with 2 requests of 1 step per chunk, 4 of 5 steps have a chunk.
fn busy(requests: u32, steps: i64) -> i64 {
    let mut idle = ONE;
    for request in 1..=i64::from(requests.min(MOST_REQUESTS)) {
        let offered = steps * idle / ONE;
        idle = offered * ONE / (request * ONE + offered);
    }
    ONE - idle
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdaptiveConfig, Costs, Loads, Seen};

    const MS: u64 = 1_000_000;

    /// Returns the state after `steps` steps with the counts `long_prompts`. A chunk takes
    /// 40 ms in each step.
    fn after(steps: u32, long_prompts: LongPrompts) -> Waits {
        let costs = Costs::new(&AdaptiveConfig::new("", 0, vec![], vec![]), &[]);
        let seen = Seen {
            prompt_tokens: 256,
            ..Seen::default()
        };
        let mut waits = Waits::new();
        for step in 0..steps {
            let moment = Moment {
                step: step.into(),
                depth: 0,
                decided: 0,
                seen: &seen,
                seen_rows: 4,
                seen_taken: 4,
                rows: 4,
                all_rows: 12,
                joined: 0,
                loads: Loads::EVEN,
                long_prompts,
                candidates: &[0],
                costs: &costs,
            };
            waits.observe(&moment, 50_000, Some(10 * MS));
            waits.begin(&moment);
        }
        waits
    }

    /// Returns the tokens per second of `rows` rows. Each row gets `tenths` tenths of a token
    /// in a step of `ms` milliseconds.
    fn rate(waits: &Waits, rows: u64, tenths: u64, ms: u64) -> u64 {
        let rate = waits.rate((tenths << 16) / 10, ms * MS);
        let a_second = u128::from(rate) * u128::from(1_000 * MS) * u128::from(rows);
        ((a_second + (1 << 55)) >> 56) as u64
    }

    #[test]
    fn without_long_prompts_nobody_waits() {
        let none = LongPrompts {
            waiting: 12,
            ..LongPrompts::default()
        };
        let waits = after(9, none);
        assert_eq!(rate(&waits, 10, 20, 20), 1_000);
        assert_eq!(waits.rate(3 << 16, 7 * MS), (3 << 56) / (7 * MS));
        // The rank has long prompts, but no chunk of them has run yet.
        let waits = after(
            9,
            LongPrompts {
                ranks: 1,
                rows: 4,
                ..none
            },
        );
        assert_eq!(rate(&waits, 10, 20, 20), 1_000);
    }

    /// Checks that [`rate`] is `expected`, within 1 for rounding.
    fn assert_rate(waits: &Waits, rows: u64, tenths: u64, ms: u64, expected: u64) {
        let found = rate(waits, rows, tenths, ms);
        assert!(
            found.abs_diff(expected) <= 1,
            "{tenths}: {found}, not {expected}"
        );
    }

    /// The rank has so many requests that one of them always runs a chunk. The rank answers
    /// three tokens per chunk.
    #[test]
    fn where_prompts_go_on_in_every_step_they_bound_what_their_ranks_answer() {
        let all = LongPrompts {
            ranks: 1,
            rows: 64,
            waiting: 16,
            chunks: 1,
            tokens: 3,
        };
        let waits = after(99, all);
        // A step takes 40 ms longer. It has three tokens of this rank, and `tenths` tenths of a
        // token for each of the 16 rows of other ranks.
        assert_rate(&waits, 80, 10, 10, 19_000 / 50);
        assert_rate(&waits, 80, 20, 20, 35_000 / 60);
        assert_rate(&waits, 80, 30, 35, 51_000 / 75);
        // All ranks always run chunks, so the shortest step is the best.
        let ranks = LongPrompts {
            ranks: 5,
            rows: 320,
            waiting: 0,
            chunks: 5,
            tokens: 15,
        };
        let waits = after(99, ranks);
        assert_rate(&waits, 320, 10, 10, 300);
        assert_rate(&waits, 320, 20, 20, 250);
    }

    /// The rank has one request at a time, which gets four tokens for each chunk of its prompt.
    /// Deeper drafts bring the next chunk sooner.
    #[test]
    fn where_prompts_leave_steps_free_they_come_with_the_answers() {
        let one = LongPrompts {
            ranks: 1,
            rows: 1,
            waiting: 16,
            chunks: 1,
            tokens: 4,
        };
        let waits = after(99, one);
        // Four of five steps have no chunk, then two of three, then one of two.
        assert_rate(&waits, 17, 10, 10, 16_800 / 18);
        assert_rate(&waits, 17, 20, 20, 100_000 / 100);
        assert_rate(&waits, 17, 40, 40, 66_000 / 60);
        // With two such ranks, more steps have a chunk.
        let two = LongPrompts {
            ranks: 2,
            rows: 2,
            waiting: 12,
            chunks: 2,
            tokens: 8,
        };
        let waits = after(99, two);
        assert_rate(&waits, 14, 10, 10, 136_000 / 244);
    }

    #[test]
    fn a_rank_is_as_busy_with_prompts_as_the_machine_repair_model_says() {
        // (requests, decode steps for each chunk, busy share)
        for (requests, steps, part) in [
            (0, ONE, 0),
            (1, 0, ONE),
            (1, ONE, ONE / 2),
            (2, ONE, ONE * 4 / 5),
            (3, ONE, ONE * 15 / 16),
            (2, 2 * ONE, ONE * 3 / 5),
            (4, 4 * ONE, ONE * 71 / 103),
            (64, ONE, ONE),
            (u32::MAX, ONE, ONE),
            (1, 1 << 32, 1),
        ] {
            let found = busy(requests, steps);
            assert!(
                (found - part).abs() <= 8,
                "{requests} {steps}: {found}, not {part}"
            );
        }
    }

    #[test]
    fn a_step_that_was_slow_for_another_reason_counts_for_two() {
        let all = LongPrompts {
            ranks: 1,
            rows: 4,
            waiting: 8,
            chunks: 1,
            tokens: 4,
        };
        let mut waits = after(1, all);
        assert_eq!(waits.ns, 40 * MS);
        let costs = Costs::new(&AdaptiveConfig::new("", 0, vec![], vec![]), &[]);
        let mut seen = Seen::default();
        let mut observe = |prompt_tokens, us, expected| {
            seen.prompt_tokens = prompt_tokens;
            let moment = Moment {
                step: 1,
                depth: 0,
                decided: 0,
                seen: &seen,
                seen_rows: 4,
                seen_taken: 4,
                rows: 4,
                all_rows: 12,
                joined: 0,
                loads: Loads::EVEN,
                long_prompts: all,
                candidates: &[0],
                costs: &costs,
            };
            waits.observe(&moment, us, expected);
            waits.ns
        };
        assert_eq!(observe(256, 900_000, Some(10 * MS)), 41_250_000);
        // A step of unknown cost, or without prompt tokens, changes nothing.
        assert_eq!(observe(256, 900_000, None), 41_250_000);
        assert_eq!(observe(0, 900_000, Some(10 * MS)), 41_250_000);
    }
}
