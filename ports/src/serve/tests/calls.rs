//! Calls at a port for gRPC.

use std::future::pending;

use axum::routing::post;
use tokio::sync::mpsc;

use super::{http2::*, *};

const PATH: &str = "/x.Y/Z";

/// Its address, where a connection has so many calls at once.
async fn grpc(streams: u32, router: Router, budget: Option<Arc<Budget>>) -> SocketAddr {
    let mut limits = PortLimits::for_tests(9, 9);
    limits.streams = streams;
    let protocol = Protocol::Grpc {
        head_bytes: 16 << 10,
    };
    let port = Port::new("x", protocol, limits, budget, None);
    serving(&port, router).await
}

/// A client that has sent this.
async fn sending(address: SocketAddr, frames: &[Vec<u8>]) -> TcpStream {
    let mut client = TcpStream::connect(address).await.expect("served");
    client.write_all(&frames.concat()).await.expect("sent");
    client
}

#[tokio::test]
async fn the_time_that_a_call_gives_itself_ends_it() {
    let router = Router::new().route(PATH, post(pending::<()>));
    let address = grpc(1, router, None).await;
    let head = head(1, PATH, Some(("grpc-timeout", "0n")));
    let mut client = sending(address, &[preface(), head]).await;
    // The head of an answer, which ends with it: nobody else gives one.
    comes(&mut client, &[1, 5, 0, 0, 0, 1]).await;
}

#[tokio::test]
async fn a_connection_has_so_many_calls_at_once_and_no_more() {
    let router = Router::new().route(PATH, post(pending::<()>));
    let address = grpc(1, router, None).await;
    let heads = [1, 3].map(|stream| head(stream, PATH, None));
    let mut client = sending(address, &[preface(), heads.concat()]).await;
    // The second is reset: REFUSED_STREAM.
    comes(&mut client, &[0, 0, 4, 3, 0, 0, 0, 0, 3, 0, 0, 0, 7]).await;
}

/// Strangers may have taken all that services without a key may hold.
#[tokio::test]
async fn one_call_for_health_at_a_time_draws_on_no_budget() {
    const CHECK: &str = "/grpc.health.v1.Health/Check";
    let (sender, mut draws) = mpsc::unbounded_channel();
    let check = post(async move |held: Option<Extension<RequestMemory>>| {
        sender.send(held.is_some()).expect("awaited");
        pending::<()>().await;
    });
    let router = Router::new().route(CHECK, check);
    let address = grpc(2, router, Some(Budget::new(1 << 20))).await;
    for _ in 0..2 {
        let heads = [1, 3].map(|stream| head(stream, CHECK, None));
        let _client = sending(address, &[preface(), heads.concat()]).await;
        for expected in [false, true] {
            assert_eq!(in_time(draws.recv()).await, Some(expected));
        }
    }
}

#[tokio::test]
async fn nothing_but_http2_is_answered() {
    let router = Router::new().route("/", get(async || "x"));
    let mut client = asking(grpc(1, router, None).await).await;
    let mut answer = Vec::new();
    // A reset is an end too.
    let _ = in_time(client.read_to_end(&mut answer)).await;
    assert!(answer.is_empty(), "{answer:?}");
}
