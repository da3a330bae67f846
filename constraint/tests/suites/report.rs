//! The findings of a suite, as they are printed.

use std::{collections::BTreeMap, fmt, time::Duration};

use lockstep_constraint::ConstraintError;

/// Counts and times of a suite.
#[derive(Default)]
pub struct Report {
    pub schemas: usize,
    /// Refused schemas by keyword, or by the begin of the message.
    pub refusals: BTreeMap<String, usize>,
    pub accepted_valid: usize,
    pub refused_invalid: usize,
    pub accepted_invalid: Vec<String>,
    /// Valid instances whose properties come in another order than in the schema.
    pub refused_order: Vec<String>,
    /// Other valid instances that are not of the language.
    pub refused_valid: Vec<String>,
    /// Times of checking, which compiles and walks.
    pub checks: Vec<Duration>,
    /// Times of compiling alone.
    pub compiles: Vec<Duration>,
    pub masks: Vec<Duration>,
    /// Schemas whose masks after drafts were compared.
    pub compared: usize,
    pub unlike_masks: Vec<String>,
    pub failed_masks: Vec<String>,
}

impl Report {
    pub fn refuse(&mut self, error: &ConstraintError) {
        let why = error.to_string();
        let words = |text: &str| {
            let plain = text.split("\": ").last().unwrap_or(text);
            plain
                .chars()
                .filter(|c| !c.is_ascii_digit())
                .take(56)
                .collect::<String>()
        };
        let key = match error.keyword() {
            Some(keyword) => format!("`{keyword}`"),
            None => words(&why),
        };
        *self.refusals.entry(key).or_default() += 1;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused: usize = self.refusals.values().sum();
        writeln!(f, "schemas {}, refused {refused}", self.schemas)?;
        let mut refusals: Vec<_> = self.refusals.iter().collect();
        refusals.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (why, count) in refusals {
            writeln!(f, "| {why} | {count} |")?;
        }
        writeln!(
            f,
            "valid: accepted {}, in another order {}, refused {}; invalid: refused {}, accepted {}",
            self.accepted_valid,
            self.refused_order.len(),
            self.refused_valid.len(),
            self.refused_invalid,
            self.accepted_invalid.len()
        )?;
        writeln!(
            f,
            "masks after drafts compared for {} schemas, unlike {}, failed {}",
            self.compared,
            self.unlike_masks.len(),
            self.failed_masks.len()
        )?;
        for (name, times) in [
            ("check", &self.checks),
            ("compile", &self.compiles),
            ("mask", &self.masks),
        ] {
            let mut times = times.clone();
            times.sort_unstable();
            let at = |share: usize| {
                let place = (times.len() * share / 1000).min(times.len().saturating_sub(1));
                times.get(place).copied().unwrap_or_default().as_micros()
            };
            let (half, most, last) = (at(500), at(990), at(1000));
            writeln!(
                f,
                "{name} µs: {} of them, p50 {half}, p99 {most}, max {last}",
                times.len()
            )?;
        }
        for (name, list) in [
            ("accepted though invalid", &self.accepted_invalid),
            ("refused though valid", &self.refused_valid),
            ("in another order", &self.refused_order),
            ("failed", &self.failed_masks),
        ] {
            for one in list {
                let one: String = one.chars().take(300).collect();
                writeln!(f, "{name}: {one}")?;
            }
        }
        Ok(())
    }
}
