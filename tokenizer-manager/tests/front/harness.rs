//! A tokenizer-manager in this process, with a mock scheduler behind it.

use std::{path::PathBuf, sync::Arc};

use lockstep_process::{ChildMessage, ControlLink, Role, RoleContext};
use lockstep_tokenizer_manager::{Listeners, RunError, serve_on};
use lockstep_types::{
    Activation, AdapterLimits, AnswersConfig, Architecture, AttentionSpec, CheckpointFormat,
    ConnectionLimits, DeviceConfig, Dtype, EngineConfig, GatedMlpNames, GatedMlpSpec, KvCacheDtype,
    KvConfig, LayerSpec, LimitsConfig, LoadFormat, Mixer, Mlp, ModelConfig, Multipliers,
    NodeConfig, NormKind, Norms, ParallelConfig, Quantization, RequestLimits, ScheduleConfig,
    SchedulePolicy, ServerConfig, SpeculationConfig, TensorNames, TimeoutConfig, WebConfig,
};
use tokio::{net::TcpListener, sync::mpsc::UnboundedReceiver, task::JoinHandle};

use super::mock::Mock;

/// Model name in these tests.
pub const MODEL: &str = "demo";
/// Hash of the configuration in these tests.
pub const HASH: &str = "0123456789abcdef0123456789abcdef";
/// Context length in these tests, tokens.
pub const CONTEXT: usize = 256;

/// Seconds until requests are served again, in place of a launcher's forecast.
pub const SERVED_IN: u32 = 7;

/// A running tokenizer-manager.
pub struct Front {
    pub url: String,
    pub address: std::net::SocketAddr,
    pub grpc: String,
    pub mock: Arc<Mock>,
    pub context: RoleContext,
    pub client: reqwest::Client,
    pub served: JoinHandle<Result<(), RunError>>,
    pub reports: UnboundedReceiver<ChildMessage>,
    _run_dir: tempfile::TempDir,
}

/// Starts a front with the defaults of these tests.
pub async fn start() -> Front {
    start_with(|_, _| {}).await
}

/// Starts a front with a changed configuration and waits until it reports readiness.
pub async fn start_with(change: impl FnOnce(&mut EngineConfig, &mut NodeConfig)) -> Front {
    let run_dir = tempfile::tempdir().expect("run dir");
    let (mut engine, mut node) = (engine_config(), node_config(run_dir.path().to_owned()));
    change(&mut engine, &mut node);
    let mock = Mock::start(&node.frontend_socket(), HASH);
    let mut front = launch(engine, node, mock, run_dir).await;
    match front.reports.recv().await {
        Some(ChildMessage::Ready { .. }) => front,
        other => panic!("not ready but {other:?}"),
    }
}

/// Starts a front without waiting for readiness.
pub async fn launch(
    engine: EngineConfig,
    node: NodeConfig,
    mock: Arc<Mock>,
    run_dir: tempfile::TempDir,
) -> Front {
    let (link, reports) = ControlLink::detached();
    let link = link.with_outlook(Some(SERVED_IN));
    let context = RoleContext {
        engine: engine.into(),
        node: node.into(),
        config_hash: HASH.to_owned(),
        role: Role::TokenizerManager(0),
        link,
        traces: None,
    };
    let bind = || TcpListener::bind("127.0.0.1:0");
    let (http, grpc) = (bind().await.expect("port"), bind().await.expect("port"));
    let address = http.local_addr().expect("address");
    let grpc_address = grpc.local_addr().expect("address");
    let listeners = Listeners {
        http,
        grpc: Some(grpc),
    };
    Front {
        url: format!("http://{address}"),
        address,
        grpc: format!("http://{grpc_address}"),
        mock,
        served: tokio::spawn(serve_on(context.clone(), listeners)),
        context,
        client: reqwest::Client::builder()
            .no_proxy()
            // A test whose answer never comes fails instead of hanging.
            .timeout(std::time::Duration::from_secs(120))
            .build()
            .expect("client"),
        reports,
        _run_dir: run_dir,
    }
}

/// Returns a configuration of the demo model with a short context.
pub fn engine_config() -> EngineConfig {
    EngineConfig {
        model: model_config(),
        dtype: Dtype::Float32,
        device: DeviceConfig::default(),
        isa: None,
        graphs: Vec::new(),
        parallel: ParallelConfig {
            tp_size: 1,
            dp_size: 1,
            ep_size: 1,
            nnodes: 1,
            dist_init_addr: String::new(),
            threads_per_rank: 1,
            tokenizer_managers: 1,
            collectives: Default::default(),
        },
        kv: KvConfig {
            page_size: 16,
            num_pages: 64,
            states: 0,
            dtype: KvCacheDtype::Float32,
            radix_cache: true,
        },
        schedule: ScheduleConfig {
            max_running_requests: 8,
            max_queued_requests: 8,
            max_queued_tokens: 4096,
            max_prefill_tokens: 512,
            chunked_prefill_size: None,
            policy: SchedulePolicy::Fcfs,
            priorities: false,
            overlap: true,
        },
        speculation: SpeculationConfig {
            max_speculative_num_draft_tokens: 4,
            ..SpeculationConfig::none()
        },
        adapters: AdapterLimits::default(),
        timeouts: TimeoutConfig {
            request_s: None,
            queue_s: None,
            step_watchdog_s: 60,
            health_s: 2,
            drain_s: 10,
            drain_delay_s: 0,
            startup_s: 60,
            weight_update_s: 60,
        },
        server: server_config(),
    }
}

fn server_config() -> ServerConfig {
    ServerConfig {
        host: "127.0.0.1".to_owned(),
        port: 0,
        grpc_port: None,
        sglang_grpc_port: None,
        served_model_name: MODEL.to_owned(),
        served_model_aliases: Vec::new(),
        context_length: CONTEXT,
        api_key_required: false,
        sglang_metrics: false,
        web: WebConfig {
            console: true,
            ..WebConfig::default()
        },
        answers: AnswersConfig::default(),
        limits: LimitsConfig {
            body_bytes: 64 * 1024,
            header_bytes: 8 * 1024,
            json_depth: 32,
            memory_bytes: 1 << 20,
            connections: ConnectionLimits {
                per_port: 64,
                per_peer: 64,
                streams: 128,
                first_byte_s: 10,
                head_s: 10,
                body_s: 10,
                body_rate: 0,
                send_s: 60,
                keep_alive_s: 60,
            },
            request: RequestLimits {
                messages: 16,
                tools: 4,
                tool_bytes: 4096,
                prompts: 8,
                choices: 8,
                top_logprobs: 20,
                stops: 4,
                stop_bytes: 64,
                stop_token_ids: 8,
                logit_bias: 8,
            },
        },
    }
}

fn layer() -> LayerSpec {
    LayerSpec {
        mixer: Mixer::Attention(AttentionSpec::dense(8, 4, 64)),
        mlp: Mlp::Gated(GatedMlpSpec {
            activation: Activation::Silu,
            width: 768,
            bias: false,
            names: GatedMlpNames::default(),
        }),
        norms: Norms::Before,
        rms_norm_eps: 1e-5,
        scale: 1.0,
    }
}

fn model_config() -> ModelConfig {
    ModelConfig {
        path: PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../models/lockstep-demo-7m"
        )),
        load_format: LoadFormat::Auto,
        checkpoint: CheckpointFormat::Floats,
        quantization: Quantization::None,
        architecture: Architecture {
            class_name: "LlamaForCausalLM".into(),
            model_type: "llama".into(),
        },
        names: TensorNames::default(),
        hidden_size: 256,
        layers: vec![layer(); 7],
        vocab_size: 4096,
        per_layer: None,
        max_position_embeddings: 2048,
        norm: NormKind::Rms,
        multipliers: Multipliers::default(),
        rms_norm_eps: 1e-5,
        tie_word_embeddings: true,
        eos_token_ids: vec![2],
        tokenizer_eos_id: Some(2),
        bos_token_id: None,
    }
}

/// Returns the configuration of a node whose sockets are in `run_dir`.
pub fn node_config(run_dir: PathBuf) -> NodeConfig {
    NodeConfig {
        node_rank: 0,
        run_dir,
        cores: Vec::new(),
        weight_cache: None,
        weight_update_dir: None,
        lora_paths: Vec::new(),
        lora_dir: None,
        api_key: None,
        admin_api_key: None,
        tls: None,
        dist_tls: None,
        dist_secret: None,
        log: "off".to_owned(),
        log_json: false,
        traces: None,
    }
}
