//! Requests with several adapters and without, in one batch. Each gets the text that it gets alone,
//! with drafts of a model that has no adapters.

use std::path::PathBuf;

use lockstep_local_engine::{Completion, LocalEngine, LocalOptions};
use lockstep_types::{AdapterLimits, Dtype, adapter::Adapter, request::Request};

use crate::{
    goldens::GOLDENS,
    oracle::compare,
    requests::golden,
    setup::{Algorithm, Setup, Shape, root},
};

/// Prompts whose texts differ by adapter. Each is asked with both and with none.
const PROMPTS: [usize; 2] = [20, 24];
const MAX_NEW: u32 = 24;

fn folder(name: &str) -> PathBuf {
    root().join("tests/fixtures/adapters").join(name)
}

/// Starts an engine with two adapters.
fn start(setup: &Setup) -> (LocalEngine, [Option<Adapter>; 3]) {
    let mut config = setup.config();
    config.adapters = AdapterLimits { places: 2, rank: 4 };
    let mut engine = LocalEngine::start(&config, &LocalOptions::default()).unwrap();
    let mut load = |place, name| Some(engine.load_adapter(place, &folder(name)).unwrap());
    let adapters = [load(1, "demo_one"), load(0, "demo_two"), None];
    (engine, adapters)
}

fn requests(adapters: [Option<Adapter>; 3]) -> Vec<Request> {
    let request = |number: usize| {
        let mut request = golden(&GOLDENS[PROMPTS[number / 3]]);
        request.max_new_tokens = MAX_NEW;
        request.generation.adapter = adapters[number % 3];
        request
    };
    (0..3 * PROMPTS.len()).map(request).collect()
}

/// Returns the answers to all requests at once.
fn together(setup: &Setup) -> (Vec<Completion>, u64) {
    let (mut engine, adapters) = start(setup);
    let found = engine.run(requests(adapters)).unwrap();
    (found, engine.speculation().accepted_tokens)
}

fn same(what: &str, found: &[Completion], expected: &[Completion]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        compare(what, found, expected);
    }
}

#[test]
fn company_and_drafts_change_no_text() {
    // DP ranks agree on a depth by the costs of steps, which may be none.
    let mut accepted = 0;
    for (dtype, tp, dp) in [(Dtype::Bfloat16, 1, 1), (Dtype::Float32, 2, 2)] {
        let plain = Setup {
            dp,
            ..Setup::plain(dtype, tp)
        };
        let (mut engine, adapters) = start(&plain);
        let requests = requests(adapters);
        let alone = requests.iter().map(|request| {
            let run = engine.run(vec![request.clone()]);
            run.unwrap().remove(0)
        });
        let expected: Vec<_> = alone.collect();
        // Both adapters change texts, each in its own way.
        for texts in expected.chunks(3) {
            let ids = [0, 1, 2].map(|at| &texts[at].token_ids);
            assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
        }
        // Adapters have one prompt, and share none of it.
        let chunked = Setup {
            radix: true,
            chunk: Some(5),
            page: 4,
            running: 4,
            ..plain.clone()
        };
        same("chunks", &together(&chunked).0, &expected);
        for (algorithm, shape) in [
            (Algorithm::Eagle3, Shape::TREE),
            (Algorithm::Ngram, Shape::chain(4)),
            (Algorithm::Standalone, Shape::chain(3)),
        ] {
            let drafting = Setup {
                radix: true,
                speculation: Some((algorithm, shape)),
                ..plain.clone()
            };
            let (found, some) = together(&drafting);
            same(&format!("{algorithm:?}"), &found, &expected);
            accepted += some;
        }
    }
    assert!(accepted > 0);
}

/// A place may get another adapter once no request has the first one. An adapter that is refused
/// changes nothing.
#[test]
fn places_are_used_again() {
    let (mut engine, adapters) = start(&Setup::plain(Dtype::Bfloat16, 2));
    let expected = engine.run(requests(adapters)).unwrap();
    let error = engine.load_adapter(0, &folder("llama")).unwrap_err();
    assert!(error.to_string().contains("for another model"), "{error}");
    let again = engine.run(requests(adapters)).unwrap();
    same("a refusal", &again, &expected);
    engine.unload_adapter(1).unwrap();
    let one = engine.load_adapter(0, &folder("demo_one")).unwrap();
    assert_eq!(
        Some(one.content),
        adapters[0].map(|adapter| adapter.content)
    );
    let two = engine.load_adapter(1, &folder("demo_two")).unwrap();
    let swapped = engine.run(requests([Some(one), Some(two), None])).unwrap();
    same("other places", &swapped, &expected);
}
