//! Drafts depend on a request's text alone, also those of a drafter that keeps keys and values.
//! The steps before make no difference: chains and trees, accepted or not, prompts in chunks,
//! pauses, slots that change hands. No text shows it, since the target verifies all drafts.

mod script;
mod world;

use lockstep_speculation::{DFLASH, EAGLE, EAGLE3, STANDALONE, WithModel};
use lockstep_types::Algorithm as _;

use script::Script;
use world::World;

/// An algorithm, and the folder of what it drafts with.
const DRAFTS: [(WithModel, &str); 4] = [
    (EAGLE, "lockstep-demo-7m-eagle"),
    (EAGLE3, "lockstep-demo-7m-eagle3"),
    (STANDALONE, "lockstep-demo-1m-draft"),
    (DFLASH, "lockstep-demo-7m-dflash"),
];

fn run(topk: usize, pause_window: usize) {
    for (algorithm, folder) in DRAFTS {
        if topk > 1 && !algorithm.capabilities().supports_tree {
            continue;
        }
        let world = World::new(algorithm, folder, topk, pause_window);
        let drafted = Script::new(world).run(60);
        assert!(drafted > 60, "{folder}: {drafted} tokens were drafted");
    }
}

#[test]
fn chains_depend_on_the_text_alone() {
    run(1, 0);
}

#[test]
fn trees_depend_on_the_text_alone() {
    run(2, 0);
}

/// Of a pause longer than the window the drafter goes on with the last pages, as if the text
/// began there.
#[test]
fn so_they_do_after_pauses() {
    run(1, 24);
    run(2, 24);
}
