use lockstep_sampling::allows;
use lockstep_types::constraint::ConstraintKind;

use super::*;
use crate::worker::tests::support::repository;

fn opened(max_draft_steps: Option<u32>) -> SlotConstraint {
    let model = lockstep_model_folder::load(&repository().join("models/lockstep-demo-7m"));
    let mut open = SlotOpen::new(0, vec![5, 6]);
    let constraint = Constraint::new(ConstraintKind::Regex, "one and two and three [0-9]");
    open.generation.constraint = Some(Arc::new(constraint));
    open.generation.max_draft_steps = max_draft_steps;
    let constraints = Constraints::new(&model.unwrap(), true);
    constraints.open(&open).unwrap()
}

/// Waits until the second state is there, or will never be.
fn settled(slot: &mut SlotConstraint) -> bool {
    loop {
        let ready = slot.ahead.ready().is_some();
        if ready || matches!(slot.ahead, Ahead::None) {
            return ready;
        }
        thread::yield_now();
    }
}

#[test]
fn drafts_that_are_cut_and_masks_of_walks_are_reported() {
    let mut slot = opened(None);
    assert!(settled(&mut slot));
    let mask = slot.allowed().unwrap().to_vec();
    let token = |allowed| (3..4096).find(|token| allows(&mask, *token) == allowed);
    let (allowed, forbidden) = (token(true).unwrap(), token(false).unwrap());
    let mut work = ConstraintWork::default();
    slot.report(&mut work);
    assert_eq!((work.masks, work.cut_drafts), (1, 0));
    let mut forced = Vec::new();
    assert!(slot.force(&[], &mut forced, 2) && forced.len() == 2);
    slot.report(&mut work);
    assert_eq!((work.masks, work.cut_drafts), (3, 0), "a mask for each");
    // A full chain that is allowed takes no mask; the tokens behind a forbidden one do not count.
    assert_eq!(slot.guide(&[], &mut vec![allowed], 1), 1);
    let mut chain = vec![forbidden, forbidden];
    assert_eq!(slot.guide(&[], &mut chain, 2), 0);
    assert_eq!(chain, forced);
    slot.count_cut(2);
    slot.report(&mut work);
    assert_eq!((work.masks, work.cut_drafts), (5, 3));
}

#[test]
fn a_request_without_drafts_has_no_second_state() {
    for (max_draft_steps, has) in [(None, true), (Some(1), true), (Some(0), false)] {
        let mut slot = opened(max_draft_steps);
        assert!(slot.allowed().is_ok());
        assert_eq!(settled(&mut slot), has, "{max_draft_steps:?}");
    }
}

/// A second state that takes for ever to be made is never waited for.
#[test]
fn tokens_are_decided_before_walks_can_begin() {
    let mut slot = opened(Some(0));
    let (_held, never) = mpsc::channel();
    slot.ahead = Ahead::Coming(never);
    assert!(slot.allowed().is_ok());
    let mut chain = Vec::new();
    assert!(!slot.force(&[], &mut chain, 4) && chain.is_empty());
    let mut drafted = vec![7, 8];
    assert_eq!(slot.guide(&[], &mut drafted, 4), 2);
    assert_eq!(drafted, [7, 8]);
}
