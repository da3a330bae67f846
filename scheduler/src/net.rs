//! Sockets to listen on.

use std::{net::SocketAddr, path::Path};

use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;

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

/// Binds a public or inter-node TCP port.
///
/// # Errors
/// [`RunError::Io`] names the address.
pub async fn listen_tcp(addr: &str) -> Result<TcpIncoming, RunError> {
    let failed = |source| RunError::Io {
        what: format!("listening on {addr}"),
        source,
    };
    let resolved: Vec<SocketAddr> = tokio::net::lookup_host(addr)
        .await
        .map_err(failed)?
        .collect();
    let listener = tokio::net::TcpListener::bind(resolved.as_slice())
        .await
        .map_err(failed)?;
    Ok(TcpIncoming::from(listener).with_nodelay(Some(true)))
}
