//! A rank's connections to all others, which its groups share.

use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};

use super::link::Link;
use crate::membership::Presence;

/// The connections of one rank.
pub(crate) struct Links {
    /// By rank of the first group; the own one is `None`.
    links: Vec<Option<Link>>,
    aborted: AtomicBool,
}

impl Links {
    /// Prepares the connections, one for every rank but the own.
    pub fn new(links: Vec<Option<Link>>) -> io::Result<Self> {
        for link in links.iter().flatten() {
            link.socket().set_nodelay(true)?;
            link.socket().set_nonblocking(true)?;
        }
        Ok(Self {
            links,
            aborted: AtomicBool::new(false),
        })
    }

    /// The connection to rank `name` of the first group, if it is another one.
    pub fn to(&self, name: usize) -> Option<&Link> {
        self.links[name].as_ref()
    }

    /// Closes one or both directions of all of them.
    pub fn close(&self, how: Shutdown) {
        for link in self.links.iter().flatten() {
            // Fails only if the connection is gone already.
            let _ = link.socket().shutdown(how);
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
