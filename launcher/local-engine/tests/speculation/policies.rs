//! Policies of adaptive depth in these tests.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lockstep_adaptive::{
    AdaptiveConfig, BatchSlot, Digest, Moment, Outlook, Policies, PolicyFactory, Tier,
};
use lockstep_devices::Registry;
use lockstep_types::SpeculationConfig;

/// A policy of adaptive depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Another depth in every step.
    Restless,
    Ema,
    Goodput,
}

impl Policy {
    pub const ALL: [Self; 3] = [Self::Restless, Self::Ema, Self::Goodput];

    fn name(self) -> &'static str {
        match self {
            Self::Restless => "restless",
            Self::Ema => "ema",
            Self::Goodput => "goodput",
        }
    }

    /// Configuration with every depth of `speculation`, each decided as early as possible.
    pub fn config(self, speculation: &SpeculationConfig) -> AdaptiveConfig {
        let depths: Vec<u32> = (0..=speculation.num_steps as u32).collect();
        let tier = |depth: &u32| Tier {
            depth: *depth,
            tokens: speculation.draft_tokens_at(*depth as usize) as u32,
        };
        let tiers = depths.iter().map(tier).collect();
        let initial = depths.len() as u32 / 2;
        let slots = vec![BatchSlot::new(1, depths)];
        AdaptiveConfig {
            ema_alpha: 800_000,
            update_interval: 1,
            warmup_batches: 1,
            ..AdaptiveConfig::new(self.name(), initial, tiers, slots)
        }
    }

    /// A registry with this policy, and a counter of switches: decisions of any rank for
    /// another depth than before.
    pub fn watched(self) -> (Registry, Arc<AtomicU64>) {
        let switches = Arc::<AtomicU64>::default();
        let watched = Watched {
            policy: self,
            switches: switches.clone(),
        };
        (Registry::builtin().with_policy(watched), switches)
    }
}

/// A policy whose switches are counted.
#[derive(Debug)]
struct Watched {
    policy: Policy,
    switches: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Watching {
    /// The policy that decides; `None` to take another depth in every step.
    inner: Option<Box<dyn lockstep_adaptive::Policy>>,
    switches: Arc<AtomicU64>,
}

impl PolicyFactory for Watched {
    fn name(&self) -> &str {
        self.policy.name()
    }

    fn summary(&self) -> &str {
        "for tests"
    }

    fn reads_costs(&self) -> bool {
        let builtin = Policies::builtin();
        let known = builtin.find(self.policy.name());
        known.is_some_and(|known| known.reads_costs())
    }

    fn build(&self, config: &AdaptiveConfig) -> Box<dyn lockstep_adaptive::Policy> {
        let builtin = Policies::builtin();
        let known = builtin.find(self.policy.name());
        Box::new(Watching {
            inner: known.map(|known| known.build(config)),
            switches: self.switches.clone(),
        })
    }
}

impl lockstep_adaptive::Policy for Watching {
    fn decide(&mut self, moment: &Moment<'_>) -> u32 {
        let depth = match &mut self.inner {
            Some(policy) => policy.decide(moment),
            None => another(moment),
        };
        let switch = u64::from(depth != moment.decided);
        self.switches.fetch_add(switch, Ordering::Relaxed);
        depth
    }

    fn digest(&self, digest: &mut Digest) {
        if let Some(policy) = &self.inner {
            policy.digest(digest);
        }
    }

    fn outlook(&self) -> Outlook {
        let policy = self.inner.as_ref();
        policy.map_or_else(Outlook::default, |policy| policy.outlook())
    }
}

/// A candidate other than the present depth, chosen by the step's number.
fn another(moment: &Moment<'_>) -> u32 {
    let mut others = moment.candidates.to_vec();
    others.retain(|depth| *depth != moment.decided);
    let mut digest = Digest::new();
    digest.word(moment.step);
    match others.len() {
        0 => moment.decided,
        count => others[(digest.value() % count as u64) as usize],
    }
}
