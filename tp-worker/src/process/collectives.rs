//! The collectives that connect the ranks: none, shared memory, or TCP.

use std::{
    net::{SocketAddr, ToSocketAddrs as _, UdpSocket},
    time::Duration,
};

use lockstep_collective::{
    AbortHandle, Collective, CollectiveError, Options, SharedMemory, Single, Tcp,
    TcpListenerHandle, Tls,
};
use lockstep_ports::NodeTls;
use lockstep_proto::pb::lockstep::GroupStart;
use lockstep_types::EngineConfig;

use crate::{RunError, worker::WorkerLimits};

/// The port that peers of other nodes connect to.
pub struct Listener(TcpListenerHandle);

impl Listener {
    /// Returns the port's address as `host:port`, for the other ranks.
    pub fn address(&self) -> String {
        self.0.address().to_string()
    }
}

/// Opens the port for other nodes. It speaks TLS if `tls` is given. Returns `None` where there
/// is one node only.
///
/// # Errors
/// [`RunError::Io`] when node 0's address can't be resolved.
pub fn bind(config: &EngineConfig, tls: Option<&NodeTls>) -> Result<Option<Listener>, RunError> {
    if config.parallel.nnodes == 1 {
        return Ok(None);
    }
    let addr = &config.parallel.dist_init_addr;
    let failed = |source| RunError::Io {
        what: format!("resolving {addr}"),
        source,
    };
    let local = facing(addr).map_err(failed)?;
    let tls = tls.map(|tls| Tls {
        client: tls.client.clone(),
        server: tls.server.clone(),
    });
    Ok(Some(Listener(Tcp::bind(local)?.secured(tls))))
}

/// Returns this machine's address on the route to `addr`, with any free port. Peers come over
/// the network that node 0 is on, so no other interface is opened.
fn facing(addr: &str) -> std::io::Result<SocketAddr> {
    let peer = addr
        .to_socket_addrs()?
        .next()
        .ok_or(std::io::ErrorKind::NotFound)?;
    let any: SocketAddr = if peer.is_ipv4() {
        ([0; 4], 0).into()
    } else {
        ([0; 16], 0).into()
    };
    // Connecting a datagram socket sends nothing; it only picks the route.
    let probe = UdpSocket::bind(any)?;
    probe.connect(peer)?;
    Ok(SocketAddr::new(probe.local_addr()?.ip(), 0))
}

/// Connects this rank to its peers. Returns the collectives and the handle that ends their
/// waits.
///
/// # Errors
/// [`RunError::Collective`] when a peer doesn't come or is of another group.
pub fn connect(
    config: &EngineConfig,
    rank: usize,
    secret: Option<&str>,
    listener: Option<Listener>,
    start: &GroupStart,
) -> Result<(Box<dyn Collective>, AbortHandle), RunError> {
    let size = config.parallel.tp_size;
    let options = options(config)?;
    let collective: Box<dyn Collective> = match listener {
        None if size == 1 => Box::new(Single::new()),
        None => Box::new(SharedMemory::join(
            &start.shared_memory_name,
            rank,
            size,
            &options,
        )?),
        Some(Listener(listener)) => {
            let addresses = start
                .collective_addresses
                .iter()
                .map(|address| address.parse())
                .collect::<Result<Vec<SocketAddr>, _>>()
                .map_err(|error| RunError::Scheduler(format!("it sent a bad address: {error}")))?;
            let group = format!("{:016x}", start.group_id);
            let secret = secret.unwrap_or_default().as_bytes();
            Box::new(listener.connect_with(rank, &addresses, &group, secret, &options)?)
        }
    };
    let abort = collective.abort_handle();
    Ok((collective, abort))
}

/// Returns the limits of the group. A rank may be ahead of another by the time that all weights
/// take to load, once, and later by the longest computation between two collectives.
fn options(config: &EngineConfig) -> Result<Options, RunError> {
    let timeouts = &config.timeouts;
    Ok(Options {
        max_elements: WorkerLimits::new(config).exchange_elements(config),
        timeout: Duration::from_secs(timeouts.step_watchdog_s.max(timeouts.loading_s())),
        join_timeout: Duration::from_secs(timeouts.startup_s),
        threads_per_rank: config.parallel.threads_per_rank,
    })
}

/// Returns true if the group fell apart, so that the cause lies with another rank.
pub fn is_collective(error: &RunError) -> bool {
    if matches!(error, RunError::Collective(_)) {
        return true;
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        // An error that is a part of another may be boxed.
        if error.is::<CollectiveError>() || error.is::<Box<CollectiveError>>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use lockstep_backend::BackendError;

    use super::*;

    #[test]
    fn what_a_peer_did_is_told_from_what_happened_here() {
        let left = || CollectiveError::Aborted {
            rank: 1,
            missing: Some(0),
        };
        let in_step = RunError::Worker(BackendError::from(left()).into());
        assert!(is_collective(&in_step));
        assert!(is_collective(&RunError::Collective(left())));
        let here = BackendError::Unsupported("another device".into());
        assert!(!is_collective(&RunError::Worker(here.into())));
    }

    #[test]
    fn loopback_peers_are_reached_over_loopback() -> std::io::Result<()> {
        let local = facing("127.0.0.1:5000")?;
        assert!(local.ip().is_loopback());
        assert_eq!(local.port(), 0);
        Ok(())
    }
}
