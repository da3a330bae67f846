//! The application state that every HTTP and gRPC handler shares.

mod figures;
mod shared;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

pub use figures::Figures;
use futures::FutureExt;
use lockstep_proto::pb::lockstep::{FrontFigures, WeightsInUse};
use lockstep_traces::Traces;
use lockstep_types::{
    EngineConfig,
    request::{ErrorKind, RequestError},
};
pub use shared::Shared;
use tokio::time::Instant;

use crate::{
    auth::Keys,
    constraints::Constraints,
    error::ApiResult,
    gate::{Gate, GateState, Ticket},
    metrics::Metrics,
    ports::Ports,
    scheduler_client::SchedulerClient,
    text::Text,
};

/// The version name of the weights that an engine starts with, as in SGLang.
pub const FIRST_WEIGHTS: &str = "default";

/// The state of one tokenizer-manager process.
#[derive(Debug)]
pub struct App {
    /// The resolved configuration.
    pub config: Arc<EngineConfig>,
    /// The configuration's hash, hexadecimal.
    pub config_hash: String,
    /// This tokenizer-manager's index, from 0.
    pub index: usize,
    /// Keys that clients and operators must send.
    pub keys: Keys,
    /// Folder inside which `/update_weights_from_disk` may name folders.
    pub weight_update_dir: Option<PathBuf>,
    /// Folder inside which `/v1/load_lora_adapter` may name folders.
    pub lora_dir: Option<PathBuf>,
    /// Tokenizer and chat template.
    pub text: Text,
    /// The compiler of constraints.
    pub constraints: Constraints,
    /// The client of the scheduler.
    pub scheduler: SchedulerClient,
    /// Admits requests, and counts them for draining.
    pub gate: Gate,
    /// The ports on which clients connect.
    pub ports: Ports,
    /// The Prometheus metrics of this process.
    pub metrics: Metrics,
    /// Makes spans of requests; `None` if no request is traced.
    pub traces: Option<Traces>,
    /// True if the public ports speak TLS.
    pub is_encrypted: bool,
    /// Source of the figures that this process reports about itself.
    pub figures: Figures,
    /// Recent figures of all tokenizer-managers: without metrics, and with them.
    pub shared_figures: [Shared<Vec<FrontFigures>>; 2],
}

impl App {
    /// OpenAI's `system_fingerprint`; equal configurations have equal ones.
    pub fn fingerprint(&self) -> String {
        let hash = &self.config_hash;
        format!("fp_{}", hash.get(..12).unwrap_or(hash))
    }

    /// The served model's name.
    pub fn model(&self) -> &str {
        &self.config.server.served_model_name
    }

    /// All names that the model goes by, the first one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let aliases = &self.config.server.served_model_aliases;
        std::iter::once(self.model()).chain(aliases.iter().map(String::as_str))
    }

    /// Returns the figures of all tokenizer-managers that answer in time, sorted by
    /// index. With `metrics`, the figures include each process's metrics. This process
    /// is always among them.
    ///
    /// Callers that ask at the same time share one question to the other
    /// tokenizer-managers. Its answer is reused for a second. If the others do not
    /// answer, a caller waits no longer than the time limit of one question.
    pub async fn all_figures(&self, metrics: bool) -> Vec<FrontFigures> {
        let own = self.figures.now(metrics);
        if self.config.parallel.tokenizer_managers == 1 {
            return vec![own];
        }
        // Only the scheduler can reach the other tokenizer-managers.
        let ask = || self.scheduler.figures(metrics).map(Result::ok);
        let shared = &self.shared_figures[usize::from(metrics)];
        let mut all = shared.get(Instant::now, ask).await.unwrap_or_default();
        all.retain(|front| front.index != own.index);
        all.push(own);
        all.sort_by_key(|front| front.index);
        // A process that was replaced a moment ago may be listed twice.
        all.dedup_by_key(|front| front.index);
        all
    }

    /// The weights in use now.
    pub fn weights(&self) -> WeightsInUse {
        self.scheduler.weights().unwrap_or_else(|| {
            let draft = self.config.speculation.draft.as_ref();
            WeightsInUse {
                model_path: self.config.model.path.display().to_string(),
                draft_path: draft.map(|draft| draft.model.path.display().to_string()),
                version: FIRST_WEIGHTS.to_owned(),
            }
        })
    }

    /// Checks that the gate is open and that every rank runs a forward step.
    /// `force_step` runs a step even if the last one is recent.
    ///
    /// # Errors
    /// 503 with the reason while draining, or if no step ends in time.
    pub async fn healthy(&self, force_step: bool) -> ApiResult<()> {
        if self.gate.state() != GateState::Open {
            return Err(self.unavailable("The server is shutting down.").into());
        }
        let limit = Duration::from_secs(self.config.timeouts.health_s);
        let health = self.scheduler.health(force_step, limit).await;
        health.map_err(|reason| {
            let message = format!("The engine is unhealthy: {reason}");
            self.unavailable(message).into()
        })
    }

    /// Admits one request.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] while draining and after.
    pub fn admit(&self) -> Result<Ticket, RequestError> {
        let refused = "The server is shutting down and takes no new requests.";
        self.gate.enter().ok_or_else(|| self.unavailable(refused))
    }

    /// Returns an `Unavailable` error, with the seconds until requests are served again
    /// if the scheduler knows them. (An engine that fails and is started anew ends its
    /// tokenizer-managers as well.)
    fn unavailable(&self, message: impl Into<String>) -> RequestError {
        RequestError {
            retry_after_s: self.scheduler.served_in(),
            ..RequestError::new(ErrorKind::Unavailable, message)
        }
    }
}

/// Returns the time in seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
