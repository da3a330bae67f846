//! Proof that adaptive depth keeps its promises. `check` explores every state of the agreement
//! on a depth. `skew` tells how well one depth for all works where DP ranks have uneven loads.
//! `soak` runs very many steps of random groups.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a program for people")]

mod explore;
mod protocol;
mod skew;
mod soak;

use std::time::Instant;

use anyhow::{bail, ensure};
use explore::{explore, unseen};
use protocol::{Protocol, Setup};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["check"] => check(Setup::long()),
        ["check", "short"] => check(Setup::short()),
        ["skew"] => {
            print!("{}", skew::markdown());
            Ok(())
        }
        ["soak", steps, seed] => {
            let begun = Instant::now();
            let soaked = soak::soak(steps.parse()?, seed.parse()?)?;
            println!("{soaked:?} in {:.1} s", begun.elapsed().as_secs_f64());
            Ok(())
        }
        _ => bail!("say what to do: check [short], skew, soak RANK_STEPS SEED"),
    }
}

/// Explores setups, and then setups with planted mistakes.
fn check(setups: Vec<(&str, Setup)>) -> anyhow::Result<()> {
    let mut all_seen = 0;
    for (name, setup) in setups {
        let begun = Instant::now();
        let report = explore(&Protocol::new(setup));
        println!(
            "{name}: {} states, {} transitions, {} ends, {} actions to the furthest, {:.1} s",
            report.states,
            report.transitions,
            report.ends,
            report.depth,
            begun.elapsed().as_secs_f64(),
        );
        all_seen |= report.seen;
        if let Some((what, way)) = report.fault {
            println!("  by {way:?}");
            bail!("{name}: {what}");
        }
    }
    let unseen = unseen::<Protocol>(all_seen);
    ensure!(unseen.is_empty(), "it never happened: {unseen:?}");
    for (fault, _, setup) in Setup::planted() {
        let report = explore(&Protocol::new(setup));
        let Some((what, way)) = report.fault else {
            bail!("{fault:?} is not found");
        };
        println!("{fault:?} is found after {} actions: {what}", way.len());
    }
    Ok(())
}
