//! The race: all arms answer a list side by side.

use anyhow::Context as _;

use super::run::{Answering, Run};
use super::setup::Setup;
use super::summary::Measured;
use super::work::{SLICES, Work};
use crate::report::progress;

/// Lets every arm answer the list once, in slices of equal work, forwards and backwards in
/// turn. The machine belongs to one arm at a time. So other users of the machine who stay
/// for more than a second slow all arms alike.
///
/// # Errors
/// The errors of an engine, or answers that differ from earlier ones.
pub fn race(measured: &Measured, setup: &mut Setup, repetition: usize) -> anyhow::Result<Vec<Run>> {
    let (work, arms) = (&measured.work, &measured.arms);
    let begun = arms.iter();
    let mut begun: Vec<Answering<'_>> = begun
        .map(|_| Answering::new(work, &setup.texts, repetition as u64))
        .collect();
    let mut order: Vec<usize> = (0..arms.len()).collect();
    for (phase, goal) in goals(work) {
        for at in &order {
            let engine = setup.engines.engine(*at);
            let went = begun[*at].go_on(engine, goal);
            went.with_context(|| arms[*at].to_string())?;
        }
        order.reverse();
        if let Some(phase) = phase {
            progress(&format!(
                "repetition {}, {}: {phase} of {} phases",
                repetition + 1,
                measured.list.name,
                work.phases.len()
            ));
        }
    }
    let ended = begun.into_iter().zip(arms);
    let ended = ended.map(|(arm, name)| arm.end().with_context(|| name.to_string()));
    ended.collect()
}

/// The goals of all slices: the number of tokens that are out at a slice's end, and the
/// number of the phase that ends there, if one does.
fn goals(work: &Work) -> impl Iterator<Item = (Option<usize>, u64)> {
    let mut before = 0;
    let last = work.phases.len();
    let phases = work.phases.iter().enumerate();
    phases.flat_map(move |(at, (phase, _))| {
        let (begin, tokens) = (before, u64::from(phase.tokens));
        before += tokens;
        (1..=SLICES).map(move |slice| {
            let goal = begin + tokens * slice as u64 / SLICES as u64;
            let ends = (slice == SLICES).then_some(at + 1);
            // Requests that are still under way then end too.
            let is_last = ends == Some(last);
            (ends, if is_last { u64::MAX } else { goal })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::list::Named;
    use crate::phases::work::Text;

    #[test]
    fn slices_ascend_to_the_end_of_each_phase() {
        let text = Text {
            domain: "code".to_owned(),
            prompt: vec![1],
            answer: vec![2; 7],
        };
        let work = Work::new(&Named::Nine.list(3), &[text], 1);
        let goals: Vec<_> = goals(&work).collect();
        assert!(goals.is_sorted_by_key(|(_, goal)| *goal));
        let ends: Vec<_> = goals.iter().filter(|(phase, _)| phase.is_some()).collect();
        assert_eq!(ends.len(), 9);
        assert_eq!(
            ends[1],
            &(Some(2), u64::from(work.tokens(0) + work.tokens(1)))
        );
        assert_eq!(goals.last(), Some(&(Some(9), u64::MAX)));
    }
}
