//! Tests of a frontend's view of a healthy engine.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use lockstep_planner::sim::{SimModel, run_alone};
use lockstep_proto::pb::lockstep::{CheckHealthRequest, FlushCacheRequest, GetFiguresRequest};
use lockstep_types::{
    ConstraintWork,
    request::{ErrorKind, FinishReason, Request},
};
use tonic::Code;

use crate::fixture::{CONSTRAINTS, FORWARD_US, Frontend, LIMIT, Scheduler, args, request};

#[tokio::test]
async fn every_request_gets_what_it_would_get_alone() {
    let (scheduler, mut frontend) = Scheduler::serving(&args(2)).await;
    let requests: Vec<_> = (0..20u32)
        .map(|n| request(&vec![n % 5; 10 + n as usize * 7], 5 + n))
        .collect();
    for (number, request) in (0..).zip(&requests) {
        frontend.submit(number, request.clone()).await;
    }
    let outputs = frontend.finish(requests.len()).await;
    let model = SimModel {
        vocab_size: scheduler.engine.model.vocab_size as u32,
    };
    let context = scheduler.engine.server.context_length as u32;
    for (number, request) in (0..).zip(&requests) {
        let alone = run_alone(model, context, request);
        let output = &outputs[&number];
        assert_eq!(output.token_ids, alone.token_ids, "request {number}");
        let finish = output.finish.as_ref().expect("ended");
        assert_eq!(finish.outcome, Ok(FinishReason::Length));
        assert_eq!(finish.usage.prompt_tokens as usize, request.input_ids.len());
        assert_eq!(
            finish.usage.completion_tokens as usize,
            output.token_ids.len()
        );
    }
    let load = frontend.load().await;
    assert_eq!(
        (
            load.running_requests,
            load.waiting_requests,
            load.leaked_pages
        ),
        (0, 0, 0)
    );
    assert_eq!(load.kv_tokens_used, 0, "only the cache holds pages");
    assert!(load.kv_tokens_cached > 0);
    let steps = load.step_times.expect("step times");
    assert_eq!(steps.counts.iter().sum::<u64>(), load.steps_total);
    assert_eq!(steps.sum_us, load.steps_total * FORWARD_US);
    // The other ranks' answers to the last steps may be on their way.
    assert_eq!(load.rank_us[0], steps.sum_us);
    let mut worked = ConstraintWork::default();
    (0..load.steps_total).for_each(|_| worked += CONSTRAINTS);
    assert_eq!(load.constraints, Some(worked.into()));
    let told = |us: &u64| *us > 0 && *us <= steps.sum_us;
    assert!(load.rank_us.iter().all(told), "{:?}", load.rank_us);
    let flushed = frontend
        .client
        .flush_cache(FlushCacheRequest {})
        .await
        .expect("an answer");
    assert!(flushed.into_inner().flushed);
    assert_eq!(frontend.load().await.kv_tokens_cached, 0);
}

#[tokio::test]
async fn steps_for_health_are_no_requests() {
    let (_scheduler, mut frontend) = Scheduler::serving(&args(1)).await;
    let counts = async |frontend: &mut Frontend| {
        let load = frontend.load().await;
        let tokens = (load.prompt_tokens_total, load.generated_tokens_total);
        (load.steps_total, (load.requests_total, tokens))
    };
    let (begun, of_clients) = counts(&mut frontend).await;
    assert_eq!(of_clients, (0, (0, 0)));
    let check = CheckHealthRequest {
        timeout_ms: LIMIT.as_millis() as u32,
        force_step: true,
    };
    let health = frontend.client.check_health(check).await;
    assert!(health.expect("an answer").into_inner().healthy);
    let (steps, of_clients) = counts(&mut frontend).await;
    assert!(steps > begun);
    assert_eq!(of_clients, (0, (0, 0)));
    frontend.submit(1, request(&[1, 2, 3], 4)).await;
    frontend.finish(1).await;
    assert_eq!(counts(&mut frontend).await.1, (1, (3, 4)));
}

#[tokio::test]
async fn an_abort_and_a_frontend_that_leaves_free_everything() {
    let (scheduler, mut frontend) = Scheduler::serving(&args(1)).await;
    frontend.submit(1, request(&[1, 2, 3], 1000)).await;
    frontend.outputs().await.expect("it runs");
    frontend.abort(1).await;
    let ended = frontend.finish(1).await;
    let finish = ended[&1].finish.as_ref().expect("ended");
    assert_eq!(finish.outcome, Ok(FinishReason::Abort));

    let mut leaver = scheduler.frontend().await;
    leaver.submit(1, request(&[4, 5, 6], 1000)).await;
    leaver.outputs().await.expect("it runs");
    drop(leaver);
    loop {
        let load = frontend.load().await;
        if load.running_requests == 0 {
            assert_eq!((load.kv_tokens_used, load.leaked_pages), (0, 0));
            break;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_abort_by_id_reaches_requests_of_every_frontend() {
    let (scheduler, mut one) = Scheduler::serving(&args(1)).await;
    let (mut other, mut asker) = (scheduler.frontend().await, scheduler.frontend().await);
    let known_as = |trace_id: &str| Request {
        trace_id: trace_id.to_owned(),
        ..request(&[1, 2, 3], 1000)
    };
    one.submit(1, known_as("a")).await;
    one.submit(2, known_as("a")).await;
    other.submit(1, known_as("b")).await;
    one.outputs().await.expect("they run");
    other.outputs().await.expect("it runs");

    let live = asker.requests(2).await;
    assert_eq!(live.total, 3);
    let ids: Vec<_> = live
        .requests
        .iter()
        .map(|one| one.trace_id.as_str())
        .collect();
    assert_eq!(ids, ["a", "a"], "the oldest two");
    assert!(
        live.requests
            .iter()
            .all(|one| one.running && one.output_tokens > 0)
    );
    assert_eq!(asker.abort_trace(7, Some(&[])).await, 0, "none is not all");
    assert_eq!(asker.abort_trace(8, Some(&["c", "a"])).await, 2);
    for ended in one.finish(2).await.values() {
        let finish = ended.finish.as_ref().expect("ended");
        assert_eq!(finish.outcome, Ok(FinishReason::Abort));
    }
    assert_eq!(asker.abort_trace(9, Some(&["a"])).await, 0, "they ended");
    other.outputs().await.expect("it still runs");
    assert_eq!(asker.abort_trace(10, None).await, 1);
    let ended = other.finish(1).await;
    let finish = ended[&1].finish.as_ref().expect("ended");
    assert_eq!(finish.outcome, Ok(FinishReason::Abort));
}

#[tokio::test]
async fn every_frontend_is_asked_for_its_figures() {
    let (scheduler, mut one) = Scheduler::serving(&args(1)).await;
    let mut other = scheduler.frontend().await;
    let mut client = one.client.clone();
    let ask = client.get_figures(GetFiguresRequest { metrics: true });
    let (answer, first, second) = tokio::join!(ask, one.tell_figures(0), other.tell_figures(1));
    assert!(first.metrics && second.metrics);
    let fronts = answer.expect("an answer").into_inner().fronts;
    let mut told: Vec<u32> = fronts.iter().map(|front| front.index).collect();
    told.sort_unstable();
    assert_eq!(told, [0, 1]);
    // A frontend that says nothing is not waited for.
    let ask = client.get_figures(GetFiguresRequest { metrics: false });
    let (answer, wanted) = tokio::join!(ask, other.tell_figures(1));
    assert!(!wanted.metrics);
    let fronts = answer.expect("an answer").into_inner().fronts;
    assert_eq!(fronts.len(), 1);
}

#[tokio::test]
async fn a_request_whose_client_has_all_it_wants_ends_well() {
    let (_scheduler, mut frontend) = Scheduler::serving(&args(1)).await;
    frontend.submit(1, request(&[1, 2, 3], 1000)).await;
    frontend.outputs().await.expect("it runs");
    frontend.stop(1).await;
    let ended = frontend.finish(1).await;
    let finish = ended[&1].finish.as_ref().expect("ended");
    assert_eq!(finish.outcome, Ok(FinishReason::Stop));
    assert!(finish.usage.completion_tokens > 0);
    let load = frontend.load().await;
    assert_eq!((load.aborted_requests_total, load.running_requests), (0, 0));
}

#[tokio::test]
async fn numbers_are_local_to_a_connection() {
    let (scheduler, mut one) = Scheduler::serving(&args(1)).await;
    let mut other = scheduler.frontend().await;
    one.submit(5, request(&[1, 2, 3], 4)).await;
    other.submit(5, request(&[9, 8, 7, 6], 4)).await;
    let (first, second) = tokio::join!(one.finish(1), other.finish(1));
    let prompt = |output: &lockstep_types::request::Output| {
        output.finish.as_ref().expect("ended").usage.prompt_tokens
    };
    assert_eq!((prompt(&first[&5]), prompt(&second[&5])), (3, 4));
}

#[tokio::test]
async fn what_a_frontend_forgot_to_check_is_refused_and_harms_nobody() {
    let (_scheduler, mut frontend) = Scheduler::serving(&args(1)).await;
    frontend.submit(1, request(&[1, 2, 3], 20)).await;
    let mut bad = vec![
        request(&[1_000_000], 1),
        request(&[], 1),
        request(&[1; 100_000], 1),
    ];
    let mut hot = request(&[1], 1);
    hot.generation.sampling.temperature = f32::NAN;
    bad.push(hot);
    let mut eager = request(&[1], 1);
    eager.priority = 3;
    bad.push(eager);
    for (number, request) in (2..).zip(bad.iter()) {
        frontend.submit(number, request.clone()).await;
    }
    let outputs = frontend.finish(bad.len() + 1).await;
    for number in 2..2 + bad.len() as u64 {
        let outcome = &outputs[&number].finish.as_ref().expect("ended").outcome;
        let error = outcome.as_ref().expect_err("refused");
        assert_eq!(error.kind, ErrorKind::Invalid, "request {number}: {error}");
    }
    assert_eq!(outputs[&1].token_ids.len(), 20);
}

#[tokio::test]
async fn another_configuration_is_turned_away() {
    let scheduler = Scheduler::start(&args(1));
    let path = scheduler.node.frontend_socket();
    let channel = lockstep_process::connect_unix(&path, LIMIT)
        .await
        .expect("listening");
    let refused = Frontend::connect(channel, "other".to_owned()).await;
    assert_eq!(
        refused.err().map(|status| status.code()),
        Some(Code::FailedPrecondition)
    );
}

#[tokio::test]
async fn an_engine_without_its_ranks_is_unhealthy_at_once() {
    let scheduler = Scheduler::start(&args(2));
    let mut frontend = scheduler.frontend().await;
    let health = frontend.check_health().await;
    assert!(
        !health.healthy && health.reason.contains("starting"),
        "{health:?}"
    );
}

/// Without this rank's last step, the other ranks' exchanges in that step would never end.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_drained_scheduler_waits_for_ranks_that_are_behind_the_lead() {
    let scheduler = Scheduler::start(&args(2));
    scheduler.worker(0, |_, _| true).await;
    let (resume, behind) = std::sync::mpsc::channel::<()>();
    let holds = Arc::new(AtomicBool::new(false));
    let second = scheduler.worker(1, {
        let holds = holds.clone();
        move |_, _| {
            if holds.load(Ordering::Relaxed) {
                tokio::task::block_in_place(|| {
                    let _ = behind.recv();
                });
            }
            true
        }
    });
    let second = second.await;
    let mut frontend = scheduler.frontend().await;
    frontend.healthy().await;
    holds.store(true, Ordering::Relaxed);
    frontend.submit(1, request(&[1, 2, 3], 1)).await;
    frontend.finish(1).await;
    scheduler.link.lifecycle().drain.cancel();
    frontend.load().await;
    drop(resume);
    scheduler.ended().await.expect("it ends well");
    let second = second.await.expect("no panic");
    second.expect("its stream ends in order");
}

#[tokio::test]
async fn a_drained_scheduler_finishes_and_takes_nothing_new() {
    let (scheduler, mut frontend) = Scheduler::serving(&args(2)).await;
    frontend.submit(1, request(&[1, 2, 3], 200)).await;
    frontend.outputs().await.expect("it runs");
    scheduler.link.lifecycle().drain.cancel();
    frontend.submit(2, request(&[1, 2, 3], 5)).await;
    let outputs = frontend.finish(2).await;
    let outcome = |number| {
        outputs[&number]
            .finish
            .as_ref()
            .map(|finish| finish.outcome.clone())
    };
    assert_eq!(outcome(1), Some(Ok(FinishReason::Length)));
    let Some(Err(error)) = outcome(2) else {
        panic!("not refused")
    };
    assert_eq!(error.kind, ErrorKind::Unavailable);
    scheduler
        .ended()
        .await
        .expect("a drained scheduler ends well");
}
