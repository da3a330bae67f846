use super::*;

fn permille(part: u64, of: u64) -> u64 {
    part * 1000 / of
}

const MACHINES: [Machine; 3] = [STANDALONE, EAGLE3, H100];

#[test]
fn sums_are_near_the_best_depth_of_each_phase_in_every_cell() {
    for machine in MACHINES {
        for cell in all(8) {
            let outcome = outcome(&machine, &cell, &[Arm::Sums, Arm::Own], 1);
            let [sums, own] = outcome.arms[..] else {
                panic!("two arms");
            };
            let line = format!(
                "{} {} {sums} {own} {}",
                machine.name, cell.name, outcome.oracle
            );
            assert!(permille(sums, outcome.oracle) >= 970, "{line}");
            // Requests draft at their own depths, below the agreed one. From the first step
            // that differs on, the two arms answer other requests at a time. That is worth up
            // to two in a hundred in a single run.
            assert!(permille(own, sums) >= 975, "{line}");
        }
    }
}

/// The least vote, the greatest vote and the first rank's vote all lose in some cell where sums
/// do not.
#[test]
fn votes_lose_where_loads_differ() {
    let votes = [Arm::Least, Arm::Most, Arm::First];
    let mut worst = [1000; 3];
    for cell in all(8) {
        let outcome = outcome(&H100, &cell, &votes, 1);
        for (worst, tokens) in worst.iter_mut().zip(&outcome.arms) {
            *worst = permille(*tokens, outcome.oracle).min(*worst);
        }
    }
    assert!(worst.iter().all(|part| *part < 930), "{worst:?}");
}
