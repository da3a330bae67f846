//! Admission to this process: open, draining or halted, and how many requests run.

use tokio::sync::watch;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

/// State of admission to the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateState {
    /// New requests are admitted.
    Open,
    /// New requests are still admitted, but clients should go elsewhere: a drain
    /// follows.
    Leaving,
    /// No new requests are admitted; running requests finish.
    Draining,
    /// No new requests are admitted; running requests end with an error.
    Halted,
}

/// Admits requests that generate, and counts the running ones. Clones share one state.
#[derive(Debug, Clone)]
pub struct Gate {
    state: watch::Sender<GateState>,
    inside: TaskTracker,
}

/// Proof of admission. A request holds its ticket until its last byte is handed over.
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
    /// Admits one request; `None` while draining and after.
    pub fn enter(&self) -> Option<Ticket> {
        // The ticket is taken before the state is read, so a drain that starts now
        // waits for this request.
        let ticket = self.inside.token();
        match self.state() {
            GateState::Open | GateState::Leaving => Some(ticket),
            GateState::Draining | GateState::Halted => None,
        }
    }

    /// The state now.
    pub fn state(&self) -> GateState {
        *self.state.borrow()
    }

    /// A receiver that is notified when the state changes.
    pub fn subscribe(&self) -> watch::Receiver<GateState> {
        self.state.subscribe()
    }

    /// Changes to the given state; a halted gate stays halted.
    pub fn close(&self, state: GateState) {
        self.state.send_if_modified(|now| {
            let change = *now != GateState::Halted && *now != state;
            if change {
                *now = state;
            }
            change
        });
    }

    /// Number of running requests.
    pub fn inside(&self) -> usize {
        self.inside.len()
    }

    /// Waits until no request runs. The gate must be closed.
    pub async fn empty(&self) {
        self.inside.close();
        self.inside.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_draining_gate_admits_nothing_and_waits_for_what_runs() {
        let gate = Gate::default();
        let ticket = gate.enter().expect("open");
        gate.close(GateState::Draining);
        assert!(gate.enter().is_none(), "draining");
        assert_eq!(gate.inside(), 1);
        drop(ticket);
        gate.empty().await;
        gate.close(GateState::Halted);
        gate.close(GateState::Draining);
        assert_eq!(gate.state(), GateState::Halted);
    }
}
