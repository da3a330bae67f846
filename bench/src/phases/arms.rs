//! The arms that are compared, and the engines that run them.

use std::fmt;

use anyhow::Context as _;
use lockstep_adaptive::{AdaptiveConfig, Decider, Policies, PolicyFactory, Seen, Tier};
use lockstep_devices::Registry;
use lockstep_local_engine::{LocalEngine, LocalOptions};
use lockstep_types::{ConfigError, EngineConfig};
use lockstep_types::{request::Request, sampling::SamplingParams};

use super::Args;
use super::run::ask;
use super::work::Text;
use crate::report::progress;

/// A way to choose the depth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arm {
    /// The engine without speculation.
    None,
    /// A second engine without speculation. Its distance from the first is due to chance:
    /// the memory of engines lies in different places.
    NoneAgain,
    /// Always this depth. 0 is an engine with a depth that could adapt, but it is told not
    /// to draft: a depth that can't adapt is never 0.
    Fixed(u32),
    /// Depth by the policy of this name.
    Policy(String),
}

/// Every arm's engine, loaded.
pub struct Engines {
    engines: Vec<(Arm, LocalEngine)>,
    /// Configurations of the policies.
    adaptive: Vec<AdaptiveConfig>,
    policies: Policies,
}

impl Arm {
    /// Returns true if the arm's depth never changes.
    pub fn is_fixed(&self) -> bool {
        matches!(self, Self::None | Self::Fixed(_))
    }

    /// Returns true for a policy, whose depth adapts.
    pub fn adapts(&self) -> bool {
        matches!(self, Self::Policy(_))
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "none"),
            Self::NoneAgain => write!(f, "none again"),
            Self::Fixed(depth) => write!(f, "depth {depth}"),
            Self::Policy(name) => write!(f, "{name}"),
        }
    }
}

impl Engines {
    /// Descriptions of the devices that the ranks compute on.
    pub fn descriptions(&self) -> &[String] {
        let first = self.engines.first();
        first.map_or(&[], |(_, engine)| engine.descriptions())
    }

    /// Starts the engines. `plain` runs without speculation, by the first configuration; the
    /// second configuration goes as deep as any arm.
    ///
    /// # Errors
    /// An unknown policy, memory.
    pub fn start(
        args: &Args,
        plain: LocalEngine,
        [undrafting, drafting]: [&EngineConfig; 2],
        registry: &Registry,
    ) -> anyhow::Result<Self> {
        let algorithms = registry.algorithms();
        let mut all = Self {
            engines: vec![(Arm::None, plain)],
            adaptive: Vec::new(),
            policies: algorithms.policies().clone(),
        };
        let stays = algorithms.policies().find("static");
        let undrafted = adaptive(drafting, &**stays.context("no policy stays")?, registry);
        let mut fixed = drafting.clone();
        (fixed.speculation.adaptive, fixed.speculation.pause_window) = (None, 0);
        let mut depths = args.steps.clone();
        depths.sort_unstable();
        depths.dedup();
        for depth in depths {
            let config = if depth == 0 { &undrafted } else { &fixed };
            all.add(Arm::Fixed(depth), config, registry)?;
        }
        for policy in policies(args, registry)? {
            let config = adaptive(drafting, &*policy, registry);
            all.add(Arm::Policy(policy.name().to_owned()), &config, registry)?;
            all.adaptive.extend(config.speculation.adaptive);
        }
        if args.control {
            all.add(Arm::NoneAgain, undrafting, registry)?;
        }
        Ok(all)
    }

    fn add(&mut self, arm: Arm, config: &EngineConfig, registry: &Registry) -> anyhow::Result<()> {
        progress(&format!("loading the engine of {arm}"));
        let options = LocalOptions {
            registry: registry.clone(),
            ..LocalOptions::default()
        };
        let engine = LocalEngine::start(config, &options);
        let mut engine = engine.with_context(|| {
            format!("the engine of {arm}; every arm loads the model once, fewer --steps and --policies take less memory")
        })?;
        if let Arm::Fixed(depth) = arm {
            engine.set_draft_steps(depth);
        }
        self.engines.push((arm, engine));
        Ok(())
    }

    /// The arms in order: without speculation, then fixed depths ascending, then policies,
    /// then the control.
    pub fn arms(&self) -> Vec<Arm> {
        self.engines.iter().map(|(arm, _)| arm.clone()).collect()
    }

    /// The engine of an arm.
    pub fn engine(&mut self, arm: usize) -> &mut LocalEngine {
        &mut self.engines[arm].1
    }

    /// The policy of an engine, before it has seen anything but `profile`.
    pub fn decider(&self, policy: &str, profile: &[Seen]) -> Option<Decider> {
        let mut configs = self.adaptive.iter();
        let config = configs.find(|config| config.policy == policy)?;
        Decider::new(config, &self.policies, profile).ok()
    }

    /// Bytes of the model's weights, and of the weights that drafting adds.
    pub fn weight_bytes(&self) -> (usize, usize) {
        let bytes = |at: usize| {
            let engine = self.engines.get(at);
            engine.map_or(0, |(_, engine)| engine.weight_bytes())
        };
        (bytes(0), bytes(1).saturating_sub(bytes(0)))
    }

    /// Puts the prompts of all engines into the prefix caches of all DP ranks, and touches
    /// the memory of a large batch.
    ///
    /// # Errors
    /// The errors of an engine.
    pub fn warm_up(&mut self, texts: &[Text], dp_size: usize) -> anyhow::Result<()> {
        progress("warming up");
        for (_, engine) in &mut self.engines {
            // Each DP rank has a prefix cache of its own.
            for dp_rank in 0..dp_size as u32 {
                let two = |text: &Text| Request {
                    data_parallel_rank: Some(dp_rank),
                    ..ask(&text.prompt, 2, SamplingParams::greedy())
                };
                engine.run(texts.iter().map(two).collect())?;
            }
        }
        Ok(())
    }
}

/// The policies that are asked for, or all that choose a depth.
fn policies(
    args: &Args,
    registry: &Registry,
) -> anyhow::Result<Vec<std::sync::Arc<dyn PolicyFactory>>> {
    let algorithms = registry.algorithms();
    let known = algorithms.policies();
    let Some(names) = &args.policies else {
        let all = known.iter().filter(|policy| policy.name() != "static");
        return Ok(all.cloned().collect());
    };
    let find = |name: &String| {
        let names: Vec<&str> = known.iter().map(|policy| policy.name()).collect();
        let names = names.join(", ");
        let unknown = || format!("no policy is called {name}; there are {names}");
        let found = known.find(name).cloned();
        found.ok_or_else(|| ConfigError::Usage(unknown()).into())
    };
    let names = names.iter().filter(|name| !name.is_empty());
    names.map(find).collect()
}

/// The configuration `drafting` with a depth that adapts. Adaptive options are kept if they
/// are for this policy. Otherwise the policy gets its defaults for the deepest of the fixed
/// depths, and begins at the depth nearest to the algorithm's usual one.
fn adaptive(
    drafting: &EngineConfig,
    policy: &dyn PolicyFactory,
    registry: &Registry,
) -> EngineConfig {
    let mut config = drafting.clone();
    let algorithms = registry.algorithms();
    let name = drafting.speculation.algorithm.as_deref();
    let algorithm = algorithms.find(name.unwrap_or_default());
    let speculation = &mut config.speculation;
    speculation.pause_window = algorithm.map_or(0, |known| known.pause_window());
    if let Some(given) = &speculation.adaptive
        && given.policy == policy.name()
    {
        return config;
    }
    let most = u32::try_from(speculation.num_steps).unwrap_or(u32::MAX);
    let slots = policy.default_slots(most);
    let mut depths: Vec<u32> = slots.iter().flat_map(|slot| slot.depths.clone()).collect();
    depths.sort_unstable();
    depths.dedup();
    let tier = |depth: &u32| Tier {
        depth: *depth,
        tokens: u32::try_from(speculation.draft_tokens_at(*depth as usize)).unwrap_or(u32::MAX),
    };
    let usual = algorithm.map_or(0, |known| match &speculation.draft {
        Some(draft) => known.default_shape_with(draft).num_steps,
        None => known.default_shape().num_steps,
    });
    let far = |depth: &u32| (usual.abs_diff(*depth as usize), u32::MAX - depth);
    let initial = depths.iter().copied().min_by_key(far);
    let tiers = depths.iter().map(tier).collect();
    speculation.adaptive = Some(AdaptiveConfig {
        shared_part: lockstep_model::shared_part(&config.model, config.parallel.attn_tp_size()),
        ..AdaptiveConfig::new(policy.name(), initial.unwrap_or(0), tiers, slots)
    });
    config
}
