//! The row that a rank brings to a step's decision.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of drafted positions that are counted one by one. It is also the deepest that an
/// adaptive group drafts.
pub const POSITIONS: usize = 16;

/// Facts that one rank brings to one step, in a fixed number of words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Row {
    /// Number of the step that the row travels with.
    pub step: u64,
    /// Draft steps of that step.
    pub depth: u32,
    /// Digest of everything that all ranks share so far: plans, drafts and tokens, and the
    /// decider's state.
    pub digest: u64,
    /// Digest of the facts that only the ranks of this rank's DP rank share. The digest differs
    /// between DP ranks.
    pub group_digest: u64,
    /// Depths that the rank can run, as bits: bit `d` for depth `d`.
    pub depths: u32,
    /// Rows that decode after this step, also those whose prompts end with it. Only ranks that
    /// verify count them, as in [`Seen::decodes`].
    pub decodes: u32,
    /// Rows among `decodes` whose prompts end with this step.
    pub joined: u32,
    /// Rows of prompts that go on after this step. Only ranks that verify count them.
    pub unfinished: u32,
    /// Tokens that this rank runs in the step, drafts included, if its DP rank has requests of
    /// its own. 0 on a rank without work, and if all ranks run the same.
    pub tokens: u32,
    /// Number of requests that these tokens belong to.
    pub requests: u32,
    /// Number of these tokens whose logits are wanted.
    pub wanted: u32,
    /// Most tokens of one request.
    pub longest: u32,
    /// Statistics of the step before.
    pub seen: Seen,
}

/// Statistics of a step on one rank or, [joined](Seen::join), on all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Draft steps of the step.
    pub depth: u32,
    /// Rows that decoded. Only ranks that verify count them and what is counted below. Other
    /// ranks bring zeros, so that sums count every request once.
    pub decodes: u32,
    /// Tokens of the pass, drafts included.
    pub tokens: u32,
    /// Tokens of prompts in the pass.
    pub prompt_tokens: u32,
    /// By drafted position: rows that proposed a draft there and accepted all drafts before it.
    /// A position where nothing was proposed is no rejection.
    pub at_risk: [u32; POSITIONS],
    /// By drafted position: rows among `at_risk` that accepted the draft there.
    pub accepted: [u32; POSITIONS],
    /// Rows among `decodes` with drafts that a constraint forced. Such text is certain, so it
    /// says nothing of the drafter: these rows are in no count by position.
    pub forced_rows: u32,
    /// Accepted drafts of these rows.
    pub forced_accepted: u32,
    /// Microseconds of drafting, over all draft steps.
    pub draft_us: u32,
    /// Microseconds of the pass, up to its tokens.
    pub verify_us: u32,
    /// Microseconds of the drafter after the pass.
    pub extend_us: u32,
}

impl Row {
    /// Number of words of the encoding.
    pub const WORDS: usize = Self::SHARED + 2 + 4 + 4 + 4 + 2 + 2 * POSITIONS + 3;

    /// Number of leading words that are equal on all ranks, or the ranks have diverged: step,
    /// depth and digest.
    pub const SHARED: usize = 5;

    /// Number of words after those that are equal on the ranks of a DP rank: the digest of what
    /// these ranks share, and the sizes of their batch.
    pub const OF_DP_RANK: usize = 6;

    /// Returns the encoding in which the row travels.
    pub fn to_words(&self) -> [u32; Self::WORDS] {
        let Self {
            step,
            depth,
            digest,
            group_digest,
            depths,
            decodes,
            joined,
            unfinished,
            tokens,
            requests,
            wanted,
            longest,
            seen,
        } = *self;
        let mut words = [0; Self::WORDS];
        let (step_low, step_high) = halves(step);
        let (digest_low, digest_high) = halves(digest);
        let (group_low, group_high) = halves(group_digest);
        let fixed = [
            step_low,
            step_high,
            depth,
            digest_low,
            digest_high,
            group_low,
            group_high,
            tokens,
            requests,
            wanted,
            longest,
            depths,
            decodes,
            joined,
            unfinished,
            seen.depth,
            seen.decodes,
            seen.tokens,
            seen.prompt_tokens,
            seen.forced_rows,
            seen.forced_accepted,
            seen.draft_us,
            seen.verify_us,
            seen.extend_us,
        ];
        let (head, counts) = words.split_at_mut(fixed.len());
        head.copy_from_slice(&fixed);
        let (at_risk, accepted) = counts.split_at_mut(POSITIONS);
        at_risk.copy_from_slice(&seen.at_risk);
        accepted.copy_from_slice(&seen.accepted);
        words
    }

    /// Decodes the words of [`Self::to_words`].
    pub fn from_words(words: &[u32; Self::WORDS]) -> Self {
        let [
            step_low,
            step_high,
            depth,
            digest_low,
            digest_high,
            group_low,
            group_high,
            tokens,
            requests,
            wanted,
            longest,
            depths,
            decodes,
            joined,
            unfinished,
            ran,
            decoded,
            ran_tokens,
            prompt_tokens,
            forced_rows,
            forced_accepted,
            draft_us,
            verify_us,
            extend_us,
            counts @ ..,
        ] = words;
        let mut seen = Seen {
            depth: *ran,
            decodes: *decoded,
            tokens: *ran_tokens,
            prompt_tokens: *prompt_tokens,
            forced_rows: *forced_rows,
            forced_accepted: *forced_accepted,
            draft_us: *draft_us,
            verify_us: *verify_us,
            extend_us: *extend_us,
            ..Seen::default()
        };
        let (at_risk, accepted) = counts.split_at(POSITIONS);
        seen.at_risk.copy_from_slice(at_risk);
        seen.accepted.copy_from_slice(accepted);
        Self {
            step: whole(*step_low, *step_high),
            depth: *depth,
            digest: whole(*digest_low, *digest_high),
            group_digest: whole(*group_low, *group_high),
            depths: *depths,
            decodes: *decodes,
            joined: *joined,
            unfinished: *unfinished,
            tokens: *tokens,
            requests: *requests,
            wanted: *wanted,
            longest: *longest,
            seen,
        }
    }
}

impl Seen {
    /// Joins the statistics of all ranks. Requests are summed. Of passes and times the largest
    /// counts, since all ranks wait for the slowest.
    pub fn join(rows: &[Row]) -> Self {
        let mut all = Self::default();
        for Row { seen, .. } in rows {
            all.depth = all.depth.max(seen.depth);
            all.decodes = all.decodes.saturating_add(seen.decodes);
            all.tokens = all.tokens.max(seen.tokens);
            all.prompt_tokens = all.prompt_tokens.max(seen.prompt_tokens);
            all.draft_us = all.draft_us.max(seen.draft_us);
            all.verify_us = all.verify_us.max(seen.verify_us);
            all.extend_us = all.extend_us.max(seen.extend_us);
            all.forced_rows = all.forced_rows.saturating_add(seen.forced_rows);
            all.forced_accepted = all.forced_accepted.saturating_add(seen.forced_accepted);
            for at in 0..POSITIONS {
                all.at_risk[at] = all.at_risk[at].saturating_add(seen.at_risk[at]);
                all.accepted[at] = all.accepted[at].saturating_add(seen.accepted[at]);
            }
        }
        all
    }

    /// Counts one verified row. The row proposed drafts for `proposed` positions, and the
    /// drafts of the first `accepted` were accepted.
    pub fn count(&mut self, proposed: u32, accepted: u32) {
        let proposed = (proposed as usize).min(POSITIONS);
        let accepted = (accepted as usize).min(proposed);
        for at_risk in &mut self.at_risk[..(accepted + 1).min(proposed)] {
            *at_risk = at_risk.saturating_add(1);
        }
        for kept in &mut self.accepted[..accepted] {
            *kept = kept.saturating_add(1);
        }
    }

    /// Counts one verified row with drafts that a constraint forced. `accepted` of all its
    /// drafts were accepted.
    pub fn count_forced(&mut self, accepted: u32) {
        self.forced_rows = self.forced_rows.saturating_add(1);
        self.forced_accepted = self.forced_accepted.saturating_add(accepted);
    }

    /// Returns the number of rows whose drafts, or want of drafts, show how good the drafter is.
    pub fn telling(&self) -> u32 {
        self.decodes.saturating_sub(self.forced_rows)
    }

    /// Returns the number of accepted drafts, over all positions. Rows with forced drafts are
    /// left out.
    pub fn drafts_accepted(&self) -> u64 {
        self.accepted.iter().map(|count| u64::from(*count)).sum()
    }

    /// Returns true if the times are those of decoding alone.
    pub fn is_decode(&self) -> bool {
        self.decodes > 0 && self.prompt_tokens == 0
    }

    /// Returns the tokens that the drafter took in: the accepted drafts of each row, and one
    /// more.
    pub fn taken(&self) -> u32 {
        let accepted = u32::try_from(self.drafts_accepted()).unwrap_or(u32::MAX);
        let accepted = accepted.saturating_add(self.forced_accepted);
        self.decodes.saturating_add(accepted)
    }
}

/// Depths that an operator allows. Equal ends pin one depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DepthRange {
    /// Least depth.
    pub least: u32,
    /// Greatest depth.
    pub most: u32,
}

impl Default for DepthRange {
    /// Allows every depth.
    fn default() -> Self {
        Self {
            least: 0,
            most: u32::MAX,
        }
    }
}

impl DepthRange {
    /// Returns true if `depth` is allowed.
    pub fn contains(self, depth: u32) -> bool {
        (self.least..=self.most).contains(&depth)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            step,
            depth,
            digest,
            ..
        } = self;
        write!(f, "step {step} at depth {depth} (digest {digest:016x})")
    }
}

fn halves(value: u64) -> (u32, u32) {
    (value as u32, (value >> 32) as u32)
}

fn whole(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
