use std::time::Duration;

use axum::routing::get;
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
    time::Instant,
};

use super::*;
use crate::port::PortLimits;

/// Small, so that an answer does not vanish in them.
const SOCKET_BUFFER: u32 = 4096;

/// A port on which `/` is so many bytes, and a client that has asked for them.
async fn ask(bytes: usize) -> (Arc<Port>, TcpStream) {
    let port = Port::for_tests(PortLimits::for_tests(4, 4));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let buffer = SockRef::from(&listener).set_send_buffer_size(SOCKET_BUFFER as usize);
    buffer.expect("a small buffer");
    let router = Router::new().route("/", get(async move || vec![b'x'; bytes]));
    let serve = port
        .clone()
        .serve(listener, router, CancellationToken::new());
    tokio::spawn(serve);
    let socket = TcpSocket::new_v4().expect("a descriptor");
    let buffer = socket.set_recv_buffer_size(SOCKET_BUFFER);
    buffer.expect("a small buffer");
    let mut client = socket.connect(address).await.expect("served");
    let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    client.write_all(request).await.expect("sent");
    (port, client)
}

/// Reads until so many bytes of the answer's body have come.
async fn read(client: &mut TcpStream, bytes: usize) {
    let mut buffer = [0; 1024];
    let mut come = 0;
    while come < bytes {
        let read = client.read(&mut buffer).await.expect("readable");
        assert!(read > 0, "{come} of {bytes} bytes came");
        come += buffer[..read].iter().filter(|byte| **byte == b'x').count();
    }
}

#[tokio::test]
async fn an_answer_keeps_its_place_until_it_is_sent() {
    let in_five_hours = || Instant::now() + Duration::from_secs(5 * 3600);
    for bytes in [100_000, 4_000_000] {
        let (port, mut client) = ask(bytes).await;
        // The answer has begun: hyper has taken what it would.
        read(&mut client, 1).await;
        assert!(!port.places.evict(), "{bytes} bytes: it works");
        port.places.sweep(in_five_hours());
        read(&mut client, bytes - 10_000).await;
    }
}

#[tokio::test]
async fn an_answer_that_nobody_takes_ends_its_connection() {
    for bytes in [100_000, 4_000_000] {
        let (port, mut client) = ask(bytes).await;
        client.readable().await.expect("answered");
        port.places
            .sweep(Instant::now() + Duration::from_secs(8 * 3600 + 1));
        let mut answer = Vec::new();
        // A reset is an end too.
        let _ = client.read_to_end(&mut answer).await;
        assert!(answer.len() < bytes, "all {bytes} bytes came");
        let closed = port.report().closed;
        assert!(closed.contains(&(Closed::Stalled, 1)), "{closed:?}");
    }
}
