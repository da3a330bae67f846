//! Connecting every rank with every other.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::handshake::{Failure, Identity};
use crate::CollectiveError;

/// How long a stranger on the port may keep the ranks waiting.
const STRANGER: Duration = Duration::from_secs(2);
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
    listener
        .set_nonblocking(true)
        .map_err(|error| failed(identity, "prepare to accept", &error))?;
    let mut refused = None;
    while let Some(missing) = (identity.rank + 1..streams.len()).find(|&r| streams[r].is_none()) {
        if left().is_zero() {
            let hint = refused.map(|failure: Failure| format!("; somebody was refused: {failure}"));
            let reason = format!(
                "rank {missing} did not connect within {timeout:?}{}",
                hint.unwrap_or_default()
            );
            return Err(CollectiveError::join(identity.rank, reason));
        }
        let Some(mut stream) =
            next(listener, left()).map_err(|e| failed(identity, "accept", &e))?
        else {
            continue;
        };
        let limit = left().min(STRANGER).max(Duration::from_millis(1));
        let greeted = limit_waits(&stream, limit).map_err(Failure::from);
        match greeted.and_then(|()| identity.accept(&mut stream, |rank| streams[rank].is_none())) {
            Ok(rank) => streams[rank] = Some(stream),
            // A port scanner must not end the group; the ranks are yet to come.
            Err(failure) => refused = Some(failure),
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

/// The next connection, or `None` if there is none within `limit`.
fn next(listener: &TcpListener, limit: Duration) -> io::Result<Option<TcpStream>> {
    let limit = Timespec {
        tv_sec: limit.as_secs().cast_signed(),
        tv_nsec: limit.subsec_nanos().into(),
    };
    match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {
                Ok(None)
            }
            _ => Err(error),
        },
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
