//! A rank's connections to all others, which its groups share.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::membership::Presence;

/// The connections of one rank.
pub(crate) struct Links {
    /// By rank of the first group; the own one is `None`.
    streams: Vec<Option<TcpStream>>,
    aborted: AtomicBool,
}

impl Links {
    /// Prepares the connections, one for every rank but the own.
    pub fn new(streams: Vec<Option<TcpStream>>) -> io::Result<Self> {
        for stream in streams.iter().flatten() {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        Ok(Self {
            streams,
            aborted: AtomicBool::new(false),
        })
    }

    /// The connection to rank `name` of the first group, if it is another one.
    pub fn to(&self, name: usize) -> Option<&TcpStream> {
        self.streams[name].as_ref()
    }

    /// Closes one or both directions of all of them.
    pub fn close(&self, how: Shutdown) {
        for stream in self.streams.iter().flatten() {
            // Fails only if the connection is gone already.
            let _ = stream.shutdown(how);
        }
    }
}

impl Presence for Links {
    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        // Wakes this rank from its poll, and tells the peers.
        self.close(Shutdown::Both);
    }

    fn leave(&self) {
        self.close(Shutdown::Both);
    }

    fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }
}
