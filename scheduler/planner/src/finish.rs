//! How requests end.

use lockstep_types::request::{ErrorKind, Finish, FinishReason, Output, RequestError};

use crate::{Millis, Planner, RequestId, table::Stage};

impl Planner {
    /// Ends a request with an Abort output; unknown ids are harmless.
    pub fn abort(&mut self, id: RequestId) {
        if let Some(index) = self.table.find(id) {
            self.end(index, Ok(FinishReason::Abort), None, Output::default());
        }
    }

    /// Ends a request with a Stop output, because its client has all that it
    /// wants; unknown ids are harmless.
    pub fn stop(&mut self, id: RequestId) {
        if let Some(index) = self.table.find(id) {
            self.end(index, Ok(FinishReason::Stop), None, Output::default());
        }
    }

    /// Ends requests whose time is over.
    pub fn tick(&mut self, now: Millis) {
        self.now = self.now.max(now);
        while let Some(index) = self.deadlines.due(self.now.0) {
            let error = RequestError::new(
                ErrorKind::Timeout,
                "the request's time limit has passed (timeout_ms, --request-timeout)",
            );
            self.end(index, Err(error), None, Output::default());
        }
        while let Some(index) = self.queue_deadlines.due(self.now.0) {
            let places = self.queue.len() as u64;
            let error = RequestError {
                retry_after_s: Some(self.pace.seconds_for(places, self.now.0)),
                ..RequestError::new(
                    ErrorKind::Overloaded,
                    "the request waited longer than the queue's time limit (--queue-timeout)",
                )
            };
            self.end(index, Err(error), None, Output::default());
        }
    }

    /// The one way out: frees whatever the request holds and emits its last
    /// output. Rows still in flight find the request gone and are ignored.
    pub(crate) fn end(
        &mut self,
        index: u32,
        outcome: Result<FinishReason, RequestError>,
        matched_token: Option<u32>,
        mut output: Output,
    ) {
        match self.table[index].stage {
            Stage::Waiting => self.queue.remove(&self.table[index]),
            Stage::Running => self.leave_slot(index),
            Stage::Draining => {}
        }
        let Some(entry) = self.table.remove(index) else {
            return;
        };
        self.deadlines.remove(entry.rest.deadline, index);
        self.queue_deadlines
            .remove(entry.rest.queue_deadline, index);
        let counter = match &outcome {
            Ok(FinishReason::Abort) => &mut self.counters.aborted,
            Ok(_) => &mut self.counters.finished,
            // Overloaded ends an accepted request only when it waited too long.
            Err(error) if matches!(error.kind, ErrorKind::Timeout | ErrorKind::Overloaded) => {
                &mut self.counters.timed_out
            }
            Err(_) => &mut self.counters.failed,
        };
        *counter += 1;
        output.finish = Some(Finish {
            outcome,
            matched_token,
            usage: entry.usage(),
            speculation: (entry.rest.speculation.verify_steps > 0)
                .then_some(entry.rest.speculation),
        });
        self.outputs.push((entry.id, output));
    }
}
