use super::*;
use crate::phases::list::{Kind, Phase, Spread};

/// One run of two phases of 30 tokens; `phases` are the seconds of each, in three steps.
fn run(phases: [f64; 2], depth: u32) -> Run {
    let mut run = Run {
        begins: vec![0.0, phases[0]],
        slices: phases
            .iter()
            .flat_map(|seconds| [seconds / SLICES as f64; SLICES])
            .collect(),
        ..Run::default()
    };
    let mut at = 0.0;
    for (phase, seconds) in phases.into_iter().enumerate() {
        for third in 0..3 {
            at += seconds / 3.0;
            run.steps.push(Step {
                phase,
                at,
                took: seconds / 3.0,
                depth: depth + u32::from(third == 2),
                decodes: 1,
                tokens: 10,
                ..Step::default()
            });
        }
    }
    run
}

pub fn measured() -> Measured {
    let phase = Phase {
        kind: Kind::Mixed,
        spread: Spread::Even,
        streams: 1,
        falls: false,
        tokens: 30,
    };
    let list = List {
        name: "two".to_owned(),
        phases: vec![phase.clone(), phase.clone()],
    };
    let work = Work {
        phases: vec![(phase.clone(), Vec::new()), (phase, Vec::new())],
    };
    let repetition = |slower: f64| {
        let seconds = [[6.0, 6.0], [3.0, 12.0], [4.0, 6.0]];
        let runs = seconds.map(|phases| run(phases.map(|s| s * slower), 0));
        runs.into_iter().collect()
    };
    Measured {
        list,
        work,
        arms: vec![Arm::None, Arm::Fixed(3), Arm::Policy("mine".to_owned())],
        runs: vec![repetition(1.0), repetition(2.0)],
        lag: 2,
    }
}

#[test]
fn arms_are_compared_by_list_and_by_phase() {
    let measured = measured();
    assert_eq!(measured.best_fixed(), Some(0));
    assert_eq!(measured.seconds(2), 15.0);
    let ratio = measured.ratio_to_best(2).expect("a ratio");
    assert!((ratio.value - 1.2).abs() < 1e-9, "{ratio:?}");
    let (low, high) = ratio.interval.expect("an interval");
    assert!(
        (1.15..1.2).contains(&low) && (1.2..1.25).contains(&high),
        "{ratio:?}"
    );
    // Depth 3 is best in the first phase, no drafts in the second: 3 and 6 seconds.
    let ratio = measured.ratio_to_best_of_phases(2).expect("a ratio");
    assert!((ratio.value - 9.0 / 10.0).abs() < 1e-9, "{ratio:?}");
    let (phase, worst) = measured.worst_phase(2).expect("a phase");
    assert_eq!(phase, 0);
    assert!((worst - 0.75).abs() < 1e-9, "{worst}");
    let ratio = measured.ratio_to(1, 0).expect("a ratio");
    assert!((ratio.value - 0.8).abs() < 1e-9);
}

#[test]
fn depths_are_counted_by_their_time() {
    let measured = measured();
    let parts = measured.time_by_depth(2);
    assert_eq!(
        parts.iter().map(|(depth, _)| *depth).collect::<Vec<_>>(),
        [0, 1]
    );
    assert!((parts[0].1 - 2.0 / 3.0).abs() < 1e-9, "{parts:?}");
    // Three changes in each run, of 10 and 20 seconds.
    assert!((measured.switches_per_minute(2) - 12.0).abs() < 1e-9);
}
