//! Connections: accepted from a port that several tokenizer-managers share,
//! limited in number, ended gracefully.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use lockstep_proto::request::{ErrorKind, RequestError};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::error::ApiError;

/// Connections the kernel holds before they are accepted.
const BACKLOG: i32 = 4096;
/// How long a client may take to send its headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Room that hyper gets beyond the header limit, so that our own check, which
/// answers with an error object, comes first.
const HEADER_SLACK: usize = 64 * 1024;
/// Pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Idle connections are probed after this long, and then this often.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// A client that takes nothing for so long is cut off: it holds a connection
/// and the answer's memory.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a connection beyond the limit gets to read its refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Listens on `host:port`. With `shared`, other processes may listen there too,
/// and the kernel spreads connections over them; without, a port that another
/// server has is an error.
///
/// # Errors
/// Those of resolving and binding.
pub fn listen(host: &str, port: u16, shared: bool) -> io::Result<TcpListener> {
    let address = resolve(host, port)?;
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    (host, port)
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address")))
}

/// Serves a router on a listener.
#[derive(Debug)]
pub struct Connections {
    /// Connections at once.
    pub limit: usize,
    /// Bytes of headers that a route may see.
    pub header_bytes: usize,
    /// Ends the accepting, and each connection after the answer it is giving.
    pub close: CancellationToken,
}

impl Connections {
    /// Accepts until `close`, then returns once every connection has ended.
    pub async fn serve(self, listener: TcpListener, router: Router) {
        let permits = Arc::new(Semaphore::new(self.limit));
        let tasks = TaskTracker::new();
        let builder = Arc::new(self.builder());
        loop {
            let accepted = tokio::select! {
                () = self.close.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if let Err(error) = tune(&stream) {
                tracing::debug!(%error, "a connection could not be tuned");
            }
            let Ok(permit) = permits.clone().try_acquire_owned() else {
                tasks.spawn(refuse(stream, self.limit));
                continue;
            };
            let (builder, router, close) = (builder.clone(), router.clone(), self.close.clone());
            tasks.spawn(async move {
                serve_one(&builder, stream, router, close).await;
                drop(permit);
            });
        }
        drop(listener);
        tasks.close();
        tasks.wait().await;
    }

    fn builder(&self) -> Builder<TokioExecutor> {
        let mut builder = Builder::new(TokioExecutor::new());
        let header_room = self.header_bytes.saturating_add(HEADER_SLACK);
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(header_room.max(8192));
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(20))
            .max_concurrent_streams(lockstep_proto::limits::PUBLIC_CONCURRENT_STREAMS)
            .max_header_list_size(u32::try_from(header_room).unwrap_or(u32::MAX));
        builder
    }
}

/// Events leave at once, and peers that vanished or stopped reading are noticed.
fn tune(stream: &TcpStream) -> io::Result<()> {
    // Without it each small event would wait for the acknowledgement of the last.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new()
        .with_time(PROBE_AFTER)
        .with_interval(PROBE_EVERY);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(STALL_TIMEOUT))
}

async fn serve_one(
    builder: &Builder<TokioExecutor>,
    stream: TcpStream,
    router: Router,
    close: CancellationToken,
) {
    let connection =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = close.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(error, "a connection ended early");
    }
}

/// Tells a connection beyond the limit so, instead of leaving it waiting.
async fn refuse(mut stream: TcpStream, limit: usize) {
    let error = ApiError::from(RequestError::new(
        ErrorKind::Unavailable,
        format!("The server serves {limit} connections already; try again later."),
    ));
    let body = error.json();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: \
         1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let write = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    };
    // Whether a client beyond the limit reads its refusal is its own affair.
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, write).await;
}
