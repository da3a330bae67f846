//! Texts on GPUs are the same with drafts. Cargo starts these tests on fake GPUs.

use std::sync::{Mutex, PoisonError, atomic::Ordering};

use lockstep_local_engine::Completion;
use lockstep_types::Dtype;
use lockstep_types::request::Request;

use crate::{
    goldens::GOLDENS,
    load::{idle, run},
    oracle::compare,
    policies::Policy,
    requests::{Job, golden},
    setup::{Algorithm, Setup, Shape},
};

/// Gives the fake GPUs of engines that start from now on an order that `seed` draws. Other tests
/// wait until the result is dropped: a process has one order for new threads.
pub fn alone(seed: u64) -> impl Sized {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // The order ends before the lock.
    (lockstep_fake_cuda::order_of_threads(seed), one)
}

/// Requests of both DP ranks: first for one while the other idles, then for both.
fn jobs() -> Vec<Job> {
    [(0, 1, 0), (9, 0, 4)]
        .into_iter()
        .map(|(number, dp_rank, arrival)| Job {
            request: Request {
                max_new_tokens: 10,
                data_parallel_rank: Some(dp_rank),
                ..golden(&GOLDENS[number])
            },
            arrival,
            patience: None,
        })
        .collect()
}

/// Answers, and the number of switches. One algorithm of products serves all passes, so that
/// bits can be compared.
fn texts(setup: &Setup, policy: Policy) -> (Vec<Completion>, u64) {
    let _alone = alone(3);
    let setup = Setup {
        dp: 2,
        gpus: true,
        chunk: Some(2 * 16),
        running: 8,
        tokens: 1024,
        ..setup.clone()
    };
    let (registry, switches) = policy.watched();
    let mut engine = setup.start_with(registry);
    let found = run("on GPUs", &mut engine, &jobs(), |_| {});
    idle(&mut engine);
    (found, switches.load(Ordering::Relaxed))
}

/// Texts with data-parallel attention, and with a depth that changes in every step.
#[test]
fn texts_stay_the_same_on_dp_ranks_on_gpus() {
    let policy = Policy::Restless;
    let (plain, _) = texts(&Setup::plain(Dtype::Float32, 2), policy);
    let drafting = Setup::drafting(Dtype::Float32, 2, Algorithm::Eagle3, Shape::chain(3));
    let drafting = Setup {
        policy: Some(policy),
        ..drafting
    };
    let (found, switches) = texts(&drafting, policy);
    assert!(switches > 5, "{switches}");
    for (number, (plain, found)) in plain.iter().zip(&found).enumerate() {
        compare(&format!("request {number}"), found, plain);
    }
    let finished = found.iter().filter_map(|found| found.finish.as_ref());
    let drafts = finished.filter_map(|finish| finish.speculation.as_ref());
    let accepted: u32 = drafts.map(|drafts| drafts.accepted_tokens()).sum();
    assert!(accepted > 0);
}
