mod calls;
mod ends;
mod http2;

use std::{
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Extension, body::Body, routing::get};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
    time::Instant,
};

use super::*;
use crate::{
    body::RequestMemory,
    budget::Budget,
    limits::{BodyLimits, PortLimits},
};

/// Socket buffer size in bytes; small, so that an answer does not fit into the buffers.
const SOCKET_BUFFER: u32 = 4096;

/// Serves `/`, an answer of `bytes` bytes; returns the port and a client that has asked
/// for it.
async fn ask(bytes: usize) -> (Arc<Port>, TcpStream) {
    let (port, address) = open(bytes, None).await;
    (port, asking(address).await)
}

/// Serves `/`, an answer of `bytes` bytes; returns the port and its address.
async fn open(bytes: usize, budget: Option<Arc<Budget>>) -> (Arc<Port>, SocketAddr) {
    let answer = get(async move || vec![b'x'; bytes]).post(taken);
    listening(Router::new().route("/", answer), budget).await
}

/// Serves these routes; returns the port and its address.
async fn listening(router: Router, budget: Option<Arc<Budget>>) -> (Arc<Port>, SocketAddr) {
    let port = Port::for_tests(PortLimits::for_tests(9, 9), budget, None);
    let address = serving(&port, router).await;
    (port, address)
}

/// Serves these routes on a port; returns the address.
async fn serving(port: &Arc<Port>, router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let buffer = SockRef::from(&listener).set_send_buffer_size(SOCKET_BUFFER as usize);
    buffer.expect("a small buffer");
    let serve = port
        .clone()
        .serve(listener, router, CancellationToken::new());
    tokio::spawn(serve);
    address
}

/// Answers whether the body was taken, or why not.
async fn taken(body: Body) -> String {
    match axum::body::to_bytes(body, usize::MAX).await {
        Ok(_) => "taken".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Returns a client that has asked for `/`.
async fn asking(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a descriptor");
    let buffer = socket.set_recv_buffer_size(SOCKET_BUFFER);
    buffer.expect("a small buffer");
    let mut client = socket.connect(address).await.expect("served");
    let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    client.write_all(request).await.expect("sent");
    client
}

/// Polls until `is_so` returns true.
async fn until(is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    in_time(wait).await;
}

/// Waits for something that comes soon or never.
async fn in_time<T>(what: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, what).await.expect("in time")
}

fn over_budget(port: &Port) -> u64 {
    closed(port, Closed::OverBudget)
}

fn slow_bodies(port: &Port) -> u64 {
    closed(port, Closed::SlowBody)
}

fn closed(port: &Port, why: Closed) -> u64 {
    let closed = port.report().closed.into_iter();
    closed
        .filter(|(reason, _)| *reason == why)
        .map(|(_, count)| count)
        .sum()
}

/// Reads until `bytes` bytes of the answer's body have come.
async fn read(client: &mut TcpStream, bytes: usize) {
    let mut buffer = [0; 1024];
    let mut come = 0;
    while come < bytes {
        let read = in_time(client.read(&mut buffer)).await.expect("readable");
        assert!(read > 0, "{come} of {bytes} bytes came");
        come += buffer[..read].iter().filter(|byte| **byte == b'x').count();
    }
}

/// Reads until these bytes have come.
async fn comes(client: &mut TcpStream, wanted: &[u8]) {
    let mut answer = Vec::new();
    while !answer.windows(wanted.len()).any(|part| part == wanted) {
        let mut some = [0; 1000];
        let came = in_time(client.read(&mut some)).await.expect("readable");
        let text = String::from_utf8_lossy(&answer);
        assert!(came > 0, "no {wanted:?} in {answer:?}: {text}");
        answer.extend_from_slice(&some[..came]);
    }
}

#[tokio::test]
async fn an_answer_keeps_its_place_until_it_is_sent() {
    let in_five_hours = || Instant::now() + Duration::from_secs(5 * 3600);
    for bytes in [100_000, 4_000_000] {
        let (port, mut client) = ask(bytes).await;
        // The answer has begun: hyper has taken all that it takes at first.
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
        // A reset counts as an end too.
        let _ = client.read_to_end(&mut answer).await;
        assert!(answer.len() < bytes, "all {bytes} bytes came");
        let closed = port.report().closed;
        assert!(closed.contains(&(Closed::Stalled, 1)), "{closed:?}");
    }
}

#[tokio::test]
async fn answers_that_wait_are_charged() {
    // An address has half of this, and large requests three quarters of that half.
    let budget = Budget::new(1 << 20);
    let (port, address) = open(300_000, Some(budget.clone())).await;
    let first = asking(address).await;
    first.readable().await.expect("answered");
    assert_eq!(budget.taken(), 300_000);
    let mut second = asking(address).await;
    let mut answer = vec![0; 1000];
    let came = in_time(second.read(&mut answer)).await.expect("answered");
    let answer = String::from_utf8_lossy(&answer[..came]);
    assert!(answer.contains("requests of this address"), "{answer}");
    assert_eq!(over_budget(&port), 1);
    drop(first);
    until(|| budget.taken() == 0).await;
    read(&mut asking(address).await, 300_000).await;
    until(|| budget.taken() == 0).await;
}

/// Reserves less than its answer needs, before the answer is made.
async fn reserving(Extension(held): Extension<RequestMemory>) -> Vec<u8> {
    let sizes = [100_000, 200_000];
    let mut reserves = match held.reserve(&sizes) {
        Ok(reserves) => reserves,
        Err(over) => return over.to_string().into_bytes(),
    };
    for (reserve, bytes) in reserves.iter_mut().zip(sizes) {
        reserve.came(bytes).expect("it is reserved");
    }
    vec![b'x'; 350_000]
}

#[tokio::test]
async fn what_was_reserved_is_the_answers_room() {
    // An address has half of this, and large requests three quarters of that half.
    let budget = Budget::new(1 << 20);
    let router = Router::new().route("/", get(reserving));
    let (port, address) = listening(router, Some(budget.clone())).await;
    let first = asking(address).await;
    first.readable().await.expect("answered");
    assert_eq!(
        budget.taken(),
        350_000,
        "and not what was reserved beside it"
    );
    let mut second = asking(address).await;
    let mut answer = vec![0; 1000];
    let came = in_time(second.read(&mut answer)).await.expect("answered");
    let answer = String::from_utf8_lossy(&answer[..came]);
    assert!(answer.contains("requests of this address"), "{answer}");
    assert_eq!(over_budget(&port), 0, "it was refused before its work");
    drop(first);
    until(|| budget.taken() == 0).await;
}

#[tokio::test]
async fn an_answer_that_outgrows_its_reserve_takes_no_room_of_small_requests() {
    let budget = Budget::new(1 << 20);
    let router = Router::new().route("/", get(reserving));
    let (port, address) = listening(router, Some(budget.clone())).await;
    let mut others = budget.charge();
    // The reservation fits into the three quarters that are for large requests.
    others.add(460_000).expect("there is room");
    let mut client = asking(address).await;
    let mut answer = vec![0; 1000];
    let came = in_time(client.read(&mut answer)).await.expect("answered");
    let answer = String::from_utf8_lossy(&answer[..came]);
    assert!(answer.contains("--max-request-memory allows"), "{answer}");
    assert_eq!(over_budget(&port), 1);
    until(|| budget.taken() == 460_000).await;
    // An answer that could reserve nothing beforehand may use the last quarter.
    others.add(140_000).expect("there is room");
    let (port, address) = open(300_000, Some(budget.clone())).await;
    let client = asking(address).await;
    client.readable().await.expect("answered");
    assert_eq!((over_budget(&port), budget.taken()), (0, 900_000));
}

#[tokio::test]
async fn a_small_answer_is_sent_where_the_budget_is_full() {
    const FULL: usize = 1 << 20;
    let budget = Budget::new(FULL);
    let (own, others) = (budget.clone(), Arc::new(Mutex::new(Vec::new())));
    let taken = others.clone();
    let fill = async move |Extension(held): Extension<RequestMemory>| {
        let mut reserves = held.reserve(&[100]).expect("there is room");
        reserves[0].came(100).expect("it is reserved");
        let mut others = taken.lock().expect("no panic");
        while own.taken() < FULL {
            let mut other = own.charge();
            let bytes = (FULL - own.taken()).min(64 << 10);
            other.add(bytes).expect("there is room");
            others.push(other);
        }
        vec![b'x'; 4 << 10]
    };
    let router = Router::new().route("/", get(fill));
    let (port, address) = listening(router, Some(budget.clone())).await;
    let mut client = asking(address).await;
    client.readable().await.expect("answered");
    // The answer gives back its reservation before it is taken.
    until(|| budget.taken() == FULL - 100).await;
    read(&mut client, 4 << 10).await;
    assert_eq!(over_budget(&port), 0);
}

#[tokio::test]
async fn heads_of_a_kept_connection_count_one_by_one() {
    let budget = Budget::new(1 << 20);
    let most = Arc::new(AtomicUsize::new(0));
    let (own, seen) = (budget.clone(), most.clone());
    let answer = get(async move || {
        seen.fetch_max(own.taken(), Relaxed);
        "x"
    });
    let router = Router::new().route("/", answer);
    let (_port, address) = listening(router, Some(budget)).await;
    let mut client = TcpStream::connect(address).await.expect("served");
    // Two such heads together exceed the bytes that are not charged for one.
    let long = "a".repeat(3000);
    for _ in 0..20 {
        let request = format!("GET / HTTP/1.1\r\nhost: y\r\nlong: {long}\r\n\r\n");
        client.write_all(request.as_bytes()).await.expect("sent");
        read(&mut client, 1).await;
    }
    assert_eq!(most.load(Relaxed), 0, "bytes were charged");
}

/// Returns a body of each kind that has sent something and then nothing more. The
/// number is the bytes that it then holds of a part of 128 KiB.
fn begun_bodies() -> [(Protocol, Vec<u8>, usize); 4] {
    const WINDOW: usize = (128 << 10) / 16;
    let http = || {
        Port::for_tests(PortLimits::for_tests(1, 1), None, None)
            .protocol
            .clone()
    };
    let body = vec![b'y'; 60_000];
    let over_http1 = |head: &str| {
        let head = format!("POST /x.Y/Z HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n");
        [head.as_bytes(), &body].concat()
    };
    // A message of 60,000 bytes, of which 1,000 came.
    let message = [&[0, 0, 0, 0xea, 0x60], &body[..1000]].concat();
    [
        (http(), over_http1("content-length: 90000"), 60_000),
        // A chunk of 90,000 bytes. It begins with a line end, which is two bytes.
        (
            http(),
            over_http1("transfer-encoding: chunked\r\n\r\n15f90"),
            60_002,
        ),
        (http(), http2::begun("/x.Y/Z", &body), 60_000 + WINDOW),
        (
            Protocol::Grpc {
                head_bytes: 16 << 10,
            },
            http2::begun("/x.Y/Z", &message),
            60_000 + WINDOW,
        ),
    ]
}

#[tokio::test]
async fn a_silent_body_of_any_kind_gives_way_to_who_finds_no_room() {
    for (at, (protocol, begun, holds)) in begun_bodies().into_iter().enumerate() {
        // An address has half of this, and its large requests three quarters of that
        // half.
        let budget = Budget::new(256 << 10);
        let mut limits = PortLimits::for_tests(9, 9);
        limits.body = Some(BodyLimits {
            whole: Duration::from_secs(3600),
            rate: 0,
            silence: Duration::ZERO,
        });
        let port = Port::new("x", protocol, limits, Some(budget.clone()), None);
        let router = Router::new().route("/x.Y/Z", axum::routing::post(taken));
        let address = serving(&port, router).await;
        let mut silent = TcpStream::connect(address).await.expect("served");
        silent.write_all(&begun).await.expect("sent");
        until(|| budget.taken() == holds).await;
        // Other requests find memory, so the body goes on waiting.
        let own = budget.of_peer(crate::peer::of(address.ip()));
        own.charge().add(10_000).expect("there is room");
        assert_eq!(slow_bodies(&port), 0, "{at}");
        assert!(own.charge().add(90_000).is_err());
        comes(&mut silent, b"brought nothing while others waited").await;
        assert_eq!(slow_bodies(&port), 1, "{at}");
        until(|| budget.taken() == 0).await;
    }
}

#[tokio::test]
async fn heads_that_do_not_end_are_charged() {
    let budget = Budget::new(24 << 10);
    let (port, address) = open(10, Some(budget.clone())).await;
    let connect = async || TcpStream::connect(address).await.expect("served");
    // A client that asks again and again holds nothing in between.
    let mut steady = connect().await;
    for _ in 0..20 {
        let request = format!(
            "GET / HTTP/1.1\r\nhost: x\r\nlong: {}\r\n\r\n",
            "a".repeat(7000)
        );
        steady.write_all(request.as_bytes()).await.expect("sent");
        read(&mut steady, 10).await;
        until(|| budget.taken() == 0).await;
    }
    let begun = [&b"GET / HTTP/1.1\r\nx: "[..], &[b'a'; 7 << 10]].concat();
    let mut held = Vec::new();
    for _ in 0..6 {
        let mut client = connect().await;
        client.write_all(&begun).await.expect("sent");
        held.push(client);
    }
    until(|| over_budget(&port) >= 2).await;
    assert!(budget.taken() <= 12 << 10, "{}", budget.taken());
    drop(held);
    until(|| budget.taken() == 0).await;
}

#[tokio::test]
async fn heads_are_charged_while_an_answer_is_unread() {
    let budget = Budget::new(1 << 20);
    let (_port, address) = open(60_000, Some(budget.clone())).await;
    let mut client = asking(address).await;
    client.readable().await.expect("answered");
    until(|| budget.taken() == 0).await;
    let begun = [&b"GET / HTTP/1.1\r\nx: "[..], &[b'a'; 7 << 10]].concat();
    client.write_all(&begun).await.expect("sent");
    until(|| budget.taken() > 2 << 10).await;
    read(&mut client, 60_000).await;
    client.write_all(b"\r\n\r\n").await.expect("sent");
    // The answer to the second request.
    read(&mut client, 60_000).await;
    until(|| budget.taken() == 0).await;
}

#[tokio::test]
async fn a_body_that_came_with_its_head_is_refused_by_an_answer() {
    let budget = Budget::new(1 << 20);
    let (port, address) = open(10, Some(budget.clone())).await;
    let full: Vec<_> = (0..16)
        .map(|_| {
            let mut charge = budget.charge();
            charge.add(64 << 10).map(|()| charge)
        })
        .collect();
    assert!(full.iter().all(Result::is_ok));
    let mut client = TcpStream::connect(address).await.expect("served");
    let head = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 6000\r\n\r\n";
    let request = [head.as_bytes(), &[b'a'; 6000]].concat();
    client.write_all(&request).await.expect("sent");
    let mut answer = vec![0; 1000];
    let came = in_time(client.read(&mut answer)).await.expect("answered");
    let answer = String::from_utf8_lossy(&answer[..came]);
    assert!(answer.contains("no memory for the request"), "{answer}");
    assert_eq!(over_budget(&port), 1);
}

#[test]
fn a_connection_has_one_window() {
    let budget = Budget::new(16 << 20);
    let window = ReceiveWindow::default();
    let bodies = [(); 3].map(|()| window.take(&budget));
    assert!(bodies.iter().all(Result::is_ok));
    assert_eq!(budget.taken(), ReceiveWindow::BYTES as usize);
    drop(bodies);
    assert_eq!(budget.taken(), 0);
    let small = Budget::new(1600);
    let others: Vec<_> = (0..16)
        .map(|_| ReceiveWindow::default().take(&small))
        .collect();
    assert_eq!((others.len(), small.taken()), (16, 1600));
    assert!(window.take(&small).is_err());
}
