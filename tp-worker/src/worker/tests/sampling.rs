//! Sampled texts, and failures and progress of loading.

use lockstep_types::Dtype;
use lockstep_types::sampling::SamplingParams;

use super::{
    goldens::goldens,
    support::{Request, Scheduler, config},
};
use crate::worker::{
    WorkerError,
    local::{LocalGroup, LocalOptions, OnProgress},
};

fn sampled(seed: u64) -> Request {
    let mut request = Request::greedy(&goldens()[0].prompt_ids, 16);
    request.sampling = SamplingParams {
        temperature: 2.0,
        seed,
        ..request.sampling
    };
    request
}

/// Equal seeds give equal texts in any slot, other seeds other texts.
#[test]
fn a_text_is_its_seeds() {
    let config = config(2, 16, Dtype::Float32);
    let group = LocalGroup::start(&config, &LocalOptions::default()).unwrap();
    let mut step = 0;
    let requests = [sampled(1), sampled(2), sampled(1)];
    let together = Scheduler::new(&group, &mut step, &config, 9, 3)
        .run(&requests)
        .unwrap();
    assert_eq!(together[0], together[2]);
    assert_ne!(together[0].tokens, together[1].tokens);
    let alone = Scheduler::new(&group, &mut step, &config, 100, 1)
        .run(&requests[1..2])
        .unwrap();
    assert_eq!(alone[0], together[1]);
}

/// The error for a model that can't be loaded names its file, and no rank hangs.
#[test]
fn a_failed_start_is_an_error_of_the_group() {
    let mut config = config(2, 16, Dtype::Float32);
    config.model.path = "/nonexistent".into();
    let error = LocalGroup::start(&config, &LocalOptions::default())
        .err()
        .unwrap();
    assert!(matches!(error, WorkerError::Model(_)), "{error}");
    assert!(error.to_string().contains("/nonexistent"));
}

/// Progress ends at the total, on every rank.
#[test]
fn loading_reports_progress() {
    let config = config(2, 16, Dtype::Float32);
    let seen = std::sync::Arc::new(std::sync::Mutex::new(vec![Vec::new(); 2]));
    let sink = seen.clone();
    let progress = move |rank: usize, at| sink.lock().unwrap()[rank].push(at);
    let progress: OnProgress = std::sync::Arc::new(progress);
    let options = LocalOptions {
        progress: Some(progress),
        ..LocalOptions::default()
    };
    drop(LocalGroup::start(&config, &options).unwrap());
    for ranks in seen.lock().unwrap().iter() {
        assert!(ranks.windows(2).all(|pair| pair[0].done < pair[1].done));
        let last = ranks.last().unwrap();
        assert_eq!(last.done, last.total);
    }
}
