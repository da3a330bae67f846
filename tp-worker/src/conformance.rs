//! A battery that every speculative algorithm has to pass.
//!
//! The battery runs an algorithm in a real worker. It covers chains and trees, prompts in
//! chunks, prefixes from the cache, aborts, retractions, steps without rows, and texts up to
//! the end of the context. The depth changes from step to step, by plans and by a policy, and
//! differs between requests. Where the target has recurrent layers, requests go on from copies of
//! states that others have kept. Guards check every draft (see
//! [`lockstep_speculation::conformance`]), texts must equal the texts without speculation, and
//! a second run must draft the same tokens. [`Ranks`] sets the number of ranks and of DP ranks;
//! each DP rank has requests of its own.
//!
//! Run the battery over an algorithm of your own with a small model, and with one that has
//! recurrent layers:
//!
//! ```no_run
//! use lockstep_devices::Registry;
//! use lockstep_tp_worker::conformance;
//!
//! let registry = Registry::builtin();
//! conformance::check(&registry, "NGRAM", "path/to/model".as_ref(), None)?;
//! # Ok::<(), conformance::ConformanceError>(())
//! ```

mod play;
mod ranks;
mod requests;
mod turns;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use lockstep_backend::Backend;
use lockstep_config::{
    Hardware, ServeArgs,
    args::{DtypeArg, SpeculationArgs, VerificationArg},
    resolve,
};
use lockstep_devices::{Device, DeviceFootprint, OnDevice, Registry};
use lockstep_speculation::{
    DrafterRegistry,
    conformance::{answers, watch},
};
use lockstep_types::{
    Algorithm, Algorithms, ConfigError, DeviceKind, EngineConfig, SpeculationConfig,
};

use crate::worker::{
    WorkerError,
    local::{GroupOptions, LocalGroup},
};
use play::Play;

pub use ranks::Ranks;
pub use turns::Turns;

/// A rule that an algorithm broke.
#[derive(Debug, thiserror::Error)]
pub enum ConformanceError {
    /// The registry has no such algorithm.
    #[error("no algorithm is called {0}")]
    Unknown(String),
    /// The algorithm's answers contradict each other.
    #[error("{}", .0.join("; "))]
    Answers(Vec<String>),
    /// A shape that its capabilities promise can't be configured, or the model
    /// can't be used.
    #[error("{run}: {source}")]
    Config {
        /// Name of the run.
        run: String,
        /// The cause.
        source: Box<ConfigError>,
    },
    /// A worker ended: a guard stopped a draft, or the drafter failed.
    #[error("{run}: {source}")]
    Worker {
        /// Name of the run.
        run: String,
        /// The cause.
        source: Box<WorkerError>,
    },
    /// Speculation changed a text.
    #[error("{run}: request {request} became {found:?}, without speculation it is {expected:?}")]
    Text {
        /// Name of the run.
        run: String,
        /// Index of the request.
        request: usize,
        /// The request's tokens without speculation.
        expected: Vec<u32>,
        /// The request's tokens with speculation.
        found: Vec<u32>,
    },
    /// A second run drafted other tokens for the same requests.
    #[error("{run}: a second run of the same requests drafted something else")]
    Differs {
        /// Name of the run.
        run: String,
    },
    /// Nothing was ever drafted, so nothing was checked.
    #[error("{run}: nothing was drafted")]
    Idle {
        /// Name of the run.
        run: String,
    },
}

/// Counts from a battery that passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of runs; each runs all requests.
    pub runs: usize,
    /// Number of tokens drafted.
    pub drafted: usize,
    /// Number of rows that were drafted as trees with branches.
    pub trees: usize,
    /// Number of drafted tokens that were accepted.
    pub accepted: usize,
    /// Number of steps with another depth, by a policy, than the step before; 0 where the
    /// algorithm's depth can't adapt.
    pub switches: usize,
}

/// Most positions of a request.
const CONTEXT: usize = 128;
/// Requests that run at once on a DP rank. There are more requests than slots, so that slots
/// change hands.
const SLOTS: usize = 3;
/// Number of tokens of a page.
const PAGE_SIZE: usize = 16;

/// Runs the battery over the algorithm of `registry` called `name`, on one rank on this
/// machine's cores. `target` is the folder of the model; `draft` is the folder of a draft, for
/// algorithms that need one.
///
/// # Errors
/// [`ConformanceError`]: the first rule that is broken.
pub fn check(
    registry: &Registry,
    name: &str,
    target: &Path,
    draft: Option<&Path>,
) -> Result<Report, ConformanceError> {
    check_on(DeviceKind::Cpu, registry, name, target, draft)
}

/// Runs the battery as [`check`] does, on the given ranks. A [`DeviceKind`] stands for one rank
/// on a device of that kind.
///
/// # Errors
/// [`ConformanceError`]: the first rule that is broken.
pub fn check_on(
    ranks: impl Into<Ranks>,
    registry: &Registry,
    name: &str,
    target: &Path,
    draft: Option<&Path>,
) -> Result<Report, ConformanceError> {
    let (ranks, algorithms) = (ranks.into(), registry.algorithms());
    let algorithm = algorithms
        .find(name)
        .ok_or_else(|| ConformanceError::Unknown(name.to_owned()))?;
    let model = lockstep_model_folder::load(target).map_err(|error| ConformanceError::Config {
        run: "the target".to_owned(),
        source: Box::new(error.into()),
    })?;
    let wrong = answers(algorithm.as_ref(), &model, draft);
    if !wrong.is_empty() {
        return Err(ConformanceError::Answers(wrong));
    }
    let candidate = Candidate {
        ranks,
        algorithms: &algorithms,
        algorithm: algorithm.as_ref(),
        target,
        draft,
    };
    registry.run(ranks.device, candidate)
}

/// An algorithm with the models that it drafts for and with.
struct Candidate<'a> {
    ranks: Ranks,
    algorithms: &'a Algorithms,
    algorithm: &'a dyn Algorithm,
    target: &'a Path,
    draft: Option<&'a Path>,
}

impl OnDevice for Candidate<'_> {
    type Output = Result<Report, ConformanceError>;

    fn run<B: Device>(self, drafters: &DrafterRegistry<B>) -> Self::Output {
        let shapes = Shape::all(self.algorithm);
        let mut battery = Battery {
            drafters,
            candidate: self,
            expected: Vec::new(),
        };
        let mut report = Report::default();
        for shape in shapes {
            battery.run(&shape, &mut report)?;
        }
        Ok(report)
    }
}

/// The runs of a candidate on one device.
struct Battery<'a, B: Backend> {
    drafters: &'a DrafterRegistry<B>,
    candidate: Candidate<'a>,
    /// Texts without speculation, once they are known.
    expected: Vec<Vec<u32>>,
}

/// Size of the drafts of a run, and their verification.
struct Shape {
    name: &'static str,
    /// Draft steps, branches and tokens; `None` for the algorithm's own sizes.
    sizes: Option<[usize; 3]>,
    verification: Option<VerificationArg>,
    /// True if ranks agree on another depth for every step.
    adapts: bool,
    /// True if the algorithm may refuse the shape.
    optional: bool,
}

impl Shape {
    /// Returns the shapes that an algorithm promises to draft.
    fn all(algorithm: &dyn Algorithm) -> Vec<Self> {
        let capabilities = algorithm.capabilities();
        let shape = |name, sizes, optional| Self {
            name,
            sizes,
            verification: None,
            adapts: false,
            optional,
        };
        let mut all = vec![
            shape("its own shape", None, false),
            shape("chains of one step", Some([1, 1, 2]), true),
            shape("chains of six steps", Some([6, 1, 7]), true),
        ];
        if capabilities.supports_tree {
            all.push(shape("trees", Some([3, 3, 9]), false));
        }
        if capabilities.adaptive {
            let promised = all.iter().filter(|shape| !shape.optional);
            let adapting = promised.map(Self::adapting).collect::<Vec<_>>();
            all.extend(adapting);
        }
        if capabilities.draft_probabilities {
            all.push(Self {
                verification: Some(VerificationArg::Rejection),
                ..shape("sampled drafts", None, false)
            });
        }
        if capabilities.draft_probabilities && capabilities.supports_tree {
            all.push(Self {
                verification: Some(VerificationArg::Rejection),
                ..shape("sampled trees", Some([3, 3, 9]), false)
            });
        }
        all
    }

    /// Returns this shape with a depth that ranks agree on in each step.
    fn adapting(&self) -> Self {
        let name = match self.name {
            "trees" => "trees whose depth adapts",
            _ => "a depth that adapts",
        };
        Self {
            name,
            adapts: true,
            ..*self
        }
    }
}

impl<B: Device> Battery<'_, B> {
    fn run(&mut self, shape: &Shape, report: &mut Report) -> Result<(), ConformanceError> {
        let run = format!("{} with {}", self.candidate.algorithm.name(), shape.name);
        let config = match self.candidate.config(shape) {
            Ok(config) => config,
            Err(_) if shape.optional => return Ok(()),
            Err(source) => {
                let source = Box::new(source);
                return Err(ConformanceError::Config { run, source });
            }
        };
        let failed = |source| ConformanceError::Worker {
            run: run.clone(),
            source: Box::new(source),
        };
        if self.expected.is_empty() {
            let mut plain = config.clone();
            plain.speculation = SpeculationConfig::none();
            let play = Play::new(&plain, self.drafters).and_then(Play::run);
            self.expected = play.map_err(failed)?.texts;
        }
        let mut digests = Vec::new();
        for _ in 0..2 {
            let (mut watched, findings) = watch(self.drafters);
            watched.add_policy(Arc::new(Turns::default()));
            let found = Play::new(&config, &watched)
                .and_then(Play::run)
                .map_err(failed)?;
            let texts = self.expected.iter().zip(&found.texts);
            for (request, (expected, found)) in texts.enumerate() {
                // Sampled drafts are lossless in law, not text by text.
                let greedy = requests::all()[request].generation.sampling.temperature == 0.0;
                if expected != found && (greedy || shape.verification.is_none()) {
                    return Err(ConformanceError::Text {
                        run,
                        request,
                        expected: expected.clone(),
                        found: found.clone(),
                    });
                }
            }
            if findings.drafted() == 0 {
                return Err(ConformanceError::Idle { run });
            }
            report.runs += 1;
            report.drafted += findings.drafted();
            report.trees += findings.branched();
            report.accepted += found.accepted;
            report.switches += found.switches;
            digests.push(findings.digest());
        }
        if digests[0] != digests[1] {
            return Err(ConformanceError::Differs { run });
        }
        Ok(())
    }
}

impl Candidate<'_> {
    /// Returns the configuration of a server that drafts in the given shape.
    fn config(&self, shape: &Shape) -> Result<EngineConfig, ConfigError> {
        let mut args = ServeArgs::default();
        args.model.model_path = Some(self.target.to_owned());
        args.model.dtype = Some(DtypeArg::Float32);
        args.model.context_length = Some(CONTEXT);
        args.parallel = self.ranks.args();
        args.memory.page_size = Some(PAGE_SIZE);
        args.memory.max_total_tokens = Some(requests::all().len() * 2 * CONTEXT);
        args.schedule.max_running_requests = Some(SLOTS * self.ranks.dp_size);
        args.speculation = SpeculationArgs {
            speculative_algorithm: Some(self.algorithm.name().to_owned()),
            speculative_draft_model_path: self.draft.map(PathBuf::from),
            speculative_num_steps: shape.sizes.map(|[steps, _, _]| steps),
            speculative_eagle_topk: shape.sizes.map(|[_, topk, _]| topk),
            speculative_num_draft_tokens: shape.sizes.map(|[_, _, tokens]| tokens),
            speculative_verification: shape.verification,
            // Left unset, it would adapt with data-parallel attention, and by measured times.
            speculative_adaptive: Some(false),
            ..SpeculationArgs::default()
        };
        let resolved = resolve(
            &args,
            &Hardware::detect(),
            self.algorithms,
            &DeviceFootprint,
        )?;
        let mut config = resolved.value.0;
        if config.model.has_states() {
            // One for each slot, and one for each request that may go on from a copy.
            config.kv.states = SLOTS + requests::all().len();
        }
        if shape.adapts {
            config.speculation.adaptive = Some(turns::config(&config.speculation));
        }
        Ok(config)
    }
}
