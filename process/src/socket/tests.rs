use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tokio_stream::StreamExt;

use super::{ConnectError, connect_tcp, connect_unix, listen_unix};

/// Long enough for any machine; reached only when a test fails.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn only_this_user_can_open_a_socket() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("s");
    let _listener = listen_unix(&path).expect("listens");
    let mode = std::fs::metadata(&path)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_left_over_socket_is_replaced_and_a_file_is_not() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("s");
    drop(listen_unix(&path).expect("listens"));
    assert!(path.exists());
    drop(listen_unix(&path).expect("listens again"));
    let file = dir.path().join("f");
    std::fs::write(&file, "precious").expect("written");
    assert!(listen_unix(&file).is_err());
    assert_eq!(std::fs::read_to_string(&file).expect("read"), "precious");
}

#[tokio::test]
async fn a_channel_waits_for_its_listener() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("s");
    let connecting = tokio::spawn({
        let path = path.clone();
        async move { connect_unix(&path, SOON).await.map(|_| ()) }
    });
    // Lets the first attempt run, which finds nobody.
    tokio::task::yield_now().await;
    let mut listener = listen_unix(&path).expect("listens");
    let accepted = listener.next().await.expect("somebody").expect("accepted");
    connecting.await.expect("no panic").expect("connected");
    drop(accepted);
}

#[tokio::test]
async fn nobody_is_an_error_that_names_the_address() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("s");
    let error = connect_unix(&path, Duration::from_millis(30))
        .await
        .expect_err("nobody");
    assert!(matches!(error, ConnectError::TimedOut { .. }));
    assert!(error.to_string().contains("No such file"), "{error}");
    for address in ["", "host", "host:", "host:port", "host:70000", "a b:1"] {
        let error = connect_tcp(address, SOON, None).await.expect_err(address);
        assert!(
            matches!(error, ConnectError::Address { .. }),
            "{address}: {error}"
        );
    }
}

#[tokio::test]
async fn tcp_reaches_a_listener() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("listens");
    let address = listener.local_addr().expect("an address").to_string();
    let (connected, accepted) = tokio::join!(connect_tcp(&address, SOON, None), listener.accept());
    connected.expect("connected");
    accepted.expect("accepted");
}
