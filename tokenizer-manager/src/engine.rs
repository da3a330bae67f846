//! What every surface and every request shares.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockstep_proto::pb::lockstep::WeightsInUse;
use lockstep_types::EngineConfig;

use crate::{
    error::{ApiError, ApiResult},
    gate::{Gate, GateState},
    metrics::Metrics,
    scheduler::Scheduler,
    text::Text,
};

/// What the weights are called that an engine starts with, as in SGLang.
pub const FIRST_WEIGHTS: &str = "default";

/// The front of one engine.
#[derive(Debug)]
pub struct Engine {
    /// What all processes agree on.
    pub config: Arc<EngineConfig>,
    /// Its hash.
    pub config_hash: String,
    /// This tokenizer-manager's number.
    pub index: usize,
    /// What clients must show.
    pub api_key: Option<String>,
    /// The folder inside which requests may name folders of weights.
    pub weight_update_dir: Option<PathBuf>,
    /// Text in and out of tokens.
    pub text: Text,
    /// Where requests go.
    pub scheduler: Scheduler,
    /// Who is let in.
    pub gate: Gate,
    /// What is measured.
    pub metrics: Metrics,
    /// When this process started, seconds since 1970.
    pub started: u64,
}

impl Engine {
    /// OpenAI's `system_fingerprint`: equal results may be expected of equal fingerprints.
    pub fn fingerprint(&self) -> String {
        let hash = &self.config_hash;
        format!("fp_{}", hash.get(..12).unwrap_or(hash))
    }

    /// The model's name in the API.
    pub fn model(&self) -> &str {
        &self.config.server.served_model_name
    }

    /// The weights that compute.
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

    /// Whether a forward step runs and requests are let in.
    ///
    /// # Errors
    /// 503 saying why not.
    pub async fn healthy(&self, force_step: bool) -> ApiResult<()> {
        if self.gate.state() != GateState::Open {
            return Err(ApiError::unavailable("The server is shutting down."));
        }
        let limit = Duration::from_secs(self.config.timeouts.health_s);
        let health = self.scheduler.health(force_step, limit).await;
        health.map_err(|reason| ApiError::unavailable(format!("The engine is unhealthy: {reason}")))
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// A fresh id: 32 hexadecimal digits.
pub fn fresh_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}
