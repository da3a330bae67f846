//! Figures that this tokenizer-manager reports about itself. Several tokenizer-managers
//! share one port. A client reaches any of them but asks about all, so they ask each
//! other through the scheduler.

use lockstep_proto::pb::lockstep::{FrontFigures, PortLoad};
use lockstep_traces::Traces;

use crate::{
    gate::Gate,
    metrics::{Metrics, render_connections, render_memory, render_process, render_traces},
    ports::Ports,
};

/// Source of one tokenizer-manager's figures.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Index of the tokenizer-manager, from 0.
    pub index: usize,
    /// Start time of the process, seconds since 1970.
    pub started: u64,
    /// Counts the requests in progress.
    pub gate: Gate,
    /// Counts connections.
    pub ports: Ports,
    /// Counts spans; `None` if no request is traced.
    pub traces: Option<Traces>,
    /// Counts everything else.
    pub metrics: Metrics,
}

impl Figures {
    /// Returns the current figures; their text is empty without `metrics`.
    pub fn now(&self, metrics: bool) -> FrontFigures {
        FrontFigures {
            index: u32::try_from(self.index).unwrap_or(u32::MAX),
            in_progress: self.gate.inside() as u64,
            metrics: if metrics { self.text() } else { String::new() },
        }
    }

    /// Returns the metrics in the text format of Prometheus.
    fn text(&self) -> String {
        let mut text = self.metrics.render();
        let ports = self.ports.reports().map(PortLoad::from);
        text.push_str(&render_connections(Some(self.index), &ports));
        let taken = self.ports.budget.taken() as u64;
        text.push_str(&render_memory(Some(self.index), taken));
        let spans = self.traces.as_ref().map(Traces::counts);
        text.push_str(&render_traces(Some(self.index), spans.unwrap_or_default()));
        text.push_str(&render_process(self.index, self.started));
        text
    }
}
