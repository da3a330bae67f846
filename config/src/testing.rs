//! Helpers for tests of several modules.

use std::path::Path;
use std::sync::Arc;

use clap::{CommandFactory, FromArgMatches, Parser};
use lockstep_adaptive::{AdaptiveConfig, Policies, Policy, PolicyFactory};
use lockstep_types::{
    Algorithm, Algorithms, Capabilities, ConfigError, DeviceKind, DeviceRoom, DraftKv, DraftModel,
    DraftShape, EngineConfig, EngineShape, Footprint, LayerSpec, MatrixRole, MemoryUse,
    ModelConfig, NodeConfig, NumberOption, OptionSpec, OptionValues, RankMemory, SpeculationConfig,
    SwitchOption, WeightFormat,
};

use crate::args::DeviceArg;
use crate::resolve;
use crate::{Hardware, ServeArgs, with_algorithm_options, with_switch_values};

// The folders of the tests of the crate that reads them.
#[path = "../model-folder/src/testing.rs"]
mod folders;

pub(crate) use folders::{Head, folder, head, llama, with};

/// A program with nothing but the serving options.
#[derive(Debug, Parser)]
#[command(name = "lockstep")]
pub(crate) struct Program {
    #[command(flatten)]
    pub(crate) args: ServeArgs,
}

impl Program {
    pub(crate) fn definition() -> clap::Command {
        let command = with_algorithm_options(Self::command(), &algorithms());
        with_switch_values(command.expect("flags that differ"))
    }

    /// Parses words with the algorithms' flags too.
    pub(crate) fn parse_words<W>(words: impl IntoIterator<Item = W>) -> Result<Self, clap::Error>
    where
        W: Into<std::ffi::OsString> + Clone,
    {
        let matches = Self::definition().try_get_matches_from(words)?;
        Self::from_arg_matches(&matches)
    }
}

/// A machine with two cores and 8 GiB.
pub(crate) fn machine() -> Hardware {
    Hardware {
        cores: vec![0, 1],
        total_memory: 8 << 30,
        available_memory: 8 << 30,
        memory_limit: None,
    }
}

/// Resolves a command line for the small Llama on the machine.
pub(crate) fn resolve_line(line: &str) -> Result<(EngineConfig, NodeConfig), ConfigError> {
    let model = folder(&llama(), None);
    resolve_model(line, model.path(), &machine())
}

/// Resolves a command line for a model folder.
pub(crate) fn resolve_model(
    line: &str,
    model: &Path,
    machine: &Hardware,
) -> Result<(EngineConfig, NodeConfig), ConfigError> {
    let words = ["lockstep"].into_iter().chain(line.split_whitespace());
    let mut args = Program::parse_words(words)
        .expect("options that parse")
        .args;
    args.model.model_path = Some(model.to_owned());
    // The device has tests of its own.
    args.parallel.device.get_or_insert(DeviceArg::Cpu);
    resolve(&args, machine, &algorithms(), &Plain).map(|resolved| resolved.value)
}

/// A device that holds all weights in two bytes and charges no scratch memory.
pub(crate) struct Plain;

impl Plain {
    /// Bytes of activations of a token, over all ranks.
    pub(crate) const TOKEN: usize = 4000;
}

/// Number of parameters of a model without biases.
pub(crate) fn parameters(model: &ModelConfig) -> usize {
    let hidden = model.hidden_size;
    let layer = |layer: &LayerSpec| layer.mixer.elements(hidden) + hidden * (layer.mlp.rows() + 2);
    let tables = if model.tie_word_embeddings { 1 } else { 2 };
    let layers: usize = model.layers.iter().map(layer).sum();
    layers + hidden * (tables * model.vocab_size + 1)
}

impl Footprint for Plain {
    /// A number that follows from both.
    fn shared_part(&self, model: &ModelConfig, attn_tp_size: usize) -> u32 {
        (1000 * model.layers.len() + attn_tp_size) as u32
    }

    fn exists(&self, _: DeviceKind) -> bool {
        true
    }

    /// One GPU of 40 GiB, 30 of which are free.
    fn room(&self, kind: DeviceKind, number: usize) -> Result<Option<DeviceRoom>, String> {
        match (kind, number) {
            (DeviceKind::Cpu, _) => Ok(None),
            (DeviceKind::Cuda, 0) => Ok(Some(DeviceRoom {
                total: 40 << 30,
                free: 30 << 30,
            })),
            (DeviceKind::Cuda, number) => Err(format!("there is no GPU {number}")),
        }
    }

    /// GPUs serve heads of up to 128 columns.
    fn serves(&self, engine: &EngineShape<'_>) -> Result<(), String> {
        let mut heads = engine.model.attentions().map(|layer| layer.head_dim);
        match heads.find(|width| engine.device.kind != DeviceKind::Cpu && *width > 128) {
            None => Ok(()),
            Some(width) => Err(format!("heads of {width} columns are too wide")),
        }
    }

    fn serves_format(
        &self,
        kind: DeviceKind,
        format: WeightFormat,
        _: MatrixRole,
    ) -> Result<(), &'static str> {
        match (kind, format) {
            (DeviceKind::Cpu, _) | (_, WeightFormat::Float) => Ok(()),
            _ => Err("GPUs have no quantized weights"),
        }
    }

    /// NCCL exists, but not at any given path.
    fn collectives(&self, _: DeviceKind, path: Option<&Path>) -> Result<String, String> {
        match path {
            None => Ok("NCCL".to_owned()),
            Some(path) => Err(format!("{} is no NCCL", path.display())),
        }
    }

    fn kernels(&self, _: DeviceKind, name: &str) -> Result<&'static str, String> {
        let known = name.eq_ignore_ascii_case("scalar");
        known
            .then_some("scalar")
            .ok_or_else(|| format!("there is no {name}"))
    }

    fn rank(&self, engine: &EngineShape<'_>, rank: usize) -> RankMemory {
        let of = |model: &ModelConfig, ranks: usize| {
            let mut kv = [0; 2];
            let groups = model.kv_groups().into_iter();
            for group in groups.filter(|group| !group.layers.is_empty()) {
                let layer = model.layers[group.layers[0]].attention().unwrap();
                let heads = 2 * group.layers.len() * layer.kv_heads_per_rank(ranks);
                let bytes = heads * engine.kv_dtype.row_bytes(layer.head_dim);
                kv[usize::from(group.spec.window().is_some())] += bytes as u64;
            }
            let [state, record] = model.state_and_record_bytes(ranks);
            MemoryUse {
                weights: (2 * parameters(model) / ranks) as u64,
                kv_per_token: kv[0],
                kv_window_per_token: kv[1],
                state,
                record,
                ..MemoryUse::default()
            }
        };
        let draft = engine
            .speculation
            .draft
            .as_ref()
            .filter(|_| engine.leads(rank));
        let mut target = of(engine.model, engine.attn_tp_size());
        target.weights = (2 * parameters(engine.model) / engine.tp_size) as u64;
        target.activations = (engine.step.tokens * Self::TOKEN / engine.tp_size) as u64;
        RankMemory {
            target,
            draft: draft.map_or_else(MemoryUse::default, |draft| of(&draft.model, 1)),
            scratch: 0,
            graphs: (engine.graphs.len() as u64) << 20,
            exchange: 0,
            gathered: 0,
        }
    }
}

/// An algorithm of every kind.
pub(crate) fn algorithms() -> Algorithms {
    let mut algorithms = Algorithms::with_policies(policies());
    const NAMES: &str = "EAGLE EAGLE3 NEXTN STANDALONE DFLASH WINDOW TEXTS BLOCKS REFUSING";
    for name in NAMES.split(' ') {
        algorithms.add(Arc::new(TestAlgorithm(name)));
    }
    algorithms
}

/// The program's own policies, and one of a user's.
fn policies() -> Policies {
    let mut policies = Policies::builtin();
    policies.add(Arc::new(UsersPolicy));
    policies
}

/// A policy that decides like `static`.
#[derive(Debug)]
struct UsersPolicy;

impl PolicyFactory for UsersPolicy {
    fn name(&self) -> &str {
        "users"
    }

    fn summary(&self) -> &str {
        "decides for tests."
    }

    fn build(&self, config: &AdaptiveConfig) -> Box<dyn Policy> {
        let policies = Policies::builtin();
        let fixed = policies.find("static").expect("everybody has it");
        fixed.build(config)
    }
}

/// An algorithm for tests, by its name.
#[derive(Debug)]
pub(crate) struct TestAlgorithm(pub(crate) &'static str);

/// Options of WINDOW.
const SIZE: NumberOption = NumberOption {
    flag: "--speculative-window-size",
    unit: "TOKENS",
    default: 4,
    least: 2,
    most: 64,
    help: "tokens that are looked at",
};
const NODES: NumberOption = NumberOption {
    flag: "--speculative-window-nodes",
    unit: "NODES",
    default: 1 << 20,
    least: 1,
    most: 1 << 28,
    help: "what is kept of them",
};
const PRIVATE: SwitchOption = SwitchOption {
    flag: "--speculative-window-private",
    help: "remember nothing",
    details: "It is slower.",
};
const OPTIONS: [OptionSpec; 3] = [
    OptionSpec::Number(SIZE),
    OptionSpec::Number(NODES),
    OptionSpec::Switch(PRIVATE),
];
/// Flags that the program has already.
const A_FLAG_OF_THE_PROGRAM: [OptionSpec; 1] = [OptionSpec::Number(NumberOption {
    flag: "--port",
    ..SIZE
})];
const AN_OPTION_OF_WINDOW: [OptionSpec; 1] =
    [OptionSpec::Number(NumberOption { default: 5, ..SIZE })];

impl Algorithm for TestAlgorithm {
    fn name(&self) -> &str {
        self.0
    }

    fn summary(&self) -> &str {
        "drafts for tests."
    }

    fn capabilities(&self) -> Capabilities {
        let draft_kv = match self.0 {
            "EAGLE" | "EAGLE3" | "NEXTN" => DraftKv::Pairs,
            "STANDALONE" | "DFLASH" => DraftKv::Tokens,
            _ => DraftKv::None,
        };
        let has_model = draft_kv != DraftKv::None;
        Capabilities {
            needs_draft_model: has_model,
            draft_in_target: self.0 == "NEXTN",
            draft_kv,
            supports_tree: !["BLOCKS", "DFLASH"].contains(&self.0),
            supports_target_verify_for_draft: self.0 == "BLOCKS",
            draft_probabilities: has_model,
            carries_hidden_states: draft_kv == DraftKv::Pairs,
            adaptive: self.0 != "TEXTS",
            drafts_from_texts: self.0 == "TEXTS",
        }
    }

    fn default_shape(&self) -> DraftShape {
        if self.0 != "WINDOW" {
            return DraftShape::chain(3);
        }
        DraftShape {
            num_steps: 5,
            topk: 4,
            num_draft_tokens: 8,
        }
    }

    fn default_shape_with(&self, draft: &DraftModel) -> DraftShape {
        let steps = draft.most_steps();
        steps.map_or_else(|| self.default_shape(), DraftShape::chain)
    }

    fn load_draft(
        &self,
        path: Option<&Path>,
        target: &ModelConfig,
    ) -> Result<Option<DraftModel>, ConfigError> {
        let load = |path| match self.0 {
            "EAGLE" => lockstep_model_folder::draft::eagle(path, target),
            "EAGLE3" => lockstep_model_folder::draft::eagle3(path, target),
            "DFLASH" => lockstep_model_folder::draft::dflash(path, target),
            _ => lockstep_model_folder::draft::whole_model(path, target),
        };
        if self.0 == "NEXTN" {
            return lockstep_model_folder::draft::nextn(path, target).map(Some);
        }
        path.map(load).transpose()
    }

    fn validate(
        &self,
        speculation: &SpeculationConfig,
        _: &ModelConfig,
    ) -> Result<(), ConfigError> {
        match self.0 {
            "REFUSING" => Err(ConfigError::value(
                "--speculative-num-steps",
                speculation.num_steps,
                "is refused",
                "Give none",
            )),
            _ => Ok(()),
        }
    }

    fn options(&self) -> &[OptionSpec] {
        match self.0 {
            "WINDOW" | "WINDOW AGAIN" => &OPTIONS,
            "CLASHES WITH A FLAG" => &A_FLAG_OF_THE_PROGRAM,
            "CLASHES WITH AN OPTION" => &AN_OPTION_OF_WINDOW,
            _ => &[],
        }
    }

    fn why_others_refuse_options(&self) -> &str {
        "it has no window"
    }

    /// Sets nodes to twice the window, unless nodes are given. A private window takes no nodes.
    fn complete_options(&self, given: &mut OptionValues) -> Result<(), ConfigError> {
        if let (Some(size), None) = (SIZE.given(given), NODES.given(given)) {
            NODES.set(given, 2 * size);
        } else if NODES.given(given).is_some() && PRIVATE.get(given) {
            let remedy = "Leave one of them out";
            return Err(ConfigError::conflict(
                NODES.flag,
                PRIVATE.flag,
                "no",
                remedy,
            ));
        }
        Ok(())
    }

    fn pause_window(&self) -> usize {
        if self.0 == "EAGLE" { 9 } else { 0 }
    }

    fn memory_bytes(&self, speculation: &SpeculationConfig) -> u64 {
        match self.0 {
            "WINDOW" => 100 * NODES.get(&speculation.options),
            _ => 0,
        }
    }

    fn tokens_per_request_for_verify(&self, draft_tokens: usize, is_draft: bool) -> usize {
        match (self.0, is_draft) {
            ("BLOCKS" | "WIDE DRAFTS", true) => 2 * draft_tokens,
            ("BLOCKS", false) => 10 * draft_tokens,
            _ => draft_tokens,
        }
    }
}
