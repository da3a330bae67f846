//! Ends of connections that the server gives up.

use tokio::sync::Notify;

use super::*;

/// All that comes until the end.
async fn rest(client: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    in_time(client.read_to_end(&mut rest)).await.expect("read");
    String::from_utf8_lossy(&rest).into_owned()
}

#[tokio::test]
async fn a_close_waits_for_requests_alone() {
    let port = Port::for_tests(PortLimits::for_tests(9, 9), None, None);
    let [begun, release] = [(); 2].map(|()| Arc::new(Notify::new()));
    let (tell, wait) = (begun.clone(), release.clone());
    let late = get(async move || {
        tell.notify_one();
        wait.notified().await;
        "x"
    });
    let router = Router::new().route("/", late);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let close = CancellationToken::new();
    let served = tokio::spawn(port.clone().serve(listener, router, close.clone()));
    // One that says nothing, one that has its answer and may ask again, and one that waits.
    let mut silent = TcpStream::connect(address).await.expect("served");
    let mut idle = asking(address).await;
    in_time(begun.notified()).await;
    release.notify_one();
    read(&mut idle, 1).await;
    let mut working = asking(address).await;
    in_time(begun.notified()).await;
    assert_eq!(port.report().open, 3);
    close.cancel();
    for client in [&mut silent, &mut idle] {
        assert_eq!(rest(client).await, "");
    }
    release.notify_one();
    let answer = rest(&mut working).await;
    assert!(answer.ends_with('x'), "{answer}");
    in_time(served).await.expect("no panic");
}

#[tokio::test]
async fn an_idle_connection_over_http2_is_told_of_its_end() {
    let (port, address) = open(1, None).await;
    let mut client = TcpStream::connect(address).await.expect("served");
    client.write_all(&http2::preface()).await.expect("sent");
    // Its settings are acknowledged.
    comes(&mut client, &[4, 1, 0, 0, 0, 0]).await;
    let in_five_hours = Instant::now() + Duration::from_secs(5 * 3600);
    port.places.sweep(in_five_hours);
    // GOAWAY.
    comes(&mut client, &[0, 0, 8, 7, 0, 0, 0, 0, 0]).await;
    assert_eq!(closed(&port, Closed::Idle), 1);
}

#[tokio::test]
async fn who_finds_no_place_is_refused_and_sent_away() {
    let port = Port::for_tests(PortLimits::for_tests(1, 1), None, None);
    let begun = Arc::new(AtomicUsize::new(0));
    let count = begun.clone();
    let hang = get(async move || {
        count.fetch_add(1, Relaxed);
        std::future::pending::<()>().await;
    });
    let address = serving(&port, Router::new().route("/", hang)).await;
    let _working = asking(address).await;
    until(|| begun.load(Relaxed) == 1).await;
    let answer = rest(&mut asking(address).await).await;
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    assert!(answer.contains("--max-connections"), "{answer}");
    assert_eq!(begun.load(Relaxed), 1);
}
