//! Whether requests are let in, and how many are inside.

use lockstep_types::request::{ErrorKind, RequestError};
use tokio::sync::watch;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

/// What the process lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateState {
    /// Everything.
    Open,
    /// Nothing new; what is inside finishes.
    Draining,
    /// Nothing; what is inside ends with an error.
    Halted,
}

/// The door that every generating request passes.
#[derive(Debug)]
pub struct Gate {
    state: watch::Sender<GateState>,
    inside: TaskTracker,
}

/// Held by a request until its last byte is handed over.
pub type Ticket = TaskTrackerToken;

impl Default for Gate {
    fn default() -> Self {
        Self {
            state: watch::Sender::new(GateState::Open),
            inside: TaskTracker::new(),
        }
    }
}

impl Gate {
    /// Lets one request in.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] while draining and after.
    pub fn enter(&self) -> Result<Ticket, RequestError> {
        // Taken before the state is read: whoever drains sees this request inside.
        let ticket = self.inside.token();
        match self.state() {
            GateState::Open => Ok(ticket),
            GateState::Draining | GateState::Halted => Err(RequestError::new(
                ErrorKind::Unavailable,
                "The server is shutting down and takes no new requests.",
            )),
        }
    }

    /// What is let in now.
    pub fn state(&self) -> GateState {
        *self.state.borrow()
    }

    /// Follows the state.
    pub fn subscribe(&self) -> watch::Receiver<GateState> {
        self.state.subscribe()
    }

    /// Stops letting requests in; a halted gate stays halted.
    pub fn close(&self, state: GateState) {
        self.state.send_if_modified(|now| {
            let change = *now != GateState::Halted && *now != state;
            if change {
                *now = state;
            }
            change
        });
    }

    /// Requests inside.
    pub fn inside(&self) -> usize {
        self.inside.len()
    }

    /// Waits until nobody is inside; meant for a closed gate.
    pub async fn empty(&self) {
        self.inside.close();
        self.inside.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_draining_gate_lets_nobody_in_and_waits_for_those_inside() {
        let gate = Gate::default();
        let ticket = gate.enter().expect("open");
        gate.close(GateState::Draining);
        assert_eq!(
            gate.enter().expect_err("draining").kind,
            ErrorKind::Unavailable
        );
        assert_eq!(gate.inside(), 1);
        drop(ticket);
        gate.empty().await;
        gate.close(GateState::Halted);
        gate.close(GateState::Draining);
        assert_eq!(gate.state(), GateState::Halted);
    }
}
