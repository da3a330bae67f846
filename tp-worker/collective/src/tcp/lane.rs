//! The two directions of one connection during one transfer.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;

use super::frame::{self, HEADER};
use crate::Operation;

/// Progress of one frame each way.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    outgoing: [u8; HEADER],
    incoming: [u8; HEADER],
    /// Bytes sent and received, headers included.
    sent: usize,
    got: usize,
    /// Bytes to send and receive, headers included.
    to_send: usize,
    to_get: usize,
    /// Whether the peer has closed its side or the connection is lost.
    closed: bool,
    /// Elements that the peer's header must announce.
    elements: u64,
}

/// What a peer's header says, if it is not what was expected.
pub(crate) struct Unexpected(pub Operation);

impl Lane {
    /// A lane with nothing to do.
    pub const IDLE: Self = Self {
        outgoing: [0; HEADER],
        incoming: [0; HEADER],
        sent: 0,
        got: 0,
        to_send: 0,
        to_get: 0,
        closed: false,
        elements: 0,
    };

    /// Starts a frame of `send` elements out and one of `receive` elements in.
    pub fn start(&mut self, operation: Operation, send: usize, receive: usize) {
        self.outgoing = frame::encode(operation, send);
        (self.sent, self.got) = (0, 0);
        self.elements = receive as u64;
        self.to_send = HEADER + send * size_of::<f32>();
        self.to_get = HEADER + receive * size_of::<f32>();
    }

    pub fn wants_write(&self) -> bool {
        !self.closed && self.sent < self.to_send
    }

    pub fn wants_read(&self) -> bool {
        !self.closed && self.got < self.to_get
    }

    /// Whether both frames are through.
    pub fn done(&self) -> bool {
        self.sent == self.to_send && self.got == self.to_get
    }

    /// Whether the peer is gone before the frames were through.
    pub fn lost(&self) -> bool {
        self.closed && !self.done()
    }

    /// Stops sending after the header and reading into the payload: all that
    /// matters now is what the peer runs.
    pub fn headers_only(&mut self) {
        self.to_send = self.to_send.min(self.sent.max(HEADER));
        self.to_get = self.to_get.min(self.got.max(HEADER));
    }

    /// Sends what the socket takes of the header and `payload`.
    pub fn write(&mut self, mut stream: &TcpStream, payload: &[u8]) {
        while self.wants_write() {
            let header = &self.outgoing[self.sent.min(HEADER)..];
            let payload =
                &payload[self.sent.saturating_sub(HEADER)..self.to_send.max(HEADER) - HEADER];
            match stream.write_vectored(&[IoSlice::new(header), IoSlice::new(payload)]) {
                Ok(0) => self.closed = true,
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // What the peer sent before it left may still be readable.
                Err(_) => self.to_send = self.sent,
            }
        }
    }

    /// Reads what the socket has, the payload into `payload`.
    pub fn read(&mut self, mut stream: &TcpStream, payload: &mut [u8]) {
        while self.wants_read() {
            let header = &mut self.incoming[self.got.min(HEADER)..];
            let payload =
                &mut payload[self.got.saturating_sub(HEADER)..self.to_get.max(HEADER) - HEADER];
            match stream.read_vectored(&mut [IoSliceMut::new(header), IoSliceMut::new(payload)]) {
                Ok(0) => self.closed = true,
                Ok(count) => self.got += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.closed = true,
            }
        }
    }

    /// Compares the peer's header, once it is here, with what was expected.
    pub fn check(&self, ours: Operation) -> Result<(), Unexpected> {
        if self.got < HEADER {
            return Ok(());
        }
        let (theirs, elements) = frame::decode(&self.incoming);
        if theirs != ours || elements != self.elements {
            Err(Unexpected(theirs))
        } else {
            Ok(())
        }
    }
}
