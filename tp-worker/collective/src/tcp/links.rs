//! A rank's connections to all others, which its groups share.

use std::io;
use std::net::Shutdown;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::Link;
use crate::membership::Presence;

/// The connections of one rank.
pub(crate) struct Links {
    /// Connections by rank of the first group; `None` for this rank.
    links: Vec<Option<Link>>,
    aborted: AtomicBool,
    /// The first peer that was seen to have closed its side. Other peers follow it.
    departed: OnceLock<usize>,
    /// True once this rank has closed the connections, which looks as if the peers had.
    closed: AtomicBool,
}

impl Links {
    /// Prepares the connections, one for every other rank.
    pub fn new(links: Vec<Option<Link>>) -> io::Result<Self> {
        for link in links.iter().flatten() {
            link.socket().set_nodelay(true)?;
            link.socket().set_nonblocking(true)?;
        }
        Ok(Self {
            links,
            aborted: AtomicBool::new(false),
            departed: OnceLock::new(),
            closed: AtomicBool::new(false),
        })
    }

    /// Returns the connection to rank `name` of the first group; `None` for this rank.
    pub fn to(&self, name: usize) -> Option<&Link> {
        self.links[name].as_ref()
    }

    /// Closes one or both directions of all connections.
    pub fn close(&self, how: Shutdown) {
        // A peer that left before can't be seen afterwards.
        let _ = self.departed();
        self.closed.store(true, Ordering::Release);
        for link in self.links.iter().flatten() {
            // Fails only if the connection is gone already.
            let _ = link.socket().shutdown(how);
        }
    }
}

/// Poll events of a peer that closes its side or is gone.
const GONE: PollFlags = PollFlags::RDHUP.union(PollFlags::HUP).union(PollFlags::ERR);

/// Returns true if the peer has closed its side. Unread data may lie before that.
fn is_gone(link: &Link) -> bool {
    let mut asked = [PollFd::new(link.socket(), PollFlags::RDHUP)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut asked, Some(&now)).is_ok() && asked[0].revents().intersects(GONE)
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

    fn departed(&self) -> Option<usize> {
        if let Some(first) = self.departed.get() {
            return Some(*first);
        }
        let gone = |link: &Option<Link>| link.as_ref().is_some_and(is_gone);
        let first = self.links.iter().position(gone)?;
        // Connections that this rank has closed meanwhile do not count.
        (!self.closed.load(Ordering::Acquire)).then(|| *self.departed.get_or_init(|| first))
    }
}
