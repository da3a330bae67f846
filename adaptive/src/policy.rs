//! Policies by name.

use std::{fmt, sync::Arc};

use crate::{AdaptiveConfig, BatchSlot, Costs, Digest, Loads, LongPrompts, POSITIONS, Seen};

mod ema;
mod fixed;
mod goodput;
mod throughput_aware;

/// Decides how deep to draft, from the past alone and in integers.
///
/// Every rank runs a policy of its own, with equal configurations and over equal [`Moment`]s.
/// All must come to the same depths.
pub trait Policy: fmt::Debug + Send {
    /// Takes in the statistics of a step. Returns the depth of the step [`LAG`](crate::LAG)
    /// after it. A depth that is not among [`Moment::candidates`] stands for the next one
    /// below.
    fn decide(&mut self, moment: &Moment<'_>) -> u32;

    /// Adds everything that a decision may depend on to `digest`.
    fn digest(&self, digest: &mut Digest);

    /// Returns the policy's expectations, for people.
    fn outlook(&self) -> Outlook {
        Outlook::default()
    }
}

/// Facts that are known when a depth is decided.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// Number of the step that runs now.
    pub step: u64,
    /// Depth of that step.
    pub depth: u32,
    /// Depth that was decided last.
    pub decided: u32,
    /// Statistics of the step before it, on all ranks together.
    pub seen: &'a Seen,
    /// Decode rows of the step before, on the rank with most. The other ranks wait for that
    /// one.
    pub seen_rows: u32,
    /// Most tokens that the drafter of a rank took in after the step before.
    pub seen_taken: u32,
    /// Rows that decode after the present step, on the rank with most.
    pub rows: u32,
    /// Rows of all ranks that decode after the present step.
    pub all_rows: u32,
    /// Rows among [`Self::all_rows`] whose prompts end with the present step.
    pub joined: u32,
    /// Evenness of the tokens over the ranks.
    pub loads: Loads,
    /// Prompts that go on for several steps on some of the ranks, and the rows that wait for
    /// them.
    pub long_prompts: LongPrompts,
    /// Depths to choose among, ascending and never empty: depths of the batch's slot that every
    /// rank can run and the operator allows.
    pub candidates: &'a [u32],
    /// Time of a step by its size.
    pub costs: &'a Costs,
}

/// A policy's expectations of the depth that it chose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Microseconds of a step; 0 = the policy does not say.
    pub step_us: u32,
    /// Drafts that the policy expects to be accepted, by position, out of 65,536 at risk.
    pub acceptance: [u32; POSITIONS],
}

/// Makes policies of one name.
pub trait PolicyFactory: fmt::Debug + Send + Sync {
    /// Name in `strategy`, in lower case.
    fn name(&self) -> &str;
    /// One clause for people that says how the policy decides.
    fn summary(&self) -> &str;
    /// Returns true if the policy obeys this key of the file. A key that it does not obey is an
    /// error. All policies obey `candidate_steps`.
    fn obeys(&self, key: &str) -> bool {
        let _ = key;
        true
    }
    /// Returns the candidates for a file that names none: depths 0 to 7 below `most`, and
    /// `most`.
    fn default_slots(&self, most: u32) -> Vec<BatchSlot> {
        let mut depths = vec![0, 1, 2, 3, 5, 7];
        depths.retain(|depth| *depth < most);
        depths.push(most);
        vec![BatchSlot::new(1, depths)]
    }
    /// Returns true if the policy reads [`Moment::costs`]. Steps are measured before serving
    /// only for such a policy.
    fn reads_costs(&self) -> bool {
        true
    }
    /// Checks rules that only this policy has.
    ///
    /// # Errors
    /// Two sentences: the fault, and the remedy.
    fn check(&self, config: &AdaptiveConfig) -> Result<(), String> {
        let _ = config;
        Ok(())
    }
    /// Makes a policy that has seen nothing.
    fn build(&self, config: &AdaptiveConfig) -> Box<dyn Policy>;
}

/// Policies that a program knows.
#[derive(Debug, Clone)]
pub struct Policies(Vec<Arc<dyn PolicyFactory>>);

impl Policies {
    /// Returns the policies of this crate.
    pub fn builtin() -> Self {
        Self(vec![
            Arc::new(goodput::Goodputs),
            Arc::new(ema::Emas),
            Arc::new(throughput_aware::ThroughputAwares),
            Arc::new(fixed::Fixed),
        ])
    }

    /// Adds a policy, in place of an earlier one of the same name.
    pub fn add(&mut self, policy: Arc<dyn PolicyFactory>) {
        self.0.retain(|known| known.name() != policy.name());
        self.0.push(policy);
    }

    /// Returns the policy of that name.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn PolicyFactory>> {
        self.0.iter().find(|known| known.name() == name)
    }

    /// Returns all policies, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn PolicyFactory>> {
        self.0.iter()
    }
}

impl Default for Policies {
    fn default() -> Self {
        Self::builtin()
    }
}

/// Returns the ones of `depths` that are at most `most`.
fn up_to(most: u32, depths: &[u32]) -> Vec<u32> {
    depths
        .iter()
        .copied()
        .filter(|depth| *depth <= most)
        .collect()
}

#[cfg(test)]
mod tests;
