//! Percentiles of durations.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// The longest duration that is told apart, in nanoseconds: an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// Durations by nanosecond, three significant digits.
pub struct Durations(Histogram<u64>);

impl Default for Durations {
    fn default() -> Self {
        // The histogram saturates at the bound given here. A histogram that grows by itself
        // would saturate at its present size.
        Self(Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds and digits are allowed"))
    }
}

impl Durations {
    /// Counts one duration.
    pub fn record(&mut self, took: Duration) {
        self.0
            .saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
    /// Adds another set.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same precision and range.
        self.0.add(&other.0).expect("equal histograms add up");
    }
    /// Durations counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }
    /// Percentile in microseconds; null without any durations.
    pub fn us(&self, percentile: f64) -> Value {
        self.value(percentile, 1e3)
    }
    /// Percentile in milliseconds; null without any durations.
    pub fn ms(&self, percentile: f64) -> Value {
        self.value(percentile, 1e6)
    }
    fn value(&self, percentile: f64, nanos: f64) -> Value {
        if self.0.is_empty() {
            return Value::Null;
        }
        json!(self.0.value_at_percentile(percentile) as f64 / nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_recorded() {
        let mut durations = Durations::default();
        assert_eq!(durations.ms(50.0), Value::Null);
        for ms in 1..=100 {
            durations.record(Duration::from_millis(ms));
        }
        let p50 = durations.ms(50.0).as_f64().expect("a number");
        assert!((p50 - 50.0).abs() < 0.1, "{p50}");
        let p99 = durations.us(99.0).as_f64().expect("a number");
        assert!((p99 - 99_000.0).abs() < 100.0, "{p99}");
        let mut other = Durations::default();
        other.merge(&durations);
        assert_eq!(other.count(), 100);
    }
}
