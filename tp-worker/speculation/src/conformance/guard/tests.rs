use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_backend_cpu::CpuBackend;

use super::*;
use crate::Node;

/// Drafts nothing, and notes that it was told to forget.
struct Silent(Arc<AtomicBool>);

impl Drafter<CpuBackend> for Silent {
    fn draft(
        &mut self,
        _: &mut Device<'_, CpuBackend>,
        _: &[DraftRow],
        _: &mut Drafts,
    ) -> Result<(), DraftError> {
        Ok(())
    }

    fn forget(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn guard(supports_tree: bool, forgot: &Arc<AtomicBool>) -> Guard<CpuBackend> {
    Guard {
        name: "SILENT".to_owned(),
        capabilities: Capabilities {
            supports_tree,
            adaptive: true,
            ..Capabilities::default()
        },
        drafter: Box::new(Silent(forgot.clone())),
        finder: Findings::default().finder(),
        vocab: 10,
    }
}

/// Tokens and what they follow, and a word of the rule that they break in a row of up to 2
/// steps, 2 branches, 4 nodes and so much room.
type Case = (&'static [(u32, u32)], usize, Option<&'static str>);

const CASES: [Case; 9] = [
    (&[], 0, None),
    (&[(1, 0), (2, 0), (1, 1), (1, 2)], 5, None),
    (&[(1, 0), (2, 0), (1, 1), (1, 2)], 4, Some("room")),
    (&[(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)], 9, Some("`most`")),
    (&[(1, 2), (2, 0)], 9, Some("before children")),
    (&[(10, 0)], 9, Some("the target's")),
    (&[(1, 0), (1, 0)], 9, Some("differ")),
    (&[(1, 0), (2, 0), (3, 0)], 9, Some("`topk` children")),
    (&[(1, 0), (2, 1), (3, 2)], 9, Some("`steps` deep")),
];

fn drafts(nodes: &[(u32, u32)]) -> Drafts {
    let mut drafts = Drafts::new(2, 5, 0);
    drafts.begin(2);
    for (token, parent) in nodes {
        let (token, parent) = (*token, *parent);
        drafts.push(1, Node { token, parent });
    }
    drafts
}

fn row(topk: usize, room: usize) -> DraftRow {
    DraftRow {
        slot: 0,
        pages_start: 0,
        kv_len: 1,
        steps: 2,
        topk,
        most: 4,
        room,
        may_stop: false,
    }
}

#[test]
fn each_rule_is_found_that_a_draft_breaks() {
    let trees = guard(true, &Arc::default());
    for (nodes, room, word) in CASES {
        let broken = trees.broken(&row(2, room), &drafts(nodes), 1);
        assert_eq!(broken.is_some(), word.is_some(), "{nodes:?}: {broken:?}");
        let names = broken.is_none_or(|rule| rule.contains(word.unwrap_or_default()));
        assert!(names, "{nodes:?}: {broken:?}");
    }
    // What branches needs both.
    let branches = drafts(&[(1, 0), (2, 0)]);
    for (supports_tree, topk, sound) in [(true, 2, true), (false, 2, false), (true, 1, false)] {
        let guard = guard(supports_tree, &Arc::default());
        let broken = guard.broken(&row(topk, 9), &branches, 1);
        assert_eq!(broken.is_none(), sound, "{broken:?}");
    }
}

#[test]
fn who_is_guarded_is_told_to_forget() {
    let forgot = Arc::default();
    guard(true, &forgot).forget();
    assert!(forgot.load(Ordering::Relaxed));
}
