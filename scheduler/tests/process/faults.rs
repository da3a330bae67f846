//! Tests with workers that die, hang, or compute something else.

use lockstep_proto::pb::lockstep::CheckHealthRequest;
use lockstep_types::request::{ErrorKind, RequestError};

use crate::fixture::{Frontend, Scheduler, args, request};

/// Returns the error that request 1 ends with.
async fn failure(frontend: &mut Frontend) -> RequestError {
    let outputs = frontend.finish(1).await;
    let finish = outputs[&1].finish.clone().expect("ended");
    finish.outcome.expect_err("failed")
}

#[tokio::test]
async fn a_rank_that_diverges_is_named_and_ends_the_group() {
    let scheduler = Scheduler::start(&args(2));
    scheduler.worker(0, |_, _| true).await;
    scheduler
        .worker(1, |plan, digests| {
            // The digest is wrong from step 6 on.
            digests.tensor += u64::from(plan.step > 5);
            true
        })
        .await;
    let mut frontend = scheduler.frontend().await;
    frontend.healthy().await;
    frontend.submit(1, request(&[1, 2, 3], 500)).await;
    let error = failure(&mut frontend).await;
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("diverged"), "{error}");
    let ended = scheduler
        .ended()
        .await
        .expect_err("it can't go on")
        .to_string();
    assert!(ended.contains("diverged in step 6"), "{ended}");
}

#[tokio::test]
async fn a_rank_that_dies_fails_every_request() {
    let scheduler = Scheduler::start(&args(2));
    let survivor = scheduler.worker(0, |_, _| true).await;
    scheduler.worker(1, |plan, _| plan.step < 10).await;
    let mut frontend = scheduler.frontend().await;
    frontend.healthy().await;
    frontend.submit(1, request(&[1, 2, 3], 500)).await;
    let error = failure(&mut frontend).await;
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("rank 1"), "{error}");
    let told = survivor
        .await
        .expect("no panic")
        .expect_err("not a clean end");
    assert!(told.message().contains("rank 1"), "{told}");
    scheduler.ended().await.expect_err("it can't go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_rank_that_hangs_is_unhealthy_first_and_dead_after_the_watchdog() {
    let mut args = args(2);
    args.timeouts.watchdog_timeout = Some(2);
    let scheduler = Scheduler::start(&args);
    scheduler.worker(0, |_, _| true).await;
    let (resume, hang) = std::sync::mpsc::channel::<()>();
    let (entered, mut hanging) = tokio::sync::mpsc::unbounded_channel();
    scheduler
        .worker(1, move |plan, _| {
            if plan.step == 10 {
                let _ = entered.send(());
                // Blocks this worker's task as a stopped process would be.
                tokio::task::block_in_place(|| {
                    let _ = hang.recv();
                });
            }
            true
        })
        .await;
    let mut frontend = scheduler.frontend().await;
    frontend.healthy().await;
    frontend.submit(1, request(&[1, 2, 3], 500)).await;
    hanging.recv().await.expect("step 10 comes");
    let check = CheckHealthRequest {
        timeout_ms: 300,
        force_step: true,
    };
    let health = frontend
        .client
        .check_health(check)
        .await
        .expect("an answer")
        .into_inner();
    assert!(!health.healthy, "a stuck rank is not healthy");
    let error = failure(&mut frontend).await;
    assert!(error.message.contains("--watchdog-timeout"), "{error}");
    drop(resume);
    scheduler.ended().await.expect_err("it can't go on");
}

#[tokio::test]
async fn a_second_worker_for_a_rank_is_turned_away_and_the_first_serves_on() {
    let (scheduler, mut frontend) = Scheduler::serving(&args(1)).await;
    let twin = scheduler.worker(0, |_, _| true).await;
    let refused = twin.await.expect("no panic").expect_err("refused");
    assert!(refused.message().contains("attached twice"), "{refused}");
    frontend.submit(1, request(&[1, 2, 3], 5)).await;
    assert_eq!(frontend.finish(1).await[&1].token_ids.len(), 5);
}
