//! Sockets between the processes of an engine.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint};

/// Flow-control window of a connection and of each stream, in bytes. Messages are plans and
/// tokens; a long prompt fits whole.
const WINDOW: u32 = 8 * 1024 * 1024;
/// Interval at which a process on this machine is asked whether it still lives (`ASK_EVERY`),
/// and time limit for its answer. Otherwise a process that hangs without ending would keep its
/// peers waiting for ever. No computation takes as long on the threads that answer.
const ASK_EVERY: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Advice about a node without TLS among nodes with TLS.
const ALL_OR_NONE: &str =
    "the other side speaks none: give --dist-ssl-certfile to all nodes or to none";
/// Time limit for another node to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Pause between two attempts to reach a process that does not listen yet.
const RETRY: Duration = Duration::from_millis(10);

/// The reason why a process could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The process was not reached within the limit.
    #[error("{address} could not be reached within {limit:?}: {last}")]
    TimedOut {
        /// Socket path or `host:port`.
        address: String,
        /// Time limit of the connection.
        limit: Duration,
        /// Error of the last attempt.
        last: String,
    },
    /// The two nodes do not agree on TLS, now or later.
    #[error("{address} and this node do not agree on TLS: {reason}")]
    Tls {
        /// `host:port`.
        address: String,
        /// Error of TLS.
        reason: String,
    },
    /// The address is not `host:port`.
    #[error("{address} is not an address of the form host:port")]
    Address {
        /// Address as given.
        address: String,
    },
}

/// Listens on a Unix socket that only this user can open (mode 0600). A socket left behind by a
/// dead process is replaced. Needs a tokio runtime.
///
/// # Errors
/// `AddrInUse` if `path` exists and is not a socket. The system's errors for a socket at
/// `path`: no such folder, no permission, too long a path.
pub fn listen_unix(path: &Path) -> io::Result<UnixListenerStream> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // The directory is 0700, so nobody gets in between these two calls.
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(UnixListenerStream::new(listener))
}

/// Connects a gRPC channel to a Unix socket. Waits up to `limit` for the process to listen.
/// Keep-alive pings notice a peer that hangs within half a minute.
///
/// # Errors
/// [`ConnectError::TimedOut`].
pub async fn connect_unix(path: &Path, limit: Duration) -> Result<Channel, ConnectError> {
    let socket: PathBuf = path.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = tuned(Endpoint::from_static("http://lockstep.internal"))
        .http2_keep_alive_interval(ASK_EVERY)
        .keep_alive_timeout(ANSWER_WITHIN)
        .keep_alive_while_idle(true);
    retry(&path.display().to_string(), limit, || {
        endpoint.connect_with_connector(connector.clone())
    })
    .await
}

/// Connects a gRPC channel to `host:port` on another node, in TLS if `tls` is given. Waits up
/// to `limit` for the node to listen. Keep-alive pings notice a peer that vanished within ten
/// seconds.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect_tcp(
    address: &str,
    limit: Duration,
    tls: Option<Arc<ClientConfig>>,
) -> Result<Channel, ConnectError> {
    let invalid = || ConnectError::Address {
        address: address.to_owned(),
    };
    if address
        .rsplit_once(':')
        .is_none_or(|(_, port)| port.parse::<u16>().is_err())
    {
        return Err(invalid());
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| invalid())?;
    let endpoint = tuned(endpoint)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(Duration::from_secs(5)))
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true);
    let Some(tls) = tls else {
        return retry(address, limit, || endpoint.connect()).await;
    };
    let to = address.to_owned();
    let connector = tower::service_fn(move |_| {
        let (to, tls) = (to.clone(), tls.clone());
        async move { timeout(CONNECT, agree(&to, tls)).await? }
    });
    retry(address, limit, || {
        endpoint.connect_with_connector(connector.clone())
    })
    .await
}

/// Connects, and agrees on keys.
async fn agree(address: &str, tls: Arc<ClientConfig>) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from("lockstep.internal").map_err(io::Error::other)?;
    let stream = TlsConnector::from(tls).connect(name, stream).await;
    let stream = stream.map_err(|error| match error.kind() {
        // The other side got bytes that it does not understand.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            io::Error::other(rustls::Error::General(ALL_OR_NONE.to_owned()))
        }
        _ => error,
    });
    Ok(TokioIo::new(stream?))
}

fn tuned(endpoint: Endpoint) -> Endpoint {
    endpoint
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
}

async fn retry<F>(
    address: &str,
    limit: Duration,
    mut connect: impl FnMut() -> F,
) -> Result<Channel, ConnectError>
where
    F: Future<Output = Result<Channel, tonic::transport::Error>>,
{
    let deadline = Instant::now() + limit;
    let mut last = "no answer".to_owned();
    loop {
        match timeout_at(deadline, connect()).await {
            Ok(Ok(channel)) => return Ok(channel),
            Ok(Err(error)) if is_of_tls(&error) => {
                return Err(ConnectError::Tls {
                    address: address.to_owned(),
                    reason: root_cause(&error),
                });
            }
            Ok(Err(error)) => last = root_cause(&error),
            Err(_) => {}
        }
        if Instant::now() + RETRY >= deadline {
            return Err(ConnectError::TimedOut {
                address: address.to_owned(),
                limit,
                last,
            });
        }
        sleep(RETRY).await;
    }
}

/// Returns true if the error is TLS's own: TLS would refuse again.
fn is_of_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut inner = Some(error);
    while let Some(error) = inner {
        if error.is::<rustls::Error>() {
            return true;
        }
        // An I/O error shows its inner error in its own way.
        let io = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        if io.is_some_and(|held| held.is::<rustls::Error>()) {
            return true;
        }
        inner = error.source();
    }
    false
}

/// The innermost of the errors that led to `error`.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

#[cfg(test)]
mod tests;
