//! Detection of a connection's protocol by its first bytes, which are then read again.
//!
//! hyper-util looks at them too, but without a time limit (hyper #3756): a silent
//! connection would stay forever.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::{
    budget::{Budget, Charge, OverBudget},
    places::{ActiveRequest, Place},
    port::Budgets,
    report::Closed,
};

/// Bytes of a head that are not charged. Most heads are smaller, and the connection
/// itself takes more.
const SMALL_HEAD: usize = 4 << 10;
/// RFC 9113, 3.4.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The bytes of a connection, in TLS if its port speaks TLS.
pub(crate) type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A connection whose first bytes are known.
pub(crate) struct PeekedStream {
    stream: Stream,
    first: [u8; PREFACE.len()],
    /// Number of first bytes that came, and number of them that were read again.
    came: usize,
    read: usize,
    pub(crate) http2: bool,
    /// The connection's place; it learns when a head begins over HTTP/1.1.
    place: Arc<Place>,
    /// Present while the socket does not take bytes. It keeps the place like an answer,
    /// since the answer itself may have ended when its bytes were handed over.
    unsent: Option<ActiveRequest>,
    /// State of an HTTP/1.1 head until its request has ended; `None` if nothing is
    /// charged.
    head: Option<Head>,
    /// Set if the last bytes found no memory. It ends the connection, unless a head
    /// ended with those bytes: then the request is answered.
    over: Option<OverBudget>,
}

/// Bytes of a head so far, and the memory taken for them.
struct Head {
    bytes: usize,
    budget: Arc<Budget>,
    room: Option<Charge>,
}

impl Head {
    /// Charges `bytes` more.
    fn came(&mut self, bytes: usize) -> Result<(), OverBudget> {
        self.bytes += bytes;
        let beyond = self.bytes.saturating_sub(SMALL_HEAD);
        if beyond == 0 {
            return Ok(());
        }
        let room = self.room.get_or_insert_with(|| self.budget.charge());
        room.add(beyond - room.bytes())
    }
}

impl PeekedStream {
    /// Reads until HTTP/2's preface is complete or impossible.
    ///
    /// # Errors
    /// `UnexpectedEof` if the connection ends before, and errors of the system.
    pub(crate) async fn peek(
        mut stream: Stream,
        place: Arc<Place>,
        budgets: Option<&Budgets>,
    ) -> io::Result<Self> {
        let mut first = [0; PREFACE.len()];
        let mut came = 0;
        let http2 = loop {
            let read = stream.read(&mut first[came..]).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            came += read;
            if first[..came] != PREFACE[..came] {
                break false;
            }
            if came == PREFACE.len() {
                break true;
            }
        };
        place.detected(http2);
        Ok(Self {
            stream,
            first,
            came,
            read: 0,
            http2,
            place,
            unsent: None,
            head: budgets.filter(|_| !http2).map(|budgets| Head {
                bytes: 0,
                budget: budgets.all().clone(),
                room: None,
            }),
            over: None,
        })
    }

    /// Handles bytes that came over HTTP/1.1.
    fn heard(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let begins = self.place.heard();
        let in_service = self.is_in_service();
        if begins || in_service {
            self.forget_head();
        }
        match &mut self.head {
            Some(head) if !in_service => head.came(bytes),
            // These bytes are no head, or a head that its client was told to hold back.
            _ => Ok(()),
        }
    }

    /// Returns true if a request is in service, besides an answer that has only to be
    /// sent.
    fn is_in_service(&self) -> bool {
        self.place.requests() > usize::from(self.unsent.is_some())
    }

    fn forget_head(&mut self) {
        if let Some(head) = &mut self.head {
            (head.bytes, head.room) = (0, None);
        }
    }

    /// Frees the head's memory after its request has ended, since nobody knows when
    /// another head comes.
    fn settle(&mut self) {
        if self.place.expects_head() {
            self.forget_head();
        }
    }

    /// Records whether the socket took the bytes that TLS held. Without TLS, a flush
    /// says nothing about that.
    fn flushed<T>(&mut self, flushed: Poll<T>) -> Poll<T> {
        match &self.stream {
            Either::Left(_) => flushed,
            Either::Right(_) => self.wrote(flushed),
        }
    }

    /// Records whether the socket took bytes.
    fn wrote<T>(&mut self, written: Poll<T>) -> Poll<T> {
        if written.is_ready() {
            self.unsent = None;
            self.settle();
        } else if self.unsent.is_none() {
            let unsent = self.place.enter();
            unsent.hand_over();
            self.unsent = Some(unsent);
        }
        written
    }
}

impl AsyncRead for PeekedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read < self.came {
            let end = self.came.min(self.read + buffer.remaining());
            buffer.put_slice(&self.first[self.read..end]);
            self.read = end;
            return Poll::Ready(Ok(()));
        }
        if let Some(over) = self.over.take()
            && !self.is_in_service()
            && !self.place.expects_head()
        {
            self.place.places().count(Closed::OverBudget);
            return Poll::Ready(Err(io::Error::other(over)));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let bytes = buffer.filled().len() - before;
        if self.http2 {
            return read;
        }
        if bytes > 0 {
            self.over = self.heard(bytes).err();
        } else {
            self.settle();
        }
        read
    }
}

impl AsyncWrite for PeekedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.flushed(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.flushed(flushed)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
