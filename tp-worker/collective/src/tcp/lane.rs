//! Both directions of one connection during one transfer.

use std::io::{ErrorKind, IoSlice, IoSliceMut};

use super::frame::{self, HEADER, Header, LONGEST};
use super::link::Link;
use crate::Operation;
use crate::attachment::{Attachment, Shape};

/// Progress of one frame each way.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    /// Headers, each with its attached words.
    outgoing: [u8; LONGEST],
    incoming: [u8; LONGEST],
    /// Number of bytes before each payload.
    out_head: usize,
    in_head: usize,
    /// Number of bytes sent and received, heads included.
    sent: usize,
    got: usize,
    /// Number of bytes to send and receive, heads included.
    to_send: usize,
    to_get: usize,
    /// True if the peer has closed its side, or if the connection is lost.
    closed: bool,
    /// Number of elements that the peer's header must announce.
    elements: u64,
}

/// The part of a peer's head that is not as expected.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unexpected {
    Operation(Operation),
    /// The attached words: see [`Lane::attachment`].
    Attachment,
}

impl Lane {
    /// A lane with nothing to do.
    pub const IDLE: Self = Self {
        outgoing: [0; LONGEST],
        incoming: [0; LONGEST],
        out_head: HEADER,
        in_head: HEADER,
        sent: 0,
        got: 0,
        to_send: 0,
        to_get: 0,
        closed: false,
        elements: 0,
    };

    /// Starts a frame of `send` elements out, and a frame of `receive` elements in. The
    /// incoming frame is expected to have as many attached words as the outgoing one.
    pub fn start(
        &mut self,
        operation: Operation,
        attachment: &Attachment,
        send: usize,
        receive: usize,
    ) {
        let shape = attachment.shape();
        let header = Header {
            operation,
            shape,
            elements: send as u64,
        };
        self.outgoing[..HEADER].copy_from_slice(&header.encode());
        frame::encode_words(attachment, &mut self.outgoing[HEADER..]);
        let head = frame::payload_at(shape);
        (self.out_head, self.in_head) = (head, head);
        (self.sent, self.got) = (0, 0);
        self.elements = receive as u64;
        self.to_send = head + send * size_of::<f32>();
        self.to_get = head + receive * size_of::<f32>();
    }

    pub fn wants_write(&self) -> bool {
        !self.closed && self.sent < self.to_send
    }

    pub fn wants_read(&self) -> bool {
        !self.closed && self.got < self.to_get
    }

    /// Returns true if both frames are through.
    pub fn done(&self) -> bool {
        self.sent == self.to_send && self.got == self.to_get
    }

    /// Returns true if the peer is gone before the frames were through.
    pub fn lost(&self) -> bool {
        self.closed && !self.done()
    }

    /// Stops sending after the head, and stops reading before the payload: only the peer's
    /// operation matters now.
    pub fn heads_only(&mut self) {
        self.to_send = self.to_send.min(self.sent.max(self.out_head));
        self.to_get = self.to_get.min(self.got.max(self.in_head));
    }

    /// Sends what the socket takes of the head and of `payload`.
    pub fn write(&mut self, link: &Link, payload: &[u8]) {
        let at = self.out_head;
        while self.wants_write() {
            let head = &self.outgoing[self.sent.min(at)..at];
            let payload = &payload[self.sent.saturating_sub(at)..self.to_send.max(at) - at];
            match link.send(&[IoSlice::new(head), IoSlice::new(payload)]) {
                Ok(0) => self.closed = true,
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Bytes that the peer sent before it left may still be readable.
                Err(_) => self.to_send = self.sent,
            }
        }
    }

    /// Reads what the socket has; payload bytes go to `payload`.
    pub fn read(&mut self, link: &Link, payload: &mut [u8]) {
        while self.wants_read() {
            let at = self.in_head;
            let head = &mut self.incoming[self.got.min(at)..at];
            let rest = &mut payload[self.got.saturating_sub(at)..self.to_get.max(at) - at];
            match link.receive(&mut [IoSliceMut::new(head), IoSliceMut::new(rest)]) {
                Ok(0) => self.closed = true,
                Ok(count) => self.got += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.closed = true,
            }
            self.fit_head(payload);
        }
    }

    /// Adjusts the expected length once the peer's header is here. If the header announces
    /// another number of attached words, the head gets its real length, and no payload is read.
    /// Bytes of the head that were read as payload are copied from `payload`.
    fn fit_head(&mut self, payload: &[u8]) {
        let Some(Header { shape, .. }) = self.header() else {
            return;
        };
        let (expected, head) = (self.in_head, frame::payload_at(shape));
        if head == expected {
            return;
        }
        let got = self.got.min(head);
        if got > expected {
            let strayed = &payload[..got - expected];
            self.incoming[expected..got].copy_from_slice(strayed);
        }
        (self.in_head, self.got, self.to_get) = (head, got, head);
    }

    /// Returns the peer's header, once it is here.
    fn header(&self) -> Option<Header> {
        let header = self.incoming.first_chunk()?;
        (self.got >= HEADER).then(|| Header::decode(header))
    }

    /// Returns the peer's attached words, in the shape that its header told.
    fn words(&self, shape: Shape) -> Attachment {
        frame::decode_words(shape, &self.incoming[HEADER..])
    }

    /// Returns the peer's attachment to the last frame.
    pub fn attachment(&self) -> Attachment {
        let header = self.header();
        header.map_or(Attachment::NONE, |header| self.words(header.shape))
    }

    /// Compares the peer's head, once it is here, with the expected one.
    pub fn check(&self, ours: Operation, attachment: &Attachment) -> Result<(), Unexpected> {
        let Some(theirs) = self.header() else {
            return Ok(());
        };
        let shape = attachment.shape();
        if theirs.operation != ours {
            // Words tell why ranks that differ run different operations.
            let both = shape != Shape::NONE && theirs.shape != Shape::NONE;
            let here = self.got >= self.in_head;
            return match both {
                true if !here && !self.closed => Ok(()),
                true if here && attachment.differs(&self.words(theirs.shape)) => {
                    Err(Unexpected::Attachment)
                }
                _ => Err(Unexpected::Operation(theirs.operation)),
            };
        }
        let attached = theirs.shape != Shape::NONE || shape != Shape::NONE;
        if attached && self.got >= self.in_head {
            let theirs = self.words(theirs.shape);
            if !attachment.agrees(&theirs) {
                return Err(Unexpected::Attachment);
            }
        }
        if theirs.elements != self.elements {
            return Err(Unexpected::Operation(theirs.operation));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::Kind;

    /// Returns two ends of a connection.
    fn links() -> [Link; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("it is bound");
        let one = TcpStream::connect(address).expect("connect");
        let (other, _) = listener.accept().expect("accept");
        [one, other].map(|stream| Link::connect(stream, None).expect("without TLS"))
    }

    /// Operations are compared by digests of what each rank brings. A peer that announces
    /// another number of elements runs another operation, however its digest came about.
    #[test]
    fn a_peer_that_brings_other_than_was_expected_is_found() {
        let operation = Operation {
            group: 0,
            sequence: 3,
            kind: Kind::AllGather,
            length: 7,
            detail: 1,
        };
        for (brings, expected) in [(4, 4), (3, 4), (5, 4), (0, 4)] {
            let [here, there] = links();
            let (mut ours, mut theirs) = (Lane::IDLE, Lane::IDLE);
            theirs.start(operation, &Attachment::NONE, brings, 0);
            ours.start(operation, &Attachment::NONE, 0, expected);
            theirs.write(&there, &[7; 20]);
            drop(there);
            ours.read(&here, &mut [0; 16]);
            let found = ours.check(operation, &Attachment::NONE);
            assert_eq!(found.is_ok(), brings == expected, "{brings}");
        }
    }
}
