//! A rank's open port while the group forms: its callers, and the check which of them are
//! ranks.
//!
//! Any machine may connect there. Callers are heard side by side, each for a limited time in
//! all. So no stranger keeps the ranks from joining: neither by its words, nor by sending few
//! of them, nor by silence.

use std::io::{self, ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::handshake::{ANSWER, Failure, Identity, Nonce};
use super::link::{Link, Tls};

/// Time that a caller has to show that it is a rank.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most callers that are heard at once. For one more, the oldest has to go.
const MOST: usize = 64;
/// Least time that each caller is heard, however many come. A rank answers at once; a rank that
/// had to go all the same calls again.
const HEARING: Duration = Duration::from_millis(50);

/// The port and its callers, in the order in which they came.
pub(crate) struct Door<'a> {
    listener: &'a TcpListener,
    tls: Option<&'a Tls>,
    callers: Vec<Caller>,
    /// Why the last caller was refused. Callers that spoke as ranks do go before others.
    pub refused: Option<Failure>,
}

/// A caller that has connected and has not said everything yet.
struct Caller {
    link: Link,
    came: Instant,
    nonce: Nonce,
    answer: [u8; ANSWER],
    heard: usize,
}

impl<'a> Door<'a> {
    /// Opens the door of a port, without callers.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(listener: &'a TcpListener, tls: Option<&'a Tls>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            tls,
            callers: Vec::new(),
            refused: None,
        })
    }

    /// Waits for a caller to come or to say something, at most `limit`. Returns the rank that
    /// shows itself by it, with its number. `free` returns true for a number that is still to
    /// come.
    ///
    /// # Errors
    /// The system's error for the port, not for a caller.
    pub fn next(
        &mut self,
        identity: &Identity<'_>,
        free: impl Fn(usize) -> bool,
        limit: Duration,
    ) -> io::Result<Option<(usize, Link)>> {
        self.wait(limit)?;
        let found = self.hear(identity, free);
        self.admit()?;
        Ok(found)
    }

    /// Returns true if another caller may come now.
    fn has_room(&self) -> bool {
        let oldest = self.callers.first();
        self.callers.len() < MOST || oldest.is_some_and(|caller| caller.came.elapsed() >= HEARING)
    }

    fn wait(&self, limit: Duration) -> io::Result<()> {
        let room = self.has_room();
        let soonest = if room { PATIENCE } else { HEARING };
        let oldest = self.callers.first().map(|caller| caller.came.elapsed());
        let limit = oldest.map_or(limit, |age| limit.min(soonest.saturating_sub(age)));
        let limit = Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mut sockets: Vec<_> = self
            .callers
            .iter()
            .map(|caller| caller.link.socket())
            .map(readable)
            .collect();
        if room {
            sockets.push(readable(self.listener));
        }
        match poll(&mut sockets, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the answers of callers, up to the first caller that is a rank.
    fn hear(
        &mut self,
        identity: &Identity<'_>,
        free: impl Fn(usize) -> bool,
    ) -> Option<(usize, Link)> {
        let mut at = 0;
        while at < self.callers.len() {
            let failure = match self.callers[at].hear() {
                Ok(true) => {
                    let caller = self.callers.remove(at);
                    match caller.join(identity, &free) {
                        Ok(rank) => return Some(rank),
                        Err(failure) => failure,
                    }
                }
                Ok(false) => {
                    at += 1;
                    continue;
                }
                Err(error) => {
                    self.callers.remove(at);
                    error.into()
                }
            };
            self.note(failure);
        }
        None
    }

    /// Keeps the reason why a caller was refused. A stranger that said nothing, or left, must
    /// not hide that a rank has another secret.
    fn note(&mut self, failure: Failure) {
        let tells = match &failure {
            Failure::Refused(_) => true,
            Failure::Connection(error) => error.kind() == ErrorKind::InvalidData,
        };
        if tells || self.refused.is_none() {
            self.refused = Some(failure);
        }
    }

    /// Greets the callers that have come.
    fn admit(&mut self) -> io::Result<()> {
        while self.has_room() {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => break,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                    _ => return Err(error),
                },
            };
            if self.callers.len() >= MOST {
                self.callers.remove(0);
            }
            match Caller::greet(stream, self.tls) {
                Ok(caller) => self.callers.push(caller),
                Err(failure) => self.note(failure),
            }
        }
        Ok(())
    }
}

impl Caller {
    fn greet(stream: TcpStream, tls: Option<&Tls>) -> Result<Self, Failure> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let mut link = Link::accept(stream, tls)?;
        let nonce = Identity::greet(&mut link)?;
        Ok(Self {
            link,
            came: Instant::now(),
            nonce,
            answer: [0; ANSWER],
            heard: 0,
        })
    }

    /// Reads on. Returns true once the caller has said everything.
    fn hear(&mut self) -> io::Result<bool> {
        while self.heard < ANSWER {
            match self.link.read(&mut self.answer[self.heard..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.heard += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let late = self.came.elapsed() >= PATIENCE;
                    return if late {
                        Err(ErrorKind::TimedOut.into())
                    } else {
                        Ok(false)
                    };
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn join(
        mut self,
        identity: &Identity<'_>,
        free: impl Fn(usize) -> bool,
    ) -> Result<(usize, Link), Failure> {
        let rank = identity.judge(&mut self.link, &self.nonce, &self.answer, free)?;
        Ok((rank, self.link))
    }
}

fn readable<'a>(socket: &'a impl std::os::fd::AsFd) -> PollFd<'a> {
    PollFd::new(socket, PollFlags::IN)
}

#[cfg(test)]
mod tests;
