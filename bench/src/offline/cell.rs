//! A measured cell and its row.

use serde_json::{Value, json};

use crate::roofline::{Reached, Work};

/// One phase with one batch and prompt.
pub struct Cell {
    pub phase: &'static str,
    pub batch: usize,
    pub prompt: usize,
    /// Tokens that a run puts out (decode) or takes in (prefill).
    pub tokens: usize,
    /// Steps in a run's time.
    pub steps: usize,
    /// Seconds of each run, ascending.
    pub runs: Vec<f64>,
    /// Work of all steps.
    pub work: Work,
}

/// Column names of [`Cell::row`].
pub fn columns() -> Vec<&'static str> {
    let mut columns = vec![
        "phase", "batch", "prompt", "tokens/s", "min", "max", "ms/step", "GB/s", "GFLOP/s",
    ];
    columns.extend(Reached::COLUMNS);
    columns
}

impl Cell {
    /// Seconds of the middle run.
    pub fn median(&self) -> f64 {
        self.runs[self.runs.len() / 2]
    }

    /// The cell's row, with the parts of the limits that it reached.
    pub fn row(&self, reached: Reached) -> Vec<Value> {
        let median = self.median();
        let rate = |seconds: f64| self.tokens as f64 / seconds;
        let mut cells = vec![
            json!(self.phase),
            json!(self.batch),
            json!(self.prompt),
            json!(rate(median)),
            json!(self.runs.last().copied().map(rate)),
            json!(self.runs.first().copied().map(rate)),
            json!(median * 1e3 / self.steps as f64),
            json!(self.work.bytes / median * 1e-9),
            json!(self.work.operations / median * 1e-9),
        ];
        cells.extend(reached.cells());
        cells
    }
}
