//! Exchange of weights while the server runs. Every rank looks at the new weights, running
//! requests end on the old ones, every rank loads the new ones, and requests go on.

use std::time::{Duration, Instant};

use lockstep_proto::pb::lockstep::{
    ReloadWeights, UpdateWeightsRequest, UpdateWeightsResponse, WeightsInUse, WeightsReloaded,
};
use lockstep_types::DraftModel;
use lockstep_types::request::{ErrorKind, RequestError};
use tokio::sync::oneshot;

use super::{Engine, Phase, requests::unavailable};
use crate::error::RunError;

/// Name of the first weights' version, as in SGLang.
const FIRST_VERSION: &str = "default";

/// Sender of the outcome.
pub type Reply = oneshot::Sender<UpdateWeightsResponse>;

/// Stage of an update.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Every rank looks at the folders; requests go on.
    Checking,
    /// No request is admitted, and running requests end.
    Emptying,
    /// Every rank reads the new weights.
    Reloading,
}

/// An update under way.
pub struct Update {
    wanted: UpdateWeightsRequest,
    reply: Reply,
    stage: Stage,
    since: Instant,
    /// By rank: its answer in this stage.
    answers: Vec<Option<Result<(), String>>>,
}

impl Update {
    /// Returns the ranks that have not answered yet.
    fn awaited(&self) -> Vec<usize> {
        let awaited = |(rank, answer): (usize, &Option<_>)| answer.is_none().then_some(rank);
        self.answers
            .iter()
            .enumerate()
            .filter_map(awaited)
            .collect()
    }

    /// Returns the number of ranks that refused, and the reason of the first one.
    fn refusals(&self) -> (usize, Option<String>) {
        let mut refusals = self
            .answers
            .iter()
            .enumerate()
            .filter_map(|(rank, answer)| {
                let reason = answer.as_ref()?.as_ref().err()?;
                Some(match self.answers.len() {
                    1 => reason.clone(),
                    _ => format!("rank {rank}: {reason}"),
                })
            });
        let first = refusals.next();
        (refusals.count() + usize::from(first.is_some()), first)
    }
}

impl Engine {
    /// Begins an update, or answers with the reason why not.
    pub(super) fn update_weights(
        &mut self,
        mut wanted: UpdateWeightsRequest,
        reply: Reply,
    ) -> Result<(), RunError> {
        let draft = self.config.speculation.draft.as_ref();
        if draft.is_some_and(DraftModel::is_in_target) && wanted.draft_path.is_none() {
            // What drafts lies in the model's own files.
            wanted.draft_path = Some(wanted.model_path.clone());
        }
        if let Err(error) = self.may_update(&wanted) {
            // The asker may have given up.
            let _ = reply.send(refused(error));
            return Ok(());
        }
        tracing::info!(path = wanted.model_path, "looking at new weights");
        let mut update = Update {
            wanted,
            reply,
            stage: Stage::Checking,
            since: Instant::now(),
            answers: Vec::new(),
        };
        self.broadcast_reload(&mut update, true)?;
        self.update = Some(update);
        Ok(())
    }

    fn may_update(&self, wanted: &UpdateWeightsRequest) -> Result<(), RequestError> {
        if self.phase != Phase::Serving {
            let message = "The engine is starting or shutting down.";
            return Err(unavailable(message.to_owned(), self.served_in()));
        }
        if self.update.is_some() {
            let message = "Another update of the weights is under way; wait for it.";
            return Err(RequestError::new(ErrorKind::Overloaded, message));
        }
        if self.loading.is_some() || !self.adapters.is_empty() {
            let message = "Adapters are loaded, which are of the weights in use; unload them \
                           first, and wait for their requests.";
            return Err(RequestError::new(ErrorKind::Conflict, message));
        }
        if wanted.draft_path.is_some() && self.config.speculation.draft.is_none() {
            return Err(RequestError {
                param: Some("draft_model_path".to_owned()),
                ..RequestError::new(
                    ErrorKind::Invalid,
                    "This server drafts without a model of its own; leave 'draft_model_path' out.",
                )
            });
        }
        Ok(())
    }

    fn broadcast_reload(&self, update: &mut Update, check_only: bool) -> Result<(), RunError> {
        update.since = Instant::now();
        update.answers = vec![None; self.config.parallel.tp_size];
        let reload = ReloadWeights {
            model_path: update.wanted.model_path.clone(),
            draft_path: update.wanted.draft_path.clone(),
            check_only,
        };
        self.group.reload(&reload).map_err(RunError::Group)
    }

    /// Returns true while weights are being exchanged. No plan may be sent then.
    pub(super) fn reloads(&self) -> bool {
        let stage = self.update.as_ref().map(|update| update.stage);
        stage == Some(Stage::Reloading)
    }

    /// Goes to the next stage after the last request has ended, and checks the ranks' time
    /// limit.
    pub(super) fn advance_update(&mut self) -> Result<(), RunError> {
        let Some(mut update) = self.update.take() else {
            return Ok(());
        };
        match update.stage {
            Stage::Emptying if update.reply.is_closed() => {
                tracing::info!("the update of the weights was given up");
                self.planner.hold_admission(false);
                return self.group.forget_weights().map_err(RunError::Group);
            }
            // The cache was computed with the old weights.
            Stage::Emptying
                if self.group.oldest().is_none() && self.planner.flush_cache().is_ok() =>
            {
                tracing::info!("reading new weights");
                update.stage = Stage::Reloading;
                self.broadcast_reload(&mut update, false)?;
            }
            Stage::Emptying => {}
            Stage::Checking | Stage::Reloading => {
                let limit = Duration::from_secs(self.config.timeouts.loading_s());
                self.status.updating(|| update.awaited());
                if update.since.elapsed() > limit {
                    let ranks = update.awaited();
                    return Err(RunError::Group(format!(
                        "no new weights on rank {ranks:?} after {} s (the longer of \
                         --startup-timeout and --weight-update-timeout)",
                        limit.as_secs()
                    )));
                }
            }
        }
        self.update = Some(update);
        Ok(())
    }

    /// Takes a rank's answer. The last answer decides.
    pub(super) fn worker_reloaded(
        &mut self,
        rank: usize,
        reloaded: WeightsReloaded,
    ) -> Result<(), RunError> {
        let Some(mut update) = self.update.take() else {
            return Err(RunError::Group(format!(
                "rank {rank} answered an update that was not asked for"
            )));
        };
        update.answers[rank] = Some(reloaded.error.map_or(Ok(()), Err));
        if !update.awaited().is_empty() {
            self.update = Some(update);
            return Ok(());
        }
        let (refused, reason) = update.refusals();
        match (reason, update.stage) {
            (None, Stage::Checking) => self.empty(update),
            (None, _) => self.updated(update),
            (Some(reason), Stage::Reloading) if refused < update.answers.len() => {
                // The caller of the update hears of the failure.
                self.update = Some(update);
                return Err(RunError::Group(format!(
                    "some ranks have new weights and others could not take them: {reason}"
                )));
            }
            (Some(reason), _) => return self.not_updated(update, &reason),
        }
        Ok(())
    }

    /// Stops admission, because every rank can take the weights.
    fn empty(&mut self, mut update: Update) {
        update.stage = Stage::Emptying;
        self.planner.hold_admission(true);
        let running = self.planner.load().running_requests;
        tracing::info!(running, "waiting for what runs to end on the old weights");
        if update.wanted.abort_all {
            for id in self.sinks.live() {
                self.planner.abort(id);
            }
        }
        self.update = Some(update);
    }

    fn updated(&mut self, update: Update) {
        let before = self.sinks.weights().cloned();
        let before = before.unwrap_or_else(|| self.first_weights());
        let weights = WeightsInUse {
            model_path: update.wanted.model_path,
            draft_path: update.wanted.draft_path.or(before.draft_path),
            version: update.wanted.version.unwrap_or(before.version),
        };
        let paused_requests = self.planner.load().waiting_requests;
        tracing::info!(
            path = weights.model_path,
            version = weights.version,
            paused_requests,
            "serving with new weights"
        );
        self.sinks.broadcast_weights(weights);
        self.planner.hold_admission(false);
        // The asker may have given up.
        let _ = update.reply.send(UpdateWeightsResponse {
            error: None,
            paused_requests,
        });
    }

    fn not_updated(&mut self, update: Update, reason: &str) -> Result<(), RunError> {
        tracing::warn!(reason, "the weights stay as they were");
        self.planner.hold_admission(false);
        let error = RequestError::new(
            ErrorKind::Invalid,
            format!("The weights stay as they were: {reason}"),
        );
        // The asker may have given up.
        let _ = update.reply.send(refused(error));
        // Some ranks may have found nothing wrong, and keep what they looked at.
        self.group.forget_weights().map_err(RunError::Group)
    }

    /// Tells the caller of an update that the engine has failed.
    pub(super) fn fail_update(&mut self, reason: &str) {
        if let Some(update) = self.update.take() {
            let error = unavailable(format!("the engine failed: {reason}"), self.served_in());
            let _ = update.reply.send(refused(error));
        }
    }

    fn first_weights(&self) -> WeightsInUse {
        let draft = self.config.speculation.draft.as_ref();
        WeightsInUse {
            model_path: self.config.model.path.display().to_string(),
            draft_path: draft.map(|draft| draft.model.path.display().to_string()),
            version: FIRST_VERSION.to_owned(),
        }
    }
}

fn refused(error: RequestError) -> UpdateWeightsResponse {
    UpdateWeightsResponse {
        error: Some(error.into()),
        paused_requests: 0,
    }
}
