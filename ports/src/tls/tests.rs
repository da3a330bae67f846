mod files;
mod nodes;

use std::{fs, net::SocketAddr};

use axum::{Router, routing::get};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::{ClientConfig, pki_types::ServerName};
use socket2::SockRef;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket},
};
use tokio_rustls::{TlsConnector, client};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{limits::PortLimits, port::Port};

/// An authority that signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("signed"))
    }

    /// Returns a certificate of `localhost`, and its key, in PEM.
    fn sign(&self) -> [String; 2] {
        self.sign_with(|_| {})
    }

    /// One in which something is changed.
    fn sign_with(&self, change: impl FnOnce(&mut CertificateParams)) -> [String; 2] {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        change(&mut params);
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        [certificate.pem(), key.serialize_pem()]
    }
}

/// Writes the files of a server whose certificate `authority` has signed.
fn files(folder: &TempDir, authority: &Authority) -> TlsFiles {
    let at = |name| folder.path().join(name);
    let files = TlsFiles {
        certificate: at("server.pem"),
        key: at("server.key"),
        client_roots: None,
    };
    write(&files, &authority.sign());
    files
}

fn write(files: &TlsFiles, [certificate, key]: &[String; 2]) {
    fs::write(&files.certificate, certificate).expect("written");
    fs::write(&files.key, key).expect("written");
}

/// Serves `/`, which answers `hello`.
async fn serve(tls: &Arc<Tls>) -> (Arc<Port>, SocketAddr) {
    let limits = PortLimits::for_tests(9, 9);
    let port = Port::for_tests(limits, None, Some(tls.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let router = Router::new().route("/", get(async || "hello"));
    let close = CancellationToken::new();
    tokio::spawn(port.clone().serve(listener, router, close));
    (port, address)
}

/// Data that is not sent yet keeps a place, even if TLS has taken it.
#[tokio::test]
async fn an_answer_keeps_its_place_until_tls_has_sent_it() {
    const SOCKET_BUFFER: usize = 4096;
    // More than the sockets hold, and less than the sockets and TLS hold together.
    const UNREAD: usize = 20_000;
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let tls = Tls::load(&files(&folder, &authority)).expect("read");
    for bytes in [60_000, 400_000] {
        let port = Port::for_tests(PortLimits::for_tests(9, 9), None, Some(tls.clone()));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let small = SockRef::from(&listener).set_send_buffer_size(SOCKET_BUFFER);
        small.expect("a small buffer");
        let router = Router::new().route("/", get(async move || vec![b'x'; bytes]));
        tokio::spawn(
            port.clone()
                .serve(listener, router, CancellationToken::new()),
        );
        let socket = TcpSocket::new_v4().expect("a descriptor");
        let small = socket.set_recv_buffer_size(SOCKET_BUFFER as u32);
        small.expect("a small buffer");
        let stream = socket.connect(address).await.expect("served");
        let mut stream = agree(stream, client(&authority, None))
            .await
            .expect("agreed");
        let request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.write_all(request).await.expect("sent");
        let mut some = [0; 1000];
        for _ in 0..(bytes - UNREAD) / some.len() {
            stream.read_exact(&mut some).await.expect("answered");
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert!(!port.places.evict(), "{bytes} bytes: it works");
        }
        let mut rest = vec![0; UNREAD];
        stream.read_exact(&mut rest).await.expect("all of it");
    }
}

/// Returns the configuration of a client: the authority that it trusts, and the
/// certificate that it shows.
fn client(trusts: &Authority, shows: Option<[String; 2]>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(trusts.0.der().clone()).expect("a root");
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let Some([certificate, key]) = shows else {
        return builder.with_no_client_auth();
    };
    let chain = certificates(Path::new("client"), certificate.as_bytes()).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
    builder.with_client_auth_cert(chain, key).expect("a pair")
}

async fn connect(
    address: SocketAddr,
    config: ClientConfig,
) -> io::Result<client::TlsStream<TcpStream>> {
    agree(TcpStream::connect(address).await?, config).await
}

async fn agree(
    stream: TcpStream,
    config: ClientConfig,
) -> io::Result<client::TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

/// Returns both ends of a connection. No port is used here, since a port would check
/// the files by itself at any time.
async fn greeted(
    tls: &Tls,
    authority: &Authority,
) -> (client::TlsStream<TcpStream>, Box<TlsStream<TcpStream>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let server = async {
        let (stream, _) = listener.accept().await?;
        tls.greet(stream).await
    };
    let ends = tokio::try_join!(connect(address, client(authority, None)), server);
    ends.expect("agreed")
}

/// Returns the answer of `/` over HTTP/1.1.
async fn ask(stream: &mut client::TlsStream<TcpStream>) -> io::Result<String> {
    let request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(request).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"hello") {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Returns the certificate that a connection was shown.
fn shown(stream: &client::TlsStream<TcpStream>) -> Vec<u8> {
    let (_, session) = stream.get_ref();
    session.peer_certificates().expect("shown")[0].to_vec()
}

#[tokio::test]
async fn both_versions_of_http_are_offered() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let tls = Tls::load(&files(&folder, &authority)).expect("read");
    let (_port, address) = serve(&tls).await;
    let mut plain = connect(address, client(&authority, None)).await;
    let plain = plain.as_mut().expect("agreed");
    assert!(
        ask(plain)
            .await
            .expect("answered")
            .starts_with("HTTP/1.1 200")
    );
    for protocol in [HTTP2, HTTP1] {
        let mut config = client(&authority, None);
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = connect(address, config).await.expect("agreed");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol));
    }
    let stranger = connect(address, client(&Authority::new(), None)).await;
    stranger.expect_err("another authority");
}

/// A client that does not speak TLS is told so, and soon loses its place.
#[tokio::test]
async fn plain_http_is_told_to_use_tls() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let tls = Tls::load(&files(&folder, &authority)).expect("read");
    let (port, address) = serve(&tls).await;
    for request in ["GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stream = TcpStream::connect(address).await.expect("a place");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 400 "), "{answer}");
        let length = format!("content-length: {}\r\n", body.len());
        assert!(head.contains(&length), "{answer}");
        assert!(body.contains("https://"), "{answer}");
    }
    while port.report().open > 0 {
        tokio::task::yield_now().await;
    }
}

/// Bytes that are neither get an alert at most.
#[tokio::test]
async fn what_is_neither_tls_nor_http_gets_no_answer() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let tls = Tls::load(&files(&folder, &authority)).expect("read");
    let (port, address) = serve(&tls).await;
    let mut stream = TcpStream::connect(address).await.expect("a place");
    stream.write_all(&[0; 64]).await.expect("sent");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    while port.report().open > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn whoever_never_agrees_on_keys_is_sent_away() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let tls = Tls::load(&files(&folder, &authority)).expect("read");
    let (port, address) = serve(&tls).await;
    let mut stream = TcpStream::connect(address).await.expect("a place");
    while port.report().open == 0 {
        tokio::task::yield_now().await;
    }
    // Longer than the time limit for first bytes.
    let later = tokio::time::Instant::now() + Duration::from_secs(3700);
    port.places.sweep(later);
    let mut answer = Vec::new();
    let end = stream.read_to_end(&mut answer).await;
    assert!(end.is_err() || answer.is_empty());
    let closed = port.report().closed;
    let silent = closed.iter().find(|(reason, _)| reason.name() == "silent");
    assert_eq!(silent.map(|(_, count)| *count), Some(1), "{closed:?}");
}

#[tokio::test]
async fn files_are_exchanged_while_connections_stay() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let files = files(&folder, &authority);
    let tls = Tls::load(&files).expect("read");
    let mut first = greeted(&tls, &authority).await;
    assert!(!tls.look().expect("as before"));
    // The certificate without its key, as between two writes.
    let [certificate, key] = authority.sign();
    fs::write(&files.certificate, &certificate).expect("written");
    let error = tls.look().expect_err("no pair").to_string();
    assert!(
        error.contains("server.pem") && error.contains("server.key"),
        "{error}"
    );
    assert!(!tls.look().expect("said once"));
    let old = greeted(&tls, &authority).await;
    assert_eq!(shown(&old.0), shown(&first.0), "the old one");
    fs::write(&files.key, &key).expect("written");
    assert!(tls.look().expect("a pair"));
    let mut second = greeted(&tls, &authority).await;
    assert_ne!(shown(&second.0), shown(&first.0));
    for (client, server) in [&mut first, &mut second] {
        server.write_all(b"hello").await.expect("sent");
        server.flush().await.expect("sent");
        let mut answer = [0; 5];
        client.read_exact(&mut answer).await.expect("answered");
        assert_eq!(&answer, b"hello");
    }
    fs::remove_file(&files.certificate).expect("removed");
    tls.look().expect_err("none there");
    let last = greeted(&tls, &authority).await;
    assert_eq!(shown(&last.0), shown(&second.0));
}

#[tokio::test]
async fn clients_show_certificates_where_roots_are_named() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let mut files = files(&folder, &authority);
    let roots = folder.path().join("clients.pem");
    let clients = Authority::new();
    fs::write(&roots, clients.0.pem()).expect("written");
    files.client_roots = Some(roots);
    let tls = Tls::load(&files).expect("read");
    let (_port, address) = serve(&tls).await;
    for (shows, expected) in [
        (Some(clients.sign()), true),
        (None, false),
        (Some(authority.sign()), false),
    ] {
        // A client learns that its certificate is refused only when it reads.
        let answered = async {
            let mut stream = connect(address, client(&authority, shows)).await?;
            ask(&mut stream).await
        };
        assert_eq!(answered.await.is_ok(), expected);
    }
}

#[tokio::test]
async fn roots_of_clients_are_exchanged_too() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let mut files = files(&folder, &authority);
    let roots = folder.path().join("clients.pem");
    let [old, new] = [(); 2].map(|()| Authority::new());
    fs::write(&roots, old.0.pem()).expect("written");
    files.client_roots = Some(roots.clone());
    let tls = Tls::load(&files).expect("read");
    fs::write(&roots, new.0.pem()).expect("written");
    assert!(tls.look().expect("roots"));
    let (_port, address) = serve(&tls).await;
    for (signs, expected) in [(&old, false), (&new, true)] {
        let answered = async {
            let mut stream = connect(address, client(&authority, Some(signs.sign()))).await?;
            ask(&mut stream).await
        };
        assert_eq!(answered.await.is_ok(), expected);
    }
}

#[test]
fn every_certificate_is_told_of_by_its_own_time() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let files = files(&folder, &authority);
    let tls = Tls::load(&files).expect("read");
    let now = UnixTime::now();
    assert_eq!(tls.aged(now), None);
    let expired = || authority.sign_with(|params| params.not_after = date_time_ymd(2001, 1, 1));
    // The second takes the place of one of the same kind.
    for _ in 0..2 {
        write(&files, &expired());
        assert!(tls.look().expect("a pair"));
        assert!(matches!(tls.aged(now), Some(ValidityWarning::Ended(_))));
        assert_eq!(tls.aged(now), None, "it was said");
    }
    write(&files, &authority.sign());
    assert!(tls.look().expect("a pair"));
    assert_eq!((tls.aged(now), tls.warning()), (None, None));
}
