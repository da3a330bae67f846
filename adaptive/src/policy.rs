//! Policies by name.

use std::{fmt, sync::Arc};

use crate::{AdaptiveConfig, BatchSlot, Costs, Digest, Loads, LongPrompts, POSITIONS, Seen};

mod ema;
mod fixed;
mod goodput;
mod throughput_aware;

/// Decides how deep to draft, from the past alone and in integers.
///
/// All ranks run one each, from equal configurations over equal [`Moment`]s, and
/// must come to the same depths.
pub trait Policy: fmt::Debug + Send {
    /// Takes in what a step has shown, and says how deep the step
    /// [`LAG`](crate::LAG) after this one drafts. What is not among
    /// [`Moment::candidates`] is taken for the next one below.
    fn decide(&mut self, moment: &Moment<'_>) -> u32;

    /// Takes all that a decision may depend on into `digest`.
    fn digest(&self, digest: &mut Digest);

    /// What it expects, for people.
    fn outlook(&self) -> Outlook {
        Outlook::default()
    }
}

/// What is known when a depth is decided.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// The step that runs now.
    pub step: u64,
    /// Its depth.
    pub depth: u32,
    /// What was decided last.
    pub decided: u32,
    /// What the step before it has shown, on all ranks together.
    pub seen: &'a Seen,
    /// Its decode rows on the rank that had most, whom the others wait for.
    pub seen_rows: u32,
    /// Tokens that the drafter took in, on the rank where it took most.
    pub seen_taken: u32,
    /// Those of the step that runs now, on the rank that has most.
    pub rows: u32,
    /// All ranks' rows that decode after the step that runs now, and those of them
    /// whose prompts end with it.
    pub all_rows: u32,
    /// See [`Self::all_rows`].
    pub joined: u32,
    /// How evenly tokens lie on the ranks.
    pub loads: Loads,
    /// Prompts that go on, step after step, on some of several ranks, and who waits
    /// for them.
    pub long_prompts: LongPrompts,
    /// Depths to choose among, ascending and never empty: those of the batch's
    /// slot that every rank can run and the operator allows.
    pub candidates: &'a [u32],
    /// Time of a step by its size.
    pub costs: &'a Costs,
}

/// What a policy expects of the depth it chose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Microseconds of a step; 0 = it does not say.
    pub step_us: u32,
    /// For each position: how many of 65,536 drafts at risk it expects to be
    /// accepted.
    pub acceptance: [u32; POSITIONS],
}

/// Makes a policy of one name.
pub trait PolicyFactory: fmt::Debug + Send + Sync {
    /// What `strategy` calls it, in lower case.
    fn name(&self) -> &str;
    /// One clause for people: how it decides.
    fn summary(&self) -> &str;
    /// Whether it obeys this key of the file; one that it does not obey is an
    /// error. All policies obey `candidate_steps`.
    fn obeys(&self, key: &str) -> bool {
        let _ = key;
        true
    }
    /// Candidates where the file names none: depths 0 to 7, and `most`, beyond
    /// which none of them goes.
    fn default_slots(&self, most: u32) -> Vec<BatchSlot> {
        let mut depths = vec![0, 1, 2, 3, 5, 7];
        depths.retain(|depth| *depth < most);
        depths.push(most);
        vec![BatchSlot::new(1, depths)]
    }
    /// Whether it reads [`Moment::costs`]: steps are measured before serving only
    /// for a policy that does.
    fn reads_costs(&self) -> bool {
        true
    }
    /// Checks what the general rules can't know.
    ///
    /// # Errors
    /// What is wrong, and what to do: two sentences.
    fn check(&self, config: &AdaptiveConfig) -> Result<(), String> {
        let _ = config;
        Ok(())
    }
    /// A policy that has seen nothing.
    fn build(&self, config: &AdaptiveConfig) -> Box<dyn Policy>;
}

/// The policies that a program knows.
#[derive(Debug, Clone)]
pub struct Policies(Vec<Arc<dyn PolicyFactory>>);

impl Policies {
    /// Those that come with this crate.
    pub fn builtin() -> Self {
        Self(vec![
            Arc::new(goodput::Goodputs),
            Arc::new(ema::Emas),
            Arc::new(throughput_aware::ThroughputAwares),
            Arc::new(fixed::Fixed),
        ])
    }

    /// Adds one; a later one of the same name takes the earlier one's place.
    pub fn add(&mut self, policy: Arc<dyn PolicyFactory>) {
        self.0.retain(|known| known.name() != policy.name());
        self.0.push(policy);
    }

    /// The one of that name.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn PolicyFactory>> {
        self.0.iter().find(|known| known.name() == name)
    }

    /// All of them, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn PolicyFactory>> {
        self.0.iter()
    }
}

impl Default for Policies {
    fn default() -> Self {
        Self::builtin()
    }
}

/// Those of `depths` that are at most `most`.
fn up_to(most: u32, depths: &[u32]) -> Vec<u32> {
    depths
        .iter()
        .copied()
        .filter(|depth| *depth <= most)
        .collect()
}
