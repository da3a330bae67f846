//! Sockets that the scheduler listens on.

use std::path::Path;

use tokio::net::TcpListener;
use tokio_stream::wrappers::UnixListenerStream;

use crate::error::RunError;

/// Binds a socket inside the run directory.
///
/// # Errors
/// [`RunError::Io`] names the path.
pub fn listen_unix(path: &Path) -> Result<UnixListenerStream, RunError> {
    lockstep_process::listen_unix(path).map_err(|source| RunError::Io {
        what: format!("listening on {}", path.display()),
        source,
    })
}

/// Binds a public or inter-node TCP port, `host:port`.
///
/// # Errors
/// [`RunError::Io`] names the address.
pub fn listen_tcp(address: &str) -> Result<TcpListener, RunError> {
    lockstep_ports::listen(address, false).map_err(|source| RunError::Io {
        what: format!("listening on {address}"),
        source,
    })
}
