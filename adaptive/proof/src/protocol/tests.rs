use super::*;
use crate::explore::{explore, unseen};

/// Explores setups. Checks that nothing wrong happens, and that every sight is seen in one of
/// them.
fn hold(setups: Vec<(&str, Setup)>) {
    let mut seen = 0;
    for (name, setup) in setups {
        let report = explore(&Protocol::new(setup));
        assert!(report.fault.is_none(), "{name}: {:#?}", report.fault);
        assert!(report.ends > 0, "{name}");
        seen |= report.seen;
    }
    assert_eq!(unseen::<Protocol>(seen), [""; 0]);
}

#[test]
fn ranks_never_diverge_and_never_wait_for_each_other_apart() {
    hold(Setup::short());
}

#[test]
#[ignore = "minutes; as `cargo run --release -p lockstep-proof check` prints it"]
fn ranks_never_diverge_over_more_steps() {
    hold(Setup::long());
}

#[test]
fn planted_mistakes_are_found() {
    for (fault, found, setup) in Setup::planted() {
        let report = explore(&Protocol::new(setup));
        let (what, way) = report.fault.expect("it is found");
        assert!(what.contains(found), "{fault:?}: {what}");
        assert!(way.len() < 60, "{fault:?}: {way:?}");
    }
}
