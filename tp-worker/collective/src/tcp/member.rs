//! One rank's end of the mesh.
//!
//! All connections are non-blocking and move both ways at once, so two ranks
//! that send each other more than the sockets hold don't block each other.

use std::io;
use std::net::Shutdown;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::lane::{Lane, Unexpected};
use super::links::Links;
use crate::attachment::Attachment;
use crate::endpoint::Endpoint;
use crate::membership::Presence as _;
use crate::patience::Patience;
use crate::{CollectiveError, Operation};

pub(crate) use crate::parts::MAX_RANKS;

/// Time limit, after a failed transfer, to look for the cause and to make sure that all peers
/// learn of it.
const GRACE: Duration = Duration::from_secs(1);

/// The data that a rank compares with its peers: an operation, and its attachment.
type Ours<'a> = (Operation, &'a Attachment);

/// A rank's end of the connections between the ranks of one group.
pub struct Member {
    rank: usize,
    /// Every rank's number in the first group.
    names: Vec<usize>,
    links: Arc<Links>,
    patience: Patience,
    outgoing: Vec<f32>,
    /// Received elements, by rank; empty for this rank.
    incoming: Vec<Vec<f32>>,
    lanes: Vec<Lane>,
}

impl Member {
    /// Makes rank `rank` of a group, with buffers of `capacity` elements. `names` are the
    /// ranks' numbers in the first group.
    pub(crate) fn new(
        rank: usize,
        names: Vec<usize>,
        links: Arc<Links>,
        patience: Patience,
        capacity: usize,
    ) -> Self {
        let size = names.len();
        let elements = |peer| if peer == rank { 0 } else { capacity };
        Self {
            rank,
            names,
            links,
            patience,
            outgoing: vec![0.0; capacity],
            incoming: (0..size).map(|peer| vec![0.0; elements(peer)]).collect(),
            lanes: vec![Lane::IDLE; size],
        }
    }

    /// Returns this rank's number in the first group.
    fn own_name(&self) -> usize {
        self.names[self.rank]
    }

    /// Moves the data that can be moved on every connection. Returns true if all are done.
    fn pump(
        &mut self,
        ours @ (operation, attachment): Ours<'_>,
        part: &dyn Fn(usize, usize) -> Range<usize>,
    ) -> Result<bool, CollectiveError> {
        let mut done = true;
        for (peer, &name) in self.names.iter().enumerate() {
            let (Some(link), lane) = (self.links.to(name), &mut self.lanes[peer]) else {
                continue;
            };
            if lane.wants_write() {
                let sent = &self.outgoing[part(self.rank, peer)];
                lane.write(link, bytemuck::cast_slice(sent));
            }
            if lane.wants_read() {
                let received = &mut self.incoming[peer][part(peer, self.rank)];
                lane.read(link, bytemuck::cast_slice_mut(received));
            }
            let checked = lane.check(operation, attachment);
            let own = self.names[self.rank];
            checked.map_err(|found| diverged(ours, own, found, name, lane))?;
            if lane.lost() {
                return Err(CollectiveError::PeerLeft {
                    rank: self.names[self.rank],
                    peer: name,
                    operation,
                });
            }
            done &= link.flush() && lane.done();
        }
        Ok(done)
    }

    fn pump_until_done(
        &mut self,
        ours: Ours<'_>,
        part: &dyn Fn(usize, usize) -> Range<usize>,
    ) -> Result<(), CollectiveError> {
        let start = Instant::now();
        let patience = self.patience.clone();
        loop {
            self.check_aborted()?;
            let mut outcome = Ok(false);
            patience.spin.until(|| {
                outcome = self.pump(ours, part);
                !matches!(outcome, Ok(false))
            });
            if outcome? {
                return Ok(());
            }
            let waited = start.elapsed();
            let left = patience.timeout.saturating_sub(waited);
            if left.is_zero() {
                let rank = self.rank;
                let is_behind = |peer: usize| {
                    let link = self.links.to(self.names[peer]);
                    !self.lanes[peer].done() || link.is_some_and(|link| !link.flush())
                };
                let missing = (0..self.size()).find(|&peer| peer != rank && is_behind(peer));
                return Err(CollectiveError::Timeout {
                    rank: self.own_name(),
                    missing: self.names[missing.unwrap_or(rank)],
                    operation: ours.0,
                    waited,
                });
            }
            self.poll(left)?;
        }
    }

    /// Ends a failed transfer: makes sure that every peer has this rank's head. Returns the
    /// divergence that may be behind the failure, otherwise the error.
    fn conclude(&mut self, ours: Ours<'_>, error: CollectiveError) -> CollectiveError {
        use CollectiveError::{Attached, Mismatch, PeerLeft};
        let diverging = matches!(error, Mismatch { .. } | Attached { .. });
        if self.check_aborted().is_err() || !(diverging || matches!(error, PeerLeft { .. })) {
            return self.check_aborted().err().unwrap_or(error);
        }
        let (operation, attachment) = ours;
        let mut found = diverging.then(|| error.clone());
        let end = Instant::now() + GRACE.min(self.patience.timeout);
        self.lanes.iter_mut().for_each(Lane::heads_only);
        loop {
            let mut busy = false;
            for (peer, &name) in self.names.iter().enumerate() {
                let (Some(link), lane) = (self.links.to(name), &mut self.lanes[peer]) else {
                    continue;
                };
                lane.write(link, bytemuck::cast_slice(&self.outgoing));
                lane.read(link, bytemuck::cast_slice_mut(&mut self.incoming[peer]));
                busy |= !link.flush() || lane.wants_read() || lane.wants_write();
                if let Err(unexpected) = lane.check(operation, attachment) {
                    let own = self.names[self.rank];
                    found.get_or_insert_with(|| diverged(ours, own, unexpected, name, lane));
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if !busy || left.is_zero() || self.poll(left).is_err() {
                break;
            }
        }
        self.drain(end);
        found.unwrap_or(error)
    }

    /// Closes this rank's side and reads on until the peers close theirs. A connection closed
    /// with unread data is reset, and a reset would take from a peer the header that tells it
    /// the error.
    fn drain(&mut self, end: Instant) {
        self.links.close(Shutdown::Write);
        for (peer, &name) in self.names.iter().enumerate() {
            let (Some(link), buffer) = (self.links.to(name), &mut self.incoming[peer]) else {
                continue;
            };
            let buffer: &mut [u8] = bytemuck::cast_slice_mut(buffer);
            loop {
                match link.receive(&mut [io::IoSliceMut::new(buffer)]) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        let left = end.saturating_duration_since(Instant::now());
                        let mut fds = [PollFd::new(link.socket(), PollFlags::IN)];
                        if left.is_zero() || poll(&mut fds, Some(&timespec(left))).is_err() {
                            break;
                        }
                    }
                    Err(_) => break,
                }
            }
        }
    }

    /// Sleeps until some connection can move on, at most `limit`.
    fn poll(&self, limit: Duration) -> Result<(), CollectiveError> {
        let links = self.names.iter().map(|&name| self.links.to(name));
        let Some(any) = links.clone().flatten().next() else {
            return Ok(());
        };
        let mut fds: [PollFd<'_>; MAX_RANKS] =
            std::array::from_fn(|_| PollFd::new(any.socket(), PollFlags::empty()));
        let mut count = 0;
        for (link, lane) in links.zip(&self.lanes) {
            let Some(link) = link else { continue };
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, lane.wants_read());
            flags.set(PollFlags::OUT, lane.wants_write() || !link.flush());
            if !flags.is_empty() {
                fds[count] = PollFd::new(link.socket(), flags);
                count += 1;
            }
        }
        if count == 0 {
            // The rest of the data has been sent just now.
            return Ok(());
        }
        match poll(&mut fds[..count], Some(&timespec(limit))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(CollectiveError::system(self.own_name(), "poll", &error)),
        }
    }

    fn check_aborted(&self) -> Result<(), CollectiveError> {
        match self.links.is_aborted() {
            true => Err(CollectiveError::Aborted {
                rank: self.own_name(),
                missing: None,
            }),
            false => Ok(()),
        }
    }
}

impl Endpoint for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.names.len()
    }

    fn name(&self, rank: usize) -> usize {
        self.names[rank]
    }

    fn capacity(&self) -> usize {
        self.outgoing.len()
    }

    fn is_crowded(&self) -> bool {
        self.patience.crowded
    }

    fn outgoing(&mut self) -> &mut [f32] {
        &mut self.outgoing
    }

    fn incoming(&self, rank: usize) -> &[f32] {
        if rank == self.rank {
            &self.outgoing
        } else {
            &self.incoming[rank]
        }
    }

    fn attachment(&self, rank: usize) -> Attachment {
        self.lanes[rank].attachment()
    }

    fn transfer(
        &mut self,
        operation: Operation,
        attachment: &Attachment,
        part: &dyn Fn(usize, usize) -> Range<usize>,
    ) -> Result<(), CollectiveError> {
        for (peer, lane) in self.lanes.iter_mut().enumerate() {
            if peer != self.rank {
                let (send, receive) = (part(self.rank, peer), part(peer, self.rank));
                lane.start(operation, attachment, send.len(), receive.len());
            }
        }
        let ours = (operation, attachment);
        let result = self.pump_until_done(ours, part);
        result.map_err(|error| self.conclude(ours, error))
    }

    fn split(&self, ranks: &[usize], _id: u64) -> Result<Self, CollectiveError> {
        let own = ranks.iter().take_while(|&&rank| rank != self.rank);
        Ok(Self::new(
            own.count(),
            ranks.iter().map(|&rank| self.names[rank]).collect(),
            self.links.clone(),
            self.patience.clone(),
            self.outgoing.len(),
        ))
    }
}

/// Makes the error with which `rank` reports that `peer` differs. `lane` has the peer's head.
fn diverged(
    (operation, attachment): Ours<'_>,
    rank: usize,
    found: Unexpected,
    peer: usize,
    lane: &Lane,
) -> CollectiveError {
    match found {
        Unexpected::Operation(theirs) => CollectiveError::Mismatch {
            rank,
            ours: operation,
            peer,
            theirs,
        },
        Unexpected::Attachment => {
            let theirs = lane.attachment();
            CollectiveError::attached(operation, (rank, attachment), (peer, &theirs))
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().cast_signed(),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
