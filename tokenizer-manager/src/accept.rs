//! Public ports: listened on by several tokenizer-managers together, their
//! connections limited in number and tuned in one way for every protocol.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{Stream, stream};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::stall::STALL_TIMEOUT;

/// Connections the kernel holds before they are accepted.
const BACKLOG: i32 = 4096;
/// Pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Idle connections are probed after this long, and then this often.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);

/// Listens on `host:port`. With `shared`, other processes may listen there too,
/// and the kernel spreads connections over them; without, a port that another
/// server has is an error.
///
/// # Errors
/// The address does not resolve, or cannot be bound.
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

/// Limits the connections that one process serves at once, HTTP and gRPC together.
#[derive(Debug, Clone)]
pub struct ConnectionPermits {
    permits: Arc<Semaphore>,
    /// Permits in all.
    pub limit: usize,
}

impl ConnectionPermits {
    /// Permits for `limit` connections.
    pub fn new(limit: usize) -> Self {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Self {
            permits: Arc::new(Semaphore::new(limit)),
            limit,
        }
    }

    /// One permit, held until it is dropped; `None` when all are taken.
    pub fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_owned().ok()
    }
}

/// The next connection, tuned.
pub async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Err(error) = tune(&stream) {
                    tracing::debug!(%error, "a connection could not be tuned");
                }
                return stream;
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Sends small events at once, and notices peers that vanished or stopped reading.
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

/// The connections of a listener that get a permit. Those beyond the limit are
/// closed: gRPC sends no status before a connection is established, and its
/// clients report UNAVAILABLE.
pub fn incoming(
    listener: TcpListener,
    permits: ConnectionPermits,
) -> impl Stream<Item = io::Result<Connection>> {
    stream::unfold((listener, permits), |(listener, permits)| async move {
        loop {
            let stream = accept(&listener).await;
            let Some(permit) = permits.try_acquire() else {
                tracing::debug!(limit = permits.limit, "a connection beyond the limit");
                continue;
            };
            let connection = Connection {
                stream,
                _permit: permit,
            };
            return Some((Ok(connection), (listener, permits)));
        }
    })
}

/// A connection and its permit.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
