//! Tests of the last known health, on the public port and at frontends.

use std::sync::mpsc::{Sender, channel};

use lockstep_config::ServeArgs;
use lockstep_proto::pb::lockstep::{CheckHealthRequest, FlushCacheRequest};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tonic::{Streaming, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_client::HealthClient};

use crate::{
    fixture::{LIMIT, Scheduler, args},
    sglang::free_port,
};

/// Returns options with a port for gateways, where health is not asked for within an hour.
fn unasked(ranks: usize) -> ServeArgs {
    let mut args = args(ranks);
    args.server.sglang_grpc_port = Some(free_port());
    args.timeouts.health_timeout = Some(3600);
    args
}

/// The health that the public port reports.
struct Watch(Streaming<HealthCheckResponse>);

impl Watch {
    async fn of(scheduler: &Scheduler) -> Self {
        let port = scheduler.engine.server.sglang_grpc_port.expect("open");
        let address = format!("127.0.0.1:{port}");
        let channel = lockstep_process::connect_tcp(&address, LIMIT, None).await;
        let channel: Channel = channel.expect("listening");
        let request = HealthCheckRequest::default();
        let watch = HealthClient::new(channel).watch(request).await;
        Self(watch.expect("served").into_inner())
    }

    /// Returns true if the next report says that the server serves.
    async fn next(&mut self) -> bool {
        let told = tokio::time::timeout(LIMIT, self.0.message()).await;
        let told = told.expect("it is told").expect("no broken stream");
        told.expect("no end").status == 1
    }
}

#[tokio::test]
async fn the_first_step_is_told_and_costs_no_other() {
    let scheduler = Scheduler::start(&unasked(1));
    let mut watch = Watch::of(&scheduler).await;
    let mut early = scheduler.frontend().await;
    assert!(!watch.next().await);
    assert_eq!(early.told_healthy, Some(false));
    scheduler.worker(0, |_, _| true).await;
    assert!(watch.next().await);
    early.until_told(true).await;
    let mut late = scheduler.frontend().await;
    assert_eq!(late.told_healthy, Some(true), "with the welcome");
    assert_eq!(late.load().await.steps_total, 1);
}

/// Starts a scheduler of two ranks whose step 2 lasts until the sender is dropped. The receiver
/// tells that step 2 has begun.
async fn hanging() -> (Scheduler, Sender<()>, UnboundedReceiver<()>) {
    let scheduler = Scheduler::start(&unasked(2));
    scheduler.worker(0, |_, _| true).await;
    let (resume, hang) = channel();
    let (entered, begun) = unbounded_channel();
    scheduler
        .worker(1, move |plan, _| {
            if plan.step == 2 {
                let _ = entered.send(());
                // Blocks this worker's task as a stopped process would be.
                tokio::task::block_in_place(|| {
                    let _ = hang.recv();
                });
            }
            true
        })
        .await;
    (scheduler, resume, begun)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn who_waits_in_vain_for_a_step_is_heard_of_everywhere() {
    let (scheduler, resume, _begun) = hanging().await;
    let mut watch = Watch::of(&scheduler).await;
    while !watch.next().await {}
    let mut other = scheduler.frontend().await;
    assert_eq!(other.told_healthy, Some(true));
    let mut asks = scheduler.frontend().await;
    let check = CheckHealthRequest {
        timeout_ms: 1,
        force_step: true,
    };
    let answer = asks.client.check_health(check).await;
    assert!(!answer.expect("an answer").into_inner().healthy);
    other.until_told(false).await;
    assert!(!watch.next().await);
    drop(resume);
    other.until_told(true).await;
    assert!(watch.next().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_flush_waits_for_a_step_of_the_engines_own() {
    let (scheduler, resume, mut begun) = hanging().await;
    let mut frontend = scheduler.frontend().await;
    frontend.until_told(true).await;
    let mut asks = frontend.client.clone();
    let check = tokio::spawn(async move {
        let request = CheckHealthRequest {
            timeout_ms: LIMIT.as_millis() as u32,
            force_step: true,
        };
        asks.check_health(request).await
    });
    begun.recv().await.expect("a step for it");
    let mut flushes = frontend.client.clone();
    let flushed = tokio::spawn(async move { flushes.flush_cache(FlushCacheRequest {}).await });
    // The load is asked for after the flush: no client's request runs.
    let load = frontend.load().await;
    assert_eq!((load.running_requests, load.waiting_requests), (0, 0));
    drop(resume);
    let flushed = flushed.await.expect("no panic").expect("an answer");
    let flushed = flushed.into_inner();
    assert!(flushed.flushed, "{}", flushed.reason);
    let checked = check.await.expect("no panic").expect("an answer");
    assert!(checked.into_inner().healthy);
}
