//! Accepting connections, even if the process has no file descriptor left.

use std::{fs::File, io, net::SocketAddr, time::Duration};

use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};

use crate::{listen::tune, places::Places, report::Closed};

/// Pause after a failure to accept, since a shortage does not end at once.
const PAUSE: Duration = Duration::from_millis(50);

/// A listener with a descriptor in reserve.
pub(crate) struct Acceptor {
    listener: TcpListener,
    /// A spare descriptor. When no descriptor is left, the server closes it, accepts
    /// one connection and closes that connection at once. The client then learns that
    /// the server is full (libev's manual, "The special problem of accept()ing when you
    /// can't").
    spare: Option<File>,
}

impl Acceptor {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            spare: spare(),
        }
    }

    /// Waits for the next connection; returns it tuned, with its address.
    pub(crate) async fn next(&mut self, places: &Places) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    if let Err(error) = tune(&stream) {
                        tracing::debug!(%error, "a connection could not be tuned");
                    }
                    return (stream, peer);
                }
                Err(error) if of_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    if is(&error, Errno::MFILE) {
                        self.make_room(places).await;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Frees a descriptor: closes the connection that waits longest or, if none waits,
    /// the new connection.
    async fn make_room(&mut self, places: &Places) {
        if places.evict() {
            return;
        }
        self.spare = None;
        // This does not wait: the connection is the one that could not be accepted just
        // now.
        if let Ok(Ok(refused)) = tokio::time::timeout(PAUSE, self.listener.accept()).await {
            places.count(Closed::Refused);
            drop(refused);
        }
        self.spare = spare();
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Returns true if the error concerns one connection, which was gone before it was
/// accepted.
fn of_one_connection(error: &io::Error) -> bool {
    is(error, Errno::CONNABORTED) || is(error, Errno::INTR)
}

fn is(error: &io::Error, number: Errno) -> bool {
    error.raw_os_error() == Some(number.raw_os_error())
}
