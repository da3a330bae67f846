//! Connecting every rank with every other.

use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::door::Door;
use super::handshake::{Failure, Identity};
use crate::CollectiveError;

/// Between two attempts to reach a rank that isn't up yet.
const RETRY: Duration = Duration::from_millis(50);

/// A connection to every other rank, by rank, within `timeout`.
///
/// A rank connects to all lower ranks, then accepts all higher ones. Rank 0
/// only accepts, so ranks wait for each other in rank order, never in a circle.
pub(crate) fn connect(
    listener: &TcpListener,
    addresses: &[SocketAddr],
    identity: &Identity<'_>,
    timeout: Duration,
) -> Result<Vec<Option<TcpStream>>, CollectiveError> {
    let start = Instant::now();
    let left = || timeout.saturating_sub(start.elapsed());
    let mut streams: Vec<Option<TcpStream>> = addresses.iter().map(|_| None).collect();
    for peer in 0..identity.rank {
        streams[peer] = Some(reach(addresses[peer], peer, identity, left)?);
    }
    let mut door = Door::open(listener).map_err(|e| failed(identity, "prepare to accept", &e))?;
    while let Some(missing) = (identity.rank + 1..streams.len()).find(|&r| streams[r].is_none()) {
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
        let next = door.next(identity, |rank| streams[rank].is_none(), left());
        if let Some((rank, stream)) = next.map_err(|e| failed(identity, "accept", &e))? {
            streams[rank] = Some(stream);
        }
    }
    Ok(streams)
}

fn reach(
    address: SocketAddr,
    peer: usize,
    identity: &Identity<'_>,
    left: impl Fn() -> Duration,
) -> Result<TcpStream, CollectiveError> {
    loop {
        let attempt = || {
            let limit = left().max(Duration::from_millis(1));
            let mut stream = TcpStream::connect_timeout(&address, limit)?;
            limit_waits(&stream, limit)?;
            identity.connect(&mut stream, peer)?;
            Ok(stream)
        };
        match attempt() {
            Ok(stream) => return Ok(stream),
            Err(Failure::Refused(refusal)) => {
                let reason = format!("rank {peer} at {address}: {refusal}");
                return Err(CollectiveError::join(identity.rank, reason));
            }
            Err(Failure::Connection(error)) if left().is_zero() => {
                return Err(failed(
                    identity,
                    &format!("reach rank {peer} at {address}"),
                    &error,
                ));
            }
            // Nothing tells when a port on another machine opens.
            Err(Failure::Connection(_)) => std::thread::park_timeout(RETRY.min(left())),
        }
    }
}

/// Limits how long a handshake may wait for the other side.
fn limit_waits(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))
}

fn failed(identity: &Identity<'_>, what: &str, error: &impl Display) -> CollectiveError {
    CollectiveError::join(identity.rank, format!("cannot {what}: {error}"))
}
