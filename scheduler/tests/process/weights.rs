//! Tests of other weights: running requests end first, new requests wait, and all ranks agree.

use std::sync::atomic::Ordering::Relaxed;

use lockstep_proto::pb::lockstep::{
    self as wire, CheckHealthRequest, ErrorKind, UpdateWeightsRequest, UpdateWeightsResponse,
};
use lockstep_types::drafter::{
    CorpusCommand, CorpusSize, DrafterCommand, DrafterReply, DrafterResult,
};
use lockstep_types::request::{FinishReason, Output};
use tokio::task::JoinHandle;

use crate::fixture::{Frontend, LIMIT, Scheduler, args, request};

/// Output tokens of a request that runs until it is told to end.
const LONG: u32 = 1800;

fn update(path: &str) -> UpdateWeightsRequest {
    UpdateWeightsRequest {
        model_path: path.to_owned(),
        ..UpdateWeightsRequest::default()
    }
}

/// Asks for an update, whose outcome comes later.
fn ask(frontend: &Frontend, update: UpdateWeightsRequest) -> JoinHandle<UpdateWeightsResponse> {
    let mut client = frontend.client.clone();
    tokio::spawn(async move {
        let answer = client.update_weights(update).await;
        answer.expect("an answer").into_inner()
    })
}

async fn outcome(answer: JoinHandle<UpdateWeightsResponse>) -> UpdateWeightsResponse {
    answer.await.expect("no panic")
}

/// Submits requests of one token until one of them is held back. Returns its number.
async fn held(frontend: &mut Frontend, mut number: u64) -> u64 {
    loop {
        frontend.submit(number, request(&[1], 1)).await;
        // Between two looks the engine plans, and would admit it.
        if frontend.load().await.waiting_requests > 0 && frontend.load().await.waiting_requests > 0
        {
            return number;
        }
        number += 1;
    }
}

/// Returns the end of a request, and the version of the weights when it came.
async fn end(frontend: &mut Frontend, wanted: u64) -> (Output, Option<String>) {
    loop {
        for (number, output) in frontend.outputs().await.expect("outputs") {
            if number == wanted && output.finish.is_some() {
                let version = frontend.weights.as_ref();
                return (output, version.map(|weights| weights.version.clone()));
            }
        }
    }
}

#[tokio::test]
async fn what_runs_ends_on_the_old_weights_and_what_waits_gets_the_new_ones() {
    let (scheduler, mut frontend) = Scheduler::serving(&args(2)).await;
    assert_eq!(frontend.weights, None);
    frontend.submit(1, request(&[1, 2, 3], LONG)).await;
    frontend.outputs().await.expect("it runs");
    let answer = ask(
        &frontend,
        UpdateWeightsRequest {
            version: Some("v2".to_owned()),
            ..update("/new")
        },
    );
    let waits = held(&mut frontend, 2).await;
    let busy = outcome(ask(&frontend, update("/newer"))).await;
    let busy = busy.error.expect("one at a time");
    assert_eq!(busy.kind(), ErrorKind::Overloaded);
    let (old, version) = end(&mut frontend, 1).await;
    assert_eq!(version, None, "it ended before the weights changed");
    assert_eq!(
        old.finish.expect("the end").usage.completion_tokens,
        LONG,
        "in full"
    );
    let (new, version) = end(&mut frontend, waits).await;
    assert_eq!(version.as_deref(), Some("v2"));
    assert!(new.finish.expect("the end").outcome.is_ok());
    let answer = outcome(answer).await;
    assert_eq!(answer.error, None);
    assert!(answer.paused_requests >= 1);
    let load = frontend.load().await;
    assert_eq!((load.leaked_pages, load.kv_tokens_used), (0, 0));
    // A frontend that connects later learns the weights from the welcome; a version stays until
    // it is changed.
    let answer = outcome(ask(&frontend, update("/newest"))).await;
    assert_eq!(answer.error, None);
    let late = scheduler.frontend().await;
    let weights = late.weights.expect("told");
    assert_eq!(weights.model_path, "/newest");
    assert_eq!(weights.version, "v2");
}

#[tokio::test]
async fn weights_that_do_not_fit_stop_nobody() {
    let (_scheduler, mut frontend) = Scheduler::serving(&args(2)).await;
    for path in ["/other-shape", "/cut-off"] {
        let answer = outcome(ask(&frontend, update(path))).await;
        let error = answer.error.expect("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message.contains("they do not fit"), "{error:?}");
        frontend.submit(1, request(&[1, 2, 3], 5)).await;
        let (output, version) = end(&mut frontend, 1).await;
        assert!(output.finish.expect("the end").outcome.is_ok());
        assert_eq!(version, None, "the weights stay as they were");
    }
    let answer = UpdateWeightsRequest {
        draft_path: Some("/head".to_owned()),
        ..update("/new")
    };
    let error = outcome(ask(&frontend, answer)).await.error;
    let error = error.expect("this server does not speculate");
    assert_eq!(error.param.as_deref(), Some("draft_model_path"));
}

#[tokio::test]
async fn requests_are_aborted_when_the_update_says_so() {
    let (_scheduler, mut frontend) = Scheduler::serving(&args(1)).await;
    frontend.submit(1, request(&[1, 2, 3], LONG)).await;
    frontend.outputs().await.expect("it runs");
    let wanted = UpdateWeightsRequest {
        abort_all: true,
        ..update("/new")
    };
    let answer = ask(&frontend, wanted);
    let (output, _) = end(&mut frontend, 1).await;
    let finish = output.finish.expect("the end");
    assert_eq!(finish.outcome, Ok(FinishReason::Abort));
    assert_eq!(outcome(answer).await.error, None);
    assert_eq!(frontend.load().await.kv_tokens_used, 0);
}

#[tokio::test]
async fn an_update_that_nobody_waits_for_is_given_up() {
    let (_scheduler, mut frontend) = Scheduler::serving(&args(1)).await;
    frontend.submit(1, request(&[1, 2, 3], LONG)).await;
    frontend.outputs().await.expect("it runs");
    let answer = ask(&frontend, update("/new"));
    let waits = held(&mut frontend, 2).await;
    answer.abort();
    let (_, version) = end(&mut frontend, waits).await;
    assert_eq!(version, None, "it was let in with the old weights");
    frontend.abort(1).await;
}

/// Ranks that found nothing wrong forget the weights too.
#[tokio::test]
async fn what_was_looked_at_is_forgotten_when_the_update_is_off() {
    let (scheduler, mut frontend) = Scheduler::serving(&args(2)).await;
    let forgotten = async |times: usize| {
        let told = async {
            while scheduler.forgotten.load(Relaxed) < times {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, told).await.expect("told");
        assert_eq!(scheduler.forgotten.load(Relaxed), times);
    };
    let answer = outcome(ask(&frontend, update("/other-shape-on-rank-1"))).await;
    let error = answer.error.expect("refused");
    assert!(error.message.contains("rank 1"), "{error:?}");
    forgotten(2).await;
    assert_eq!(outcome(ask(&frontend, update("/new"))).await.error, None);
    frontend.submit(1, request(&[1, 2, 3], LONG)).await;
    frontend.outputs().await.expect("it runs");
    let answer = ask(&frontend, update("/newer"));
    held(&mut frontend, 2).await;
    forgotten(2).await;
    answer.abort();
    forgotten(4).await;
    frontend.abort(1).await;
}

#[tokio::test]
async fn a_node_that_reads_weights_is_healthy() {
    let (_scheduler, frontend) = Scheduler::serving(&args(1)).await;
    let answer = ask(&frontend, update("/endless"));
    let healthy = async |force_step| {
        let request = CheckHealthRequest {
            // Longer than the time for which a step counts as recent.
            timeout_ms: 1100,
            force_step,
        };
        let mut client = frontend.client.clone();
        let health = client.check_health(request).await;
        health.expect("an answer").into_inner().healthy
    };
    while healthy(true).await {}
    assert!(healthy(false).await, "no step can run, and none has to");
    answer.abort();
}

#[tokio::test]
async fn ranks_with_different_weights_end_the_group() {
    let (scheduler, frontend) = Scheduler::serving(&args(2)).await;
    let answer = outcome(ask(&frontend, update("/only-on-rank-0"))).await;
    let error = answer.error.expect("failed");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message.contains("rank 1"), "{error:?}");
    scheduler.ended().await.expect_err("it can't go on");
}

#[tokio::test]
async fn corpora_go_to_the_rank_that_drafts_and_answers_come_in_order() {
    let (_scheduler, frontend) = Scheduler::serving(&args(2)).await;
    let add = |tokens: u32| CorpusCommand::Add {
        name: format!("of {tokens}"),
        token_ids: (0..tokens).collect(),
    };
    let client = frontend.client.clone();
    let send = async |command| {
        let command = DrafterCommand::Corpora(command);
        let reply = client
            .clone()
            .command_drafter(wire::DrafterCommand::from(command))
            .await;
        let DrafterReply::Corpora(all) =
            DrafterResult::from(reply.expect("an answer").into_inner()).expect("no error");
        all
    };
    for tokens in [3, 100_000] {
        let size = CorpusSize {
            name: format!("of {tokens}"),
            tokens: u64::from(tokens),
        };
        assert_eq!(send(add(tokens)).await, [size]);
    }
    assert!(send(CorpusCommand::List).await.is_empty());
}
