//! Health checks of load balancers over gRPC, and limits of connections.

use std::{sync::atomic::Ordering, time::Duration};

use lockstep_proto::pb::lockstep::GetModelInfoRequest;
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::{
    grpc::{channel, client, text},
    harness::{HASH, engine_config, launch, node_config, start_with},
    mock::{Mock, ids},
};

#[tokio::test]
async fn health_follows_the_drain_and_a_key_is_asked_for() {
    let front = start_with(|engine, node| {
        engine.server.api_key_required = true;
        node.api_key = Some("secret".to_owned());
    })
    .await;
    let mut client = client(&front).await;
    let status = client
        .get_model_info(GetModelInfoRequest {})
        .await
        .expect_err("no key");
    assert_eq!(status.code(), Code::Unauthenticated);
    let mut request = tonic::Request::new(GetModelInfoRequest {});
    let value = "Bearer secret".parse().expect("ascii");
    request.metadata_mut().insert("authorization", value);
    client.get_model_info(request).await.expect("with the key");

    // Load balancers need no key.
    let mut health = HealthClient::new(channel(&front).await);
    let request = HealthCheckRequest {
        service: "lockstep.v1.Inference".to_owned(),
    };
    let mut watch = health.watch(request).await.expect("served").into_inner();
    let serving = |status: i32| status == 1;
    while !serving(watch.message().await.expect("open").expect("open").status) {}
    front.context.link.lifecycle().drain.cancel();
    // Either the change is reported or the server has already ended.
    while let Ok(Some(status)) = watch.message().await {
        if !serving(status.status) {
            break;
        }
    }
    front.served.await.expect("no panic").expect("drained");
}

#[tokio::test]
async fn health_follows_the_steps_of_the_engine() {
    // No health check runs a step meanwhile.
    let front = start_with(|engine, _| engine.timeouts.health_s = 3600).await;
    let mut health = HealthClient::new(channel(&front).await);
    let request = HealthCheckRequest {
        service: String::new(),
    };
    let mut watch = health.watch(request).await.expect("served").into_inner();
    let follow = async {
        for serving in [true, false, true] {
            front.mock.steps(serving);
            while (watch.message().await.expect("open").expect("open").status == 1) != serving {}
        }
        // The steps of a lost scheduler are unknown, so the service is not healthy.
        front.mock.disconnect();
        while watch.message().await.expect("open").expect("open").status == 1 {}
        // The next connection's welcome reports that steps run.
        while watch.message().await.expect("open").expect("open").status != 1 {}
    };
    tokio::time::timeout(Duration::from_secs(30), follow)
        .await
        .expect("each change is reported");
    let asked = front.mock.health_asked.load(Ordering::Relaxed);
    assert!(asked <= 1, "{asked} times");
}

#[tokio::test]
async fn a_scheduler_that_can_not_be_asked_is_not_well() {
    let front = start_with(|engine, _| engine.timeouts.health_s = 3600).await;
    let mut health = HealthClient::new(channel(&front).await);
    let request = HealthCheckRequest {
        service: String::new(),
    };
    let mut watch = health.watch(request).await.expect("served").into_inner();
    let follow = async {
        while watch.message().await.expect("open").expect("open").status != 1 {}
        front.mock.refuses_health.store(true, Ordering::Relaxed);
        let (status, text) = front.get("/health").await;
        assert_eq!(status, 503, "{text}");
        // Who asked is not the only one to hear of it.
        while watch.message().await.expect("open").expect("open").status == 1 {}
    };
    tokio::time::timeout(Duration::from_secs(30), follow)
        .await
        .expect("the change is reported");
}

#[tokio::test]
async fn without_a_scheduler_nothing_is_served() {
    let run_dir = tempfile::tempdir().expect("run dir");
    let node = node_config(run_dir.path().to_owned());
    let elsewhere = tempfile::tempdir().expect("run dir");
    let mock = Mock::start(&elsewhere.path().join("frontend.sock"), HASH);
    let front = launch(engine_config(), node, mock, run_dir).await;
    let mut health = HealthClient::new(channel(&front).await);
    for service in ["", "lockstep.v1.Inference"] {
        let service = service.to_owned();
        let check = health.check(HealthCheckRequest { service }).await;
        assert_ne!(check.expect("known").into_inner().status, 1);
    }
}

#[tokio::test]
async fn calls_without_a_place_are_refused_but_for_health() {
    let front = start_with(|engine, _| engine.server.limits.connections.per_port = 1).await;
    let watch = HealthCheckRequest {
        service: String::new(),
    };
    // A call that is being answered keeps its connection busy.
    let mut working = client(&front).await;
    let (held, job) = tokio::join!(working.generate(text("ab")), async {
        let job = front.mock.job().await;
        job.tokens(&ids("x"));
        job
    });
    let held = held.expect("the only place");
    let mut beyond = client(&front).await;
    let status = beyond.get_model_info(GetModelInfoRequest {}).await;
    assert_eq!(status.expect_err("no place").code(), Code::Unavailable);
    let mut probe = HealthClient::new(channel(&front).await);
    probe.check(watch.clone()).await.expect("a probe");
    let another = probe.watch(watch).await;
    assert_eq!(another.expect_err("no probe").code(), Code::Unavailable);
    drop((held, working, job));
    // The place is free once the server has seen the connection's end.
    let free = async {
        let mut again = client(&front).await;
        while again.get_model_info(GetModelInfoRequest {}).await.is_err() {
            again = client(&front).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), free)
        .await
        .expect("a place again");
}

#[tokio::test]
async fn headers_are_limited_on_grpc_too() {
    let front = start_with(|engine, _| engine.server.limits.header_bytes = 8192).await;
    let mut client = client(&front).await;
    let mut call = async |bytes: usize| {
        let mut request = tonic::Request::new(GetModelInfoRequest {});
        let value = "x".repeat(bytes).parse().expect("ascii");
        request.metadata_mut().insert("padding", value);
        client.get_model_info(request).await
    };
    call(4096).await.expect("within the limit");
    call(16384).await.expect_err("beyond the limit");
    call(1).await.expect("the others are served");
}
