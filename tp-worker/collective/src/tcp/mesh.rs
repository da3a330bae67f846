//! Connecting every rank with every other.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::door::Door;
use super::handshake::{Failure, Identity};
use super::link::{Link, Tls};
use crate::CollectiveError;

/// Time between two attempts to reach a rank that isn't up yet.
const RETRY: Duration = Duration::from_millis(50);

/// Connects to every other rank, within `timeout`. Returns the connections by rank.
///
/// A rank connects to all lower ranks, then accepts all higher ones. Rank 0
/// only accepts, so ranks wait for each other in rank order, never in a circle.
pub(crate) fn connect(
    listener: &TcpListener,
    addresses: &[SocketAddr],
    identity: &Identity<'_>,
    tls: Option<&Tls>,
    timeout: Duration,
) -> Result<Vec<Option<Link>>, CollectiveError> {
    let start = Instant::now();
    let left = || timeout.saturating_sub(start.elapsed());
    let mut links: Vec<Option<Link>> = addresses.iter().map(|_| None).collect();
    for peer in 0..identity.rank {
        links[peer] = Some(reach(addresses[peer], peer, identity, tls, left)?);
    }
    let mut door =
        Door::open(listener, tls).map_err(|e| failed(identity, "prepare to accept", &e))?;
    while let Some(missing) = (identity.rank + 1..links.len()).find(|&r| links[r].is_none()) {
        if left().is_zero() {
            // A port scanner must not end the group, but a wrong secret should show.
            let refused = door.refused;
            let hint = refused.map(|failure| format!("; somebody was refused: {failure}"));
            let reason = format!(
                "rank {missing} did not connect within {timeout:?}{}",
                hint.unwrap_or_default()
            );
            return Err(CollectiveError::join(identity.rank, reason));
        }
        let next = door.next(identity, |rank| links[rank].is_none(), left());
        if let Some((rank, link)) = next.map_err(|e| failed(identity, "accept", &e))? {
            links[rank] = Some(link);
        }
    }
    Ok(links)
}

fn reach(
    address: SocketAddr,
    peer: usize,
    identity: &Identity<'_>,
    tls: Option<&Tls>,
    left: impl Fn() -> Duration,
) -> Result<Link, CollectiveError> {
    loop {
        let attempt = || {
            let limit = left().max(Duration::from_millis(1));
            let stream = TcpStream::connect_timeout(&address, limit)?;
            limit_waits(&stream, limit)?;
            let mut link = Link::connect(stream, tls)?;
            identity.connect(&mut link, peer)?;
            Ok(link)
        };
        match attempt() {
            Ok(stream) => return Ok(stream),
            Err(Failure::Refused(refusal)) => {
                let reason = format!("rank {peer} at {address}: {refusal}");
                return Err(CollectiveError::join(identity.rank, reason));
            }
            // TLS refuses the same connection again.
            Err(Failure::Connection(error)) if error.kind() == ErrorKind::InvalidData => {
                let what = format!("agree on TLS with rank {peer} at {address}");
                return Err(failed(identity, &what, &error));
            }
            Err(Failure::Connection(error)) if left().is_zero() => {
                return Err(failed(
                    identity,
                    &format!("reach rank {peer} at {address}"),
                    &error,
                ));
            }
            // No event tells when a port on another machine opens.
            Err(Failure::Connection(_)) => std::thread::park_timeout(RETRY.min(left())),
        }
    }
}

/// Limits the time that a handshake may wait for the other side.
fn limit_waits(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))
}

fn failed(identity: &Identity<'_>, what: &str, error: &impl Display) -> CollectiveError {
    CollectiveError::join(identity.rank, format!("cannot {what}: {error}"))
}
