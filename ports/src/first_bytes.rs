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

use crate::places::{InService, Place};

/// RFC 9113, 3.4.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose first bytes are known.
pub(crate) struct Visitor {
    stream: TcpStream,
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
}

impl Visitor {
    /// Reads until HTTP/2's preface is whole, or can't become it.
    ///
    /// # Errors
    /// `UnexpectedEof` when it ends before, and what the system says.
    pub(crate) async fn meet(mut stream: TcpStream, place: Arc<Place>) -> io::Result<Self> {
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
        })
    }

    /// Notes whether the socket took bytes.
    fn wrote<T>(&mut self, written: Poll<T>) -> Poll<T> {
        if written.is_ready() {
            self.unsent = None;
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
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if !self.http2 && buffer.filled().len() > before {
            self.place.heard();
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
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
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
