//! Generate calls in progress, by their clients' ids.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::{inbox::Commands, sinks::SinkId};

/// Sink of a call's choices, and their number.
pub type Choices = (SinkId, u64);

/// A call that has been entered.
struct InProgress {
    aborted: CancellationToken,
    /// `None` until its choices are submitted, as long as its constraint compiles.
    choices: Option<Choices>,
}

/// Calls in progress, by the client's id.
#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<BTreeMap<String, InProgress>>>);

impl Calls {
    /// Enters a call, before anything else is done for it.
    ///
    /// # Errors
    /// ALREADY_EXISTS if a call in progress has this id.
    pub fn register(&self, request_id: String, commands: Commands) -> Result<Registration, Status> {
        let aborted = CancellationToken::new();
        match self.lock().entry(request_id.clone()) {
            Entry::Vacant(place) => place.insert(InProgress {
                aborted: aborted.clone(),
                choices: None,
            }),
            Entry::Occupied(taken) => {
                let message = format!("request_id {} is in use", taken.key());
                return Err(Status::already_exists(message));
            }
        };
        Ok(Registration {
            request_id,
            aborted,
            sink: None,
            calls: self.clone(),
            commands,
            finished: false,
        })
    }

    /// Notes that a call is to be aborted. Returns the choices that have to be, if they may have
    /// been submitted; `None` if no call in progress has this id.
    pub fn abort(&self, request_id: &str) -> Option<Option<Choices>> {
        let calls = self.lock();
        let call = calls.get(request_id)?;
        call.aborted.cancel();
        Some(call.choices)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, InProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call in progress. Dropping it closes its sink, which aborts choices that still run.
pub struct Registration {
    request_id: String,
    aborted: CancellationToken,
    sink: Option<SinkId>,
    calls: Calls,
    commands: Commands,
    finished: bool,
}

impl Registration {
    /// Returns the client's id of the call.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Waits until the call is to be aborted.
    pub async fn aborted(&self) {
        self.aborted.cancelled().await;
    }

    /// True if the call is to be aborted.
    pub fn is_aborted(&self) -> bool {
        self.aborted.is_cancelled()
    }

    /// Notes that the call's choices are submitted from now on, with this sink. Returns false if
    /// they must not be, since the call is to be aborted.
    pub fn submits(&mut self, choices: Choices) -> bool {
        self.sink = Some(choices.0);
        let mut calls = self.calls.lock();
        let call = calls.get_mut(&self.request_id);
        let call = call.filter(|call| !call.aborted.is_cancelled());
        call.map(|call| call.choices = Some(choices)).is_some()
    }

    /// Notes that all choices have ended.
    pub fn finished(&mut self) {
        self.finished = true;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.calls.lock().remove(&self.request_id);
        if !self.finished {
            tracing::debug!(request_id = self.request_id, "the caller left");
        }
        if let Some(sink) = self.sink {
            self.commands.close(sink);
        }
    }
}
