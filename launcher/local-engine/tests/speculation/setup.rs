//! Engines configured by their flags.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use lockstep_config::{
    Hardware, ServeArgs,
    args::{DeviceArg, DtypeArg, VerificationArg},
    resolve,
};
use lockstep_devices::{DeviceFootprint, Registry};
use lockstep_local_engine::{LocalEngine, LocalOptions, MaskPlace};
use lockstep_tp_worker::worker::StateProbe;
use lockstep_types::{
    CheckpointFormat, DeviceKind, DflashSpec, DraftKind, Dtype, EngineConfig, ExpertGate,
    ExpertGroups, ExpertTensors, ExpertsNames, ExpertsSpec, Footprint as _, GatedDeltaNames,
    GatedDeltaSpec, GatedMlpNames, GroupWorth, LatentAttentionNames, LatentAttentionSpec,
    LoadFormat, Mamba2Names, Mamba2Spec, Mixer, Mlp, ModelConfig, Mxfp4Checkpoint, RopeConfig,
    RouterWeights, Routing, ShortConvolutionNames, ShortConvolutionSpec,
};

use crate::{gemma4::be_gemma4, policies::Policy};

/// Most tokens of a request, prompt and output together.
pub const CONTEXT: usize = 288;
/// Likewise, of [`Layers::Fixture`]: outputs pass the positions whose states are kept.
pub const FIXTURE_CONTEXT: usize = 384;

/// The algorithm that drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    Eagle3,
    Eagle,
    Standalone,
    Ngram,
    Dflash,
    /// The model's own draft layer, of [`Layers::Fixture`].
    Nextn,
    /// No drafter: only forced text is drafted.
    JumpForward,
    /// The target is its own draft model.
    Itself,
}

impl Algorithm {
    /// Drafters that propose tokens of their own. The first four also draft trees.
    pub const ALL: [Self; 5] = [
        Self::Eagle3,
        Self::Eagle,
        Self::Standalone,
        Self::Ngram,
        Self::Dflash,
    ];

    /// Returns the shapes among `shapes` that the algorithm drafts.
    pub fn shapes<const N: usize>(self, shapes: [Shape; N]) -> impl Iterator<Item = Shape> {
        let chains = self == Self::Dflash;
        shapes
            .into_iter()
            .filter(move |shape| !chains || shape.topk == 1)
    }

    /// Name of the algorithm for `--speculative-algorithm`.
    fn name(self) -> &'static str {
        match self {
            Self::Eagle3 => "EAGLE3",
            Self::Eagle => "EAGLE",
            Self::Standalone | Self::Itself => "STANDALONE",
            Self::Ngram => "NGRAM",
            Self::Dflash => "DFLASH",
            Self::Nextn => "NEXTN",
            Self::JumpForward => "JUMP_FORWARD",
        }
    }

    /// Folder of the draft model, from the repository's root.
    fn draft(self) -> Option<&'static str> {
        match self {
            Self::Eagle3 => Some("models/lockstep-demo-7m-eagle3"),
            Self::Eagle => Some("models/lockstep-demo-7m-eagle"),
            Self::Standalone => Some("models/lockstep-demo-1m-draft"),
            Self::Dflash => Some("models/lockstep-demo-7m-dflash"),
            Self::Itself => Some("models/lockstep-demo-7m"),
            Self::Ngram | Self::Nextn | Self::JumpForward => None,
        }
    }
}

/// Depth and width of drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub steps: usize,
    pub topk: usize,
    /// Tokens of a verification, including the last known one.
    pub tokens: usize,
}

impl Shape {
    /// The tree for which the reference has accepted lengths.
    pub const TREE: Self = Self {
        steps: 3,
        topk: 4,
        tokens: 16,
    };

    pub const fn chain(steps: usize) -> Self {
        Self {
            steps,
            topk: 1,
            tokens: steps + 1,
        }
    }
}

/// Settings that decide over the last bits of a text: the type of the weights, the number of
/// ranks, and the number of DP ranks that they form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Form {
    pub bf16: bool,
    pub tp: usize,
    pub dp: usize,
}

impl Form {
    /// The form of float32 weights, split over `tp` ranks.
    pub const fn of_ranks(tp: usize) -> Self {
        Self {
            bf16: false,
            tp,
            dp: 1,
        }
    }
}

/// Layers of the demo model and of its drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    /// Layers as they were trained.
    Trained,
    /// Random weights.
    Random,
    /// Random weights, and two kinds of caches in turn.
    TwoCaches,
    /// Random weights, latent attention, and a gated MLP and experts in groups in turn.
    Latent,
    /// Random weights, and a gated MLP and experts in turn.
    Experts,
    /// Windows of [`WINDOWS`] in turn. The texts that the layers were trained for are gone.
    Windows,
    /// Windows in all layers, of two sizes.
    WindowsAlone,
    /// Random weights, and layers of gpt-oss: [`WINDOWS`] in turn, sinks, and experts in MXFP4
    /// with biases and bounded gates.
    GptOss,
    /// Random weights: three layers of the gated delta rule, and one of attention at the end. Drafts
    /// have attention alone.
    Hybrid,
    /// Likewise, but each recurrent layer goes on by another rule.
    ThreeRules,
    /// Those of a model in `tests/fixtures/nextn`, which has a draft layer of its own, and a
    /// vocabulary of its own too.
    Fixture(&'static str),
    /// Random weights, and layers of Gemma 4: shared caches, embeddings of each layer, and experts
    /// beside MLPs.
    Gemma4,
}

/// A window that hides the ancestors of a tree's nodes, none, and one of more than a page.
pub const WINDOWS: [Option<usize>; 3] = [Some(2), None, Some(21)];

impl Layers {
    fn change(self, model: &mut ModelConfig) {
        match self {
            Self::Trained | Self::Fixture(_) => {}
            Self::Random => randomise(model),
            Self::TwoCaches => mix_caches(model),
            Self::Latent => be_deepseek(model),
            Self::Experts => mix_experts(model),
            Self::Windows => give_windows(model, &WINDOWS),
            Self::WindowsAlone => give_windows(model, &[WINDOWS[0], WINDOWS[2]]),
            Self::GptOss => {
                give_windows(model, &WINDOWS);
                be_gpt_oss(model);
            }
            Self::Hybrid => be_hybrid(model),
            Self::ThreeRules => be_three_rules(model),
            Self::Gemma4 => be_gemma4(model),
        }
    }

    /// Layers of a draft model.
    fn of_draft(self) -> Self {
        match self {
            Self::Hybrid | Self::ThreeRules => Self::Random,
            same => same,
        }
    }
}

fn give_windows(model: &mut ModelConfig, windows: &[Option<usize>]) {
    for (layer, window) in model.layers.iter_mut().zip(windows.iter().cycle()) {
        layer.attention_mut().unwrap().window = window.and_then(NonZeroUsize::new);
    }
}

/// One configuration of the demo model; most fields are flags of `lockstep serve`.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The model's layers.
    pub layers: Layers,
    pub speculation: Option<(Algorithm, Shape)>,
    /// Policy by which the depth adapts, up to the shape's steps.
    pub policy: Option<Policy>,
    pub verification: Option<VerificationArg>,
    pub dtype: Dtype,
    pub tp: usize,
    /// DP ranks; 1: attention is not data-parallel.
    pub dp: usize,
    /// Groups of ranks that experts are split over by number.
    pub ep: usize,
    /// True if ranks compute on GPUs; all on one GPU, if there are fewer GPUs than ranks.
    pub gpus: bool,
    pub page: usize,
    /// Chunk size; `None` for whole prompts.
    pub chunk: Option<i64>,
    pub overlap: bool,
    pub radix: bool,
    /// Requests that run at once.
    pub running: usize,
    /// KV tokens.
    pub tokens: usize,
    /// Recurrent states beside those of the requests that run at once, if there are such layers.
    pub spare_states: usize,
    /// Caution of admission, in thousandths; with little caution, requests are often
    /// retracted.
    pub care: u32,
    /// Positions that drafters may be behind after steps without drafts.
    pub pause_window: usize,
    /// Place of the masks of constrained requests.
    pub masks: MaskPlace,
}

impl Setup {
    /// A setup without speculation, and with room for all requests.
    pub fn plain(dtype: Dtype, tp: usize) -> Self {
        Self {
            layers: Layers::Trained,
            speculation: None,
            policy: None,
            verification: None,
            dtype,
            tp,
            dp: 1,
            ep: 1,
            gpus: false,
            page: 16,
            chunk: Some(512),
            overlap: true,
            radix: false,
            running: 32,
            tokens: 16_384,
            spare_states: 128,
            care: 1000,
            pause_window: 0,
            masks: MaskPlace::Host,
        }
    }

    /// A setup like [`Self::plain`], of that form.
    pub fn of(form: Form) -> Self {
        let dtype = match form.bf16 {
            true => Dtype::Bfloat16,
            false => Dtype::Float32,
        };
        Self {
            dp: form.dp,
            ..Self::plain(dtype, form.tp)
        }
    }

    /// The form by which this setup's texts are compared.
    pub fn form(&self) -> Form {
        Form {
            bf16: self.dtype == Dtype::Bfloat16,
            tp: self.tp,
            dp: self.dp,
        }
    }

    /// A setup like [`Self::plain`], with speculation and prefix cache.
    pub fn drafting(dtype: Dtype, tp: usize, algorithm: Algorithm, shape: Shape) -> Self {
        Self {
            speculation: Some((algorithm, shape)),
            radix: true,
            ..Self::plain(dtype, tp)
        }
    }

    /// Most tokens of a request of this setup, prompt and output together.
    pub fn context(&self) -> usize {
        match self.layers {
            Layers::Fixture(_) => FIXTURE_CONTEXT,
            _ => CONTEXT,
        }
    }

    fn args(&self) -> ServeArgs {
        let mut args = ServeArgs::default();
        args.model.model_path = Some(match self.layers {
            Layers::Fixture(name) => root().join("tests/fixtures/nextn").join(name),
            _ => root().join("models/lockstep-demo-7m"),
        });
        args.model.dtype = Some(match self.dtype {
            Dtype::Bfloat16 => DtypeArg::Bfloat16,
            Dtype::Float32 => DtypeArg::Float32,
        });
        args.model.context_length = Some(self.context());
        args.parallel.tp_size = Some(self.tp);
        args.parallel.dp_size = Some(self.dp);
        args.parallel.enable_dp_attention = self.dp > 1;
        if self.gpus {
            args.parallel.device = Some(DeviceArg::Cuda);
            let last = DeviceFootprint.room(DeviceKind::Cuda, self.tp - 1);
            args.parallel.gpu_id_step = last.is_err().then_some(0);
        } else {
            args.parallel.threads_per_rank = Some(1);
        }
        args.memory.page_size = Some(self.page);
        args.memory.max_total_tokens = Some(self.tokens);
        args.memory.disable_radix_cache = !self.radix;
        args.schedule.max_running_requests = Some(self.running);
        args.schedule.chunked_prefill_size = Some(self.chunk.unwrap_or(-1));
        args.schedule.disable_overlap_schedule = !self.overlap;
        args.schedule.enable_priority_scheduling = true;
        if let Some((algorithm, shape)) = self.speculation {
            let given = &mut args.speculation;
            given.speculative_algorithm = Some(algorithm.name().into());
            given.speculative_draft_model_path = algorithm.draft().map(|path| root().join(path));
            given.speculative_num_steps = Some(shape.steps);
            given.speculative_eagle_topk = Some(shape.topk);
            given.speculative_num_draft_tokens = Some(shape.tokens);
            given.speculative_verification = self.verification;
        }
        args
    }

    /// Resolves the configuration like `lockstep serve`, on a machine that is always the
    /// same.
    pub fn config(&self) -> EngineConfig {
        let machine = Hardware {
            cores: vec![0, 1],
            total_memory: 8 << 30,
            available_memory: 8 << 30,
            memory_limit: None,
        };
        let known = Registry::builtin().algorithms();
        let (mut config, _) = resolve(&self.args(), &machine, &known, &DeviceFootprint)
            .unwrap_or_else(|error| panic!("{self:?}: {error}"))
            .value;
        self.layers.change(&mut config.model);
        assert!(config.model.ep_sizes(self.tp).contains(&self.ep));
        config.parallel.ep_size = self.ep;
        if let Some(draft) = &mut config.speculation.draft {
            // DFlash's models have layers of their own, whatever the target's are.
            if !matches!(draft.kind, DraftKind::Dflash(_)) {
                self.layers.of_draft().change(&mut draft.model);
            }
            if let DraftKind::Eagle3 { capture_layers, .. }
            | DraftKind::Dflash(DflashSpec { capture_layers, .. }) = &mut draft.kind
                && config.model.load_format == LoadFormat::Dummy
            {
                *capture_layers = (1..RANDOM_LAYERS).collect();
            }
        }
        if config.model.has_states() {
            config.kv.states = config.step_limits().requests + self.spare_states;
        }
        config.speculation.pause_window = self.pause_window;
        if let Some(policy) = self.policy {
            config.speculation.adaptive = Some(policy.config(&config.speculation));
        }
        config
    }

    /// Starts the engine.
    pub fn start(&self) -> LocalEngine {
        self.start_with(Registry::builtin())
    }

    /// Starts the engine with the algorithms and policies of a program.
    pub fn start_with(&self, registry: Registry) -> LocalEngine {
        self.start_watched(registry, StateProbe::default())
    }

    /// Starts the engine as [`Self::start_with`] does, with a probe of recurrent states.
    pub fn start_watched(&self, registry: Registry, state_probe: StateProbe) -> LocalEngine {
        let options = LocalOptions {
            registry,
            state_probe,
            masks: Some(self.masks),
            ..LocalOptions::default()
        };
        let engine = LocalEngine::start(&self.config(), &options);
        let engine = engine.unwrap_or_else(|error| panic!("{self:?}: {error}"));
        engine.with_conservativeness(self.care)
    }
}

/// Layers of a model of random weights: two of each kind that differs.
const RANDOM_LAYERS: usize = 4;

/// Gives all weights random values. Leaves out layers, and gives gated MLPs few columns: what
/// these compute says little then, and would take most of the time.
fn randomise(model: &mut ModelConfig) {
    model.load_format = LoadFormat::Dummy;
    model.layers.truncate(RANDOM_LAYERS);
    for layer in &mut model.layers {
        if let Mlp::Gated(mlp) = &mut layer.mlp {
            mlp.width = 64;
        }
    }
}

/// Makes every second layer cache one key/value head instead of two, of twice the width.
fn mix_caches(model: &mut ModelConfig) {
    randomise(model);
    for (number, layer) in model.layers.iter_mut().enumerate() {
        let attention = layer.attention_mut().unwrap();
        attention.heads = 4;
        (attention.kv_heads, attention.head_dim) = [(2, 16), (1, 32)][number % 2];
        attention.scale = (attention.head_dim as f32).powf(-0.5);
    }
    assert_eq!(model.kv_groups().len(), 2);
}

/// The gated delta rule with twice as many value heads as key heads.
fn gated_delta() -> Mixer {
    Mixer::GatedDelta(GatedDeltaSpec {
        key_heads: 2,
        value_heads: 4,
        key_dim: 16,
        value_dim: 16,
        taps: 4,
        names: GatedDeltaNames::default(),
    })
}

/// Makes all layers but the last recurrent.
fn be_hybrid(model: &mut ModelConfig) {
    randomise(model);
    let attention = model.layers.len() - 1;
    for layer in &mut model.layers[..attention] {
        layer.mixer = gated_delta();
    }
    assert!(model.has_states());
}

/// Makes all layers but the last recurrent, each by another rule: the gated delta rule, Mamba-2 with
/// one group that ranks share, and a convolution.
fn be_three_rules(model: &mut ModelConfig) {
    randomise(model);
    let rules = [
        gated_delta(),
        Mixer::Mamba2(Mamba2Spec {
            heads: 4,
            head_dim: 16,
            groups: 1,
            state_dim: 32,
            taps: 4,
            convolution_bias: true,
            bias: false,
            names: Mamba2Names::below("mamba."),
        }),
        Mixer::ShortConvolution(ShortConvolutionSpec {
            channels: 48,
            taps: 3,
            bias: false,
            names: ShortConvolutionNames::default(),
        }),
    ];
    assert_eq!(model.layers.len(), rules.len() + 1);
    for (layer, rule) in model.layers.iter_mut().zip(rules) {
        layer.mixer = rule;
    }
    // As in Nemotron-H, a mixer may be all of a layer.
    model.layers[1].mlp = Mlp::None;
    assert!(model.has_states());
}

/// Gives every second layer 9 experts, of which a token goes through 3.
pub fn mix_experts(model: &mut ModelConfig) {
    randomise(model);
    for layer in model.layers.iter_mut().skip(1).step_by(2) {
        layer.mlp = Mlp::Experts(ExpertsSpec {
            count: 9,
            active: 3,
            width: 44,
            gate: ExpertGate::Silu,
            routing: Routing::softmax(true),
            router_bias: false,
            scales: None,
            shared: None,
            names: ExpertsNames {
                router: "router".to_owned(),
                correction: String::new(),
                experts: ExpertTensors::Single {
                    prefix: "experts".to_owned(),
                    expert: GatedMlpNames::default(),
                },
            },
        });
    }
}

/// Gives all layers sinks, and 6 experts, of which a token goes through 2.
fn be_gpt_oss(model: &mut ModelConfig) {
    randomise(model);
    model.checkpoint = CheckpointFormat::Mxfp4(Mxfp4Checkpoint { floats: Vec::new() });
    for layer in &mut model.layers {
        let attention = layer.attention_mut().unwrap();
        (attention.sinks, attention.qkv_bias, attention.output_bias) = (true, true, true);
        layer.mlp = Mlp::Experts(ExpertsSpec {
            count: 6,
            active: 2,
            width: 64,
            gate: ExpertGate::Clamped {
                limit: 1.0,
                alpha: 1.702,
            },
            routing: Routing::softmax(true),
            router_bias: true,
            scales: None,
            shared: None,
            names: ExpertsNames {
                router: "router".to_owned(),
                correction: String::new(),
                experts: ExpertTensors::Interleaved {
                    gate_up: "experts.gate_up".to_owned(),
                    down: "experts.down".to_owned(),
                    bias: true,
                },
            },
        });
    }
}

/// Gives all layers latent attention, and every second one 8 experts in 4 groups, as DeepSeek V3.
fn be_deepseek(model: &mut ModelConfig) {
    mix_experts(model);
    for layer in &mut model.layers {
        layer.mixer = Mixer::LatentAttention(LatentAttentionSpec {
            heads: 4,
            nope: 24,
            rotated: 16,
            latent: 48,
            value: 20,
            query_latent: Some(40),
            scale: 0.2,
            rope: RopeConfig::plain(10_000.0),
            interleaved: true,
            bias: false,
            norm_eps: 1e-6,
            names: LatentAttentionNames::default(),
        });
        if let Mlp::Experts(experts) = &mut layer.mlp {
            (experts.count, experts.routing) = (
                8,
                Routing {
                    weights: RouterWeights::Sigmoid,
                    corrected: true,
                    groups: Some(ExpertGroups {
                        count: 4,
                        chosen: 2,
                        worth: GroupWorth::TwoLargest,
                    }),
                    ..experts.routing
                },
            );
        }
    }
}

/// Root folder of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
