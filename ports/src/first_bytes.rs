//! What a connection speaks, by its first bytes, which are then read again.
//!
//! hyper-util looks at them too, without a limit in time (hyper #3756): a
//! connection that says nothing would stay for ever.

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
    places::{InService, Place},
    port::Budgets,
    report::Closed,
};

/// So many bytes of a head are not charged: most have less, and the connection
/// itself takes more.
const SMALL_HEAD: usize = 4 << 10;
/// RFC 9113, 3.4.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What comes over a connection, in TLS where its port speaks that.
pub(crate) type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A connection whose first bytes are known.
pub(crate) struct Visitor {
    stream: Stream,
    first: [u8; PREFACE.len()],
    /// Of the first bytes: how many came, and how many were read again.
    came: usize,
    read: usize,
    pub(crate) http2: bool,
    /// Hears when a head may begin, over HTTP/1.1.
    place: Arc<Place>,
    /// While there are bytes that the socket does not take: they keep the place
    /// as an answer does, which may have ended when they were handed over.
    unsent: Option<InService>,
    /// For an HTTP/1.1 head, until its request has ended; `None` where nothing is
    /// charged.
    head: Option<Head>,
    /// What came last found no room, and ends the connection unless a head ended
    /// with it: then its request is answered.
    over: Option<OverBudget>,
}

/// What has come of a head, and its room.
struct Head {
    bytes: usize,
    budget: Arc<Budget>,
    room: Option<Charge>,
}

impl Head {
    /// Takes in `bytes` more that came.
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

impl Visitor {
    /// Reads until HTTP/2's preface is whole, or can't become it.
    ///
    /// # Errors
    /// `UnexpectedEof` when it ends before, and what the system says.
    pub(crate) async fn meet(
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

    /// Bytes came over HTTP/1.1.
    fn heard(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let begins = self.place.heard();
        let in_service = self.is_in_service();
        if begins || in_service {
            self.forget_head();
        }
        match &mut self.head {
            Some(head) if !in_service => head.came(bytes),
            // It is no head, or one that its client was told to wait with.
            _ => Ok(()),
        }
    }

    /// Whether a request is under way, beside an answer that has only to be sent.
    fn is_in_service(&self) -> bool {
        self.place.requests() > usize::from(self.unsent.is_some())
    }

    fn forget_head(&mut self) {
        if let Some(head) = &mut self.head {
            (head.bytes, head.room) = (0, None);
        }
    }

    /// A request that has ended keeps no room for its head while nobody knows
    /// whether another comes.
    fn settle(&mut self) {
        if self.place.expects_head() {
            self.forget_head();
        }
    }

    /// Notes whether the socket took what TLS had taken before. Of one without TLS a flush
    /// says nothing.
    fn flushed<T>(&mut self, flushed: Poll<T>) -> Poll<T> {
        match &self.stream {
            Either::Left(_) => flushed,
            Either::Right(_) => self.wrote(flushed),
        }
    }

    /// Notes whether the socket took bytes.
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

impl AsyncRead for Visitor {
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

impl AsyncWrite for Visitor {
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
