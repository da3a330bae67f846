//! One measured kernel, and the table of all kernels.

use lockstep_devices::Arithmetic;
use serde_json::{Value, json};

use super::setup::Times;
use crate::report::Report;
use crate::roofline::{Drift, Reached, Traffic, Work};

/// A kernel's time for some work.
pub struct Line {
    pub kernel: String,
    /// Model with the sizes that were measured.
    pub shape: String,
    /// Type of the kernel's weights or keys.
    pub format: &'static str,
    /// Size of the data that the kernel ran over.
    pub size: String,
    /// Tokens of one call.
    pub tokens: usize,
    pub times: Times,
    pub work: Work,
    /// Arithmetic that may bound the kernel; empty where it hardly computes.
    pub arithmetics: &'static [Arithmetic],
    pub traffic: Traffic,
}

/// All lines against the limits.
pub fn report(lines: &[Line], limits: &Drift) -> Report {
    let [bandwidth, compute, limit] = Reached::COLUMNS;
    let columns = [
        "kernel", "shape", "format", "size", "tokens", "us", "min us", "max us", "GB/s", "GFLOP/s",
        bandwidth, compute, limit,
    ];
    let mut report = Report::new("Kernels against the limits of this machine", &columns);
    for line in lines {
        let ceiling = limits.ceiling(line.traffic, line.arithmetics);
        let seconds = line.times.median;
        let rate = |amount: f64| (amount > 0.0).then_some(amount / seconds * 1e-9);
        let mut cells: Vec<Value> = vec![
            json!(line.kernel),
            json!(line.shape),
            json!(line.format),
            json!(line.size),
            json!(line.tokens),
            json!(seconds * 1e6),
            json!(line.times.min * 1e6),
            json!(line.times.max * 1e6),
            json!(rate(line.work.bytes)),
            json!(rate(line.work.operations)),
        ];
        cells.extend(ceiling.reached(line.work, seconds).cells());
        report.row(cells);
    }
    report
}
