//! The cost of constraints on leads, in Prometheus' text format.

use std::fmt::Write;

use lockstep_proto::pb::lockstep::ConstraintWork;

/// A series: name, description, accessor of the value.
type Series = (&'static str, &'static str, fn(&ConstraintWork) -> u64);

const COUNTS: &[Series] = &[
    (
        "constraint_masks_total",
        "Sets of allowed tokens that grammars computed.",
        |work| work.masks,
    ),
    (
        "constraint_waits_total",
        "Times that a step stood still until a constraint was compiled.",
        |work| work.waits,
    ),
    (
        "constraint_compiles_total",
        "Constraints that workers compiled.",
        |work| work.compiles,
    ),
    (
        "constraint_cache_hits_total",
        "Constraints of choices that the worker had compiled before.",
        |work| work.cache_hits,
    ),
    (
        "constraint_failures_total",
        "Choices whose constraint could not be followed to its end.",
        |work| work.failures,
    ),
    (
        "constraint_cut_drafts_total",
        "Drafted tokens that a constraint forbade.",
        |work| work.cut_drafts,
    ),
];

const TIMES: &[Series] = &[
    (
        "constraint_mask_seconds_total",
        "Time for sets of allowed tokens.",
        |work| work.mask_us,
    ),
    (
        "constraint_wait_seconds_total",
        "Time that steps stood still until a constraint was compiled.",
        |work| work.wait_us,
    ),
];

/// Renders the work of all leads.
pub(super) fn constrained(out: &mut String, work: &ConstraintWork) {
    let mut series = |name, help, value: &dyn std::fmt::Display| {
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "# HELP lockstep_{name} {help}\n# TYPE lockstep_{name} counter\n\
             lockstep_{name} {value}\n"
        );
    };
    for (name, help, value) in COUNTS {
        series(name, help, &value(work));
    }
    for (name, help, us) in TIMES {
        series(name, help, &(us(work) as f64 / 1e6));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_has_its_series() {
        let mut text = String::new();
        let work = ConstraintWork {
            masks: 1,
            mask_us: 2_500_000,
            waits: 3,
            wait_us: 4_000,
            compiles: 5,
            cache_hits: 6,
            failures: 7,
            cut_drafts: 8,
        };
        constrained(&mut text, &work);
        for line in [
            "lockstep_constraint_masks_total 1",
            "lockstep_constraint_mask_seconds_total 2.5",
            "lockstep_constraint_waits_total 3",
            "lockstep_constraint_wait_seconds_total 0.004",
            "lockstep_constraint_compiles_total 5",
            "lockstep_constraint_cache_hits_total 6",
            "lockstep_constraint_failures_total 7",
            "lockstep_constraint_cut_drafts_total 8",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
