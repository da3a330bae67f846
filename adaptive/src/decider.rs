//! The one function that decides the depth.

use crate::{
    AdaptiveConfig, Agreed, Costs, DepthRange, Digest, Loads, Moment, Outlook, Policies, Policy,
    Row, Seen, long_prompts::LongPromptRanks,
};

/// Error of a configuration that names an unknown policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this program knows no policy {name:?}; it knows {known}")]
pub struct UnknownPolicy {
    /// Name in the configuration.
    pub name: String,
    /// Names of the known policies.
    pub known: String,
}

/// Decides depths. Every rank has a decider, and all deciders come to the same depths.
#[derive(Debug)]
pub struct Decider {
    config: AdaptiveConfig,
    costs: Costs,
    policy: Box<dyn Policy>,
    agreed: Agreed,
    /// Depths that may be chosen now.
    candidates: Vec<u32>,
    decided: u32,
    /// Depth of the newest step in the rows' statistics.
    last_seen: u32,
    loads: Loads,
    long_prompts: LongPromptRanks,
    digest: Digest,
}

impl Decider {
    /// Makes a decider that has seen only the steps measured before serving.
    ///
    /// # Errors
    /// [`UnknownPolicy`] if `policies` has no policy of the configured name.
    pub fn new(
        config: &AdaptiveConfig,
        policies: &Policies,
        profile: &[Seen],
    ) -> Result<Self, UnknownPolicy> {
        let factory = policies.find(&config.policy).ok_or_else(|| {
            let known: Vec<_> = policies.iter().map(|known| known.name()).collect();
            UnknownPolicy {
                name: config.policy.clone(),
                known: known.join(", "),
            }
        })?;
        Ok(Self {
            costs: Costs::new(config, profile),
            policy: factory.build(config),
            agreed: Agreed::new(config.initial_depth),
            candidates: Vec::with_capacity(config.tiers.len()),
            decided: config.initial_depth,
            last_seen: u32::MAX,
            loads: Loads {
                shared_part: config.shared_part,
                ..Loads::EVEN
            },
            long_prompts: LongPromptRanks::default(),
            digest: measured(profile),
            config: config.clone(),
        })
    }

    /// Returns the depth of the next step. No plan may ask for more.
    pub fn depth(&self) -> u32 {
        self.agreed.depth()
    }

    /// Begins the next step.
    pub fn begin(&mut self) {
        self.agreed.begin();
    }

    /// Decides the depth of the step [`LAG`](crate::LAG) after the newest one, from all ranks'
    /// rows and within `range`. An operator's range goes before a slot's candidates. If no
    /// depth of the range can be run, the next lower one that can is taken.
    pub fn decide(&mut self, rows: &[Row], range: DepthRange) -> u32 {
        let Some(own) = rows.first() else {
            return self.decided;
        };
        let seen = Seen::join(rows);
        let runnable = rows.iter().fold(u32::MAX, |all, row| all & row.depths);
        self.find_candidates(&seen, runnable, range);
        // The other ranks wait for the rank with most rows.
        let most = |decodes: fn(&Row) -> u32| rows.iter().map(decodes).max().unwrap_or(0);
        let sum = |count: fn(&Row) -> u32| rows.iter().map(count).fold(0, u32::saturating_add);
        let seen_rows = most(|row| row.seen.decodes);
        self.loads.balance = balance(rows).unwrap_or(self.loads.balance);
        // In the first step after a pause the drafter takes in what it missed, so its time says
        // nothing of such a step.
        let resumes = self.last_seen == 0 && seen.depth > 0;
        self.last_seen = seen.depth;
        let taking = rows.iter().map(|row| &row.seen);
        let taking = taking.max_by_key(|seen| seen.taken()).unwrap_or(&seen);
        if !resumes {
            let slowest = Seen {
                decodes: seen_rows,
                at_risk: taking.at_risk,
                accepted: taking.accepted,
                forced_accepted: taking.forced_accepted,
                ..seen
            };
            self.costs.correct(&slowest, self.loads);
        }
        let long_prompts = self.long_prompts.begin(rows);
        let moment = Moment {
            step: own.step,
            depth: own.depth,
            decided: self.decided,
            seen: &seen,
            seen_rows,
            seen_taken: taking.taken(),
            rows: most(|row| row.decodes),
            all_rows: sum(|row| row.decodes),
            joined: sum(|row| row.joined),
            loads: self.loads,
            long_prompts,
            candidates: &self.candidates,
            costs: &self.costs,
        };
        let wanted = self.policy.decide(&moment);
        let below = self.candidates.iter().rev().find(|depth| **depth <= wanted);
        let nearest = below.or(self.candidates.first());
        self.decided = nearest.copied().unwrap_or(0);
        self.agreed.decide(own.step, self.decided);
        for row in rows {
            self.digest.list(&row.to_words());
        }
        self.digest.word(u64::from(self.decided));
        self.decided
    }

    /// Returns the digest of all decisions, of the rows that they came from, and of the
    /// policy's state.
    pub fn digest(&self) -> u64 {
        let mut digest = self.digest;
        self.policy.digest(&mut digest);
        digest.value()
    }

    /// Returns the policy's expectations.
    pub fn outlook(&self) -> Outlook {
        self.policy.outlook()
    }

    /// Lists the depths that may be chosen for a batch like `seen`.
    fn find_candidates(&mut self, seen: &Seen, runnable: u32, range: DepthRange) {
        let can_run = |depth: u32| {
            1u32.checked_shl(depth)
                .is_some_and(|bit| runnable & bit != 0)
        };
        self.candidates.clear();
        let of_slot = self.config.slot(seen.decodes);
        let of_slot = of_slot.map_or(&[][..], |slot| &slot.depths);
        let fits = |depth: &u32| can_run(*depth) && range.contains(*depth);
        self.candidates.extend(of_slot.iter().copied().filter(fits));
        if self.candidates.is_empty() {
            let mut all = self.config.tiers.iter().map(|tier| tier.depth);
            let below = all.rfind(|depth| can_run(*depth) && *depth <= range.most);
            // Draft nothing if no allowed depth can be run.
            self.candidates.push(below.unwrap_or(0));
        }
    }
}

/// Returns [`Loads::balance`]; `None` if no rank had tokens except of prompts.
fn balance(rows: &[Row]) -> Option<u32> {
    let tokens = |row: &Row| row.seen.tokens.saturating_sub(row.seen.prompt_tokens);
    let tokens = || rows.iter().map(tokens).map(u128::from);
    let most = tokens().max().filter(|most| *most > 0)?;
    let mean =
        tokens().sum::<u128>() * u128::from(Loads::EVEN.balance) / (rows.len() as u128 * most);
    u32::try_from(mean).ok()
}

/// Returns the digest of the steps measured before serving. Ranks with other costs would decide
/// differently sooner or later; with the digest they differ from the first step on.
fn measured(profile: &[Seen]) -> Digest {
    let mut digest = Digest::new();
    for seen in profile {
        let row = Row {
            seen: *seen,
            ..Row::default()
        };
        digest.list(&row.to_words());
    }
    digest
}
