//! Generate calls in progress, by their clients' ids.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tonic::Status;

use crate::{inbox::Commands, sinks::SinkId};

/// Sink and number of choices of each call in progress, by the client's id.
#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<BTreeMap<String, (SinkId, u64)>>>);

impl Calls {
    /// Enters a call. Its sink is closed when the registration is dropped, also if the call is
    /// refused.
    ///
    /// # Errors
    /// ALREADY_EXISTS if a call in progress has this id.
    pub fn register(
        &self,
        request_id: String,
        sink: SinkId,
        choices: u64,
        commands: Commands,
    ) -> Result<Registration, Status> {
        let registration = Registration {
            request_id: request_id.clone(),
            sink,
            calls: self.clone(),
            commands,
            finished: false,
        };
        match self.lock().entry(request_id) {
            Entry::Vacant(place) => place.insert((sink, choices)),
            Entry::Occupied(taken) => {
                let message = format!("request_id {} is in use", taken.key());
                return Err(Status::already_exists(message));
            }
        };
        Ok(registration)
    }

    /// Returns sink and number of choices of a call in progress.
    pub fn find(&self, request_id: &str) -> Option<(SinkId, u64)> {
        self.lock().get(request_id).copied()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (SinkId, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call in progress. Dropping it closes the sink, which aborts choices that still run.
pub struct Registration {
    request_id: String,
    sink: SinkId,
    calls: Calls,
    commands: Commands,
    finished: bool,
}

impl Registration {
    /// Returns the client's id of the call.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Notes that all choices have ended.
    pub fn finished(&mut self) {
        self.finished = true;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut calls = self.calls.lock();
        if calls
            .get(&self.request_id)
            .is_some_and(|(sink, _)| *sink == self.sink)
        {
            calls.remove(&self.request_id);
        }
        drop(calls);
        if !self.finished {
            tracing::debug!(request_id = self.request_id, "the caller left");
        }
        self.commands.close(self.sink);
    }
}
