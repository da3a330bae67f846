//! Health as load balancers ask for it over gRPC, and places for connections.

use std::{net::SocketAddr, sync::atomic::Ordering, time::Duration};

use lockstep_proto::pb::lockstep::{GetModelInfoRequest, inference_client::InferenceClient};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::{Code, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::{
    grpc::{channel, client},
    harness::{HASH, engine_config, launch, node_config, start_with},
    mock::Mock,
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
    let front = start_with(|engine, _| engine.timeouts.health_s = 1).await;
    let mut health = HealthClient::new(channel(&front).await);
    let request = HealthCheckRequest {
        service: String::new(),
    };
    let mut watch = health.watch(request).await.expect("served").into_inner();
    let follow = async {
        for serving in [true, false, true] {
            front.mock.healthy.store(serving, Ordering::Relaxed);
            while (watch.message().await.expect("open").expect("open").status == 1) != serving {}
        }
    };
    tokio::time::timeout(Duration::from_secs(30), follow)
        .await
        .expect("each change is reported");
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
async fn grpc_connections_take_the_places_of_http() {
    let front = start_with(|engine, _| engine.server.limits.connections = 1).await;
    let mut client = client(&front).await;
    client
        .get_model_info(GetModelInfoRequest {})
        .await
        .expect("the only place");
    // Refused before it asks.
    let mut refused = TcpStream::connect(front.address).await.expect("connected");
    let mut answer = String::new();
    refused.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.contains(" 503 "), "{answer}");
    let endpoint = Channel::from_shared(front.grpc.clone()).expect("an address");
    let beyond = async {
        let mut client = InferenceClient::new(endpoint.connect().await?);
        client.get_model_info(GetModelInfoRequest {}).await?;
        anyhow::Ok(())
    };
    beyond.await.expect_err("beyond the limit");
    drop(client);
    // The place is free once the server has seen the connection's end.
    while !has_place(front.address).await.unwrap_or(false) {}
}

/// Whether a connection is served; a refused one may be closed before it asks.
async fn has_place(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        .await?;
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).await?;
    Ok(&begin == b"HTTP/1.1 200")
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
