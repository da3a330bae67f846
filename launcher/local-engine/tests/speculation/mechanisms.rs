//! Every drafter on a model with experts, on one with sliding windows, and on one with layers of
//! gpt-oss. Texts have the same bits with drafts as without, while prefixes are cached up to the
//! edges of windows and of pages, and the depth changes in every step.

use std::sync::atomic::Ordering;

use lockstep_types::Dtype;

use crate::{
    load::{idle, run},
    policies::Policy,
    setup::{Algorithm, Layers, Setup, Shape},
    two_caches::same,
    windows::{jobs_at, widest},
};

const MECHANISMS: [Layers; 3] = [Layers::Experts, Layers::Windows, Layers::GptOss];
/// Algorithms beside layers as they were trained, and beside random ones, of which no other model
/// drafts tokens that are accepted.
const ALGORITHMS: [[Algorithm; 4]; 2] = [
    [
        Algorithm::Ngram,
        Algorithm::Standalone,
        Algorithm::Eagle3,
        Algorithm::Dflash,
    ],
    [
        Algorithm::Ngram,
        Algorithm::Itself,
        Algorithm::Eagle3,
        Algorithm::Dflash,
    ],
];
const PAGES: [usize; 3] = [1, 16, 64];
const POLICY: Policy = Policy::Restless;

/// Returns the setting of a page size for a mechanism and an algorithm: each algorithm has chains
/// and trees on each mechanism, and with each page size.
fn setup(plain: &Setup, [mechanism, algorithm, page]: [usize; 3]) -> Setup {
    let random = usize::from(plain.layers != Layers::Windows);
    let drafter = ALGORITHMS[random][algorithm];
    let tree = (mechanism + algorithm + page) % 2 == 1 && drafter != Algorithm::Dflash;
    let shape = if tree { Shape::TREE } else { Shape::chain(4) };
    Setup {
        speculation: Some((drafter, shape)),
        policy: Some(POLICY),
        // Longer and shorter than pauses. A page is found if the drafter has seen all of it.
        pause_window: [5, 40, 100][page],
        page: PAGES[page],
        overlap: (mechanism + page) % 2 == 0,
        radix: true,
        ..plain.clone()
    }
}

/// Runs a mechanism with every algorithm, and returns the number of accepted drafts of each.
fn check(mechanism: usize) -> [u64; 4] {
    // Edges of the widest window, of a page, and of the window behind a page.
    let (jobs, mut accepted) = (jobs_at([widest(), 64, 64 + widest()], 16), [0; 4]);
    let plain = Setup {
        layers: MECHANISMS[mechanism],
        chunk: Some(16),
        running: 4,
        tokens: 2048,
        ..Setup::plain(Dtype::Float32, 1)
    };
    let expected = run("plain", &mut plain.start(), &jobs, |_| {});
    for (algorithm, accepted) in accepted.iter_mut().enumerate() {
        for page in 0..PAGES.len() {
            let setup = setup(&plain, [mechanism, algorithm, page]);
            let (registry, switches) = POLICY.watched();
            let mut engine = setup.start_with(registry);
            for what in ["cold", "warm"] {
                let what = format!("{what}, {setup:?}");
                let found = run(&what, &mut engine, &jobs, |_| {});
                same(&what, &found, &expected);
            }
            assert!(engine.load().counters.cached_tokens > 0, "{setup:?}");
            assert!(switches.load(Ordering::Relaxed) > 20, "{setup:?}");
            *accepted += engine.speculation().accepted_tokens;
            idle(&mut engine);
        }
    }
    accepted
}

#[test]
fn drafts_on_experts_change_no_bit() {
    let accepted = check(0);
    assert!(accepted[..2].iter().all(|count| *count > 0), "{accepted:?}");
}

#[test]
fn drafts_beside_windows_change_no_bit() {
    let accepted = check(1);
    assert!(accepted.iter().all(|count| *count > 0), "{accepted:?}");
}

#[test]
fn drafts_beside_sinks_change_no_bit() {
    let accepted = check(2);
    assert!(accepted[..2].iter().all(|count| *count > 0), "{accepted:?}");
}
