//! A connection to another rank, with or without TLS.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

/// TLS configurations of ranks that speak TLS.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Configuration of the rank that connects. It asks for a name that no certificate has.
    pub client: Arc<ClientConfig>,
    /// Configuration of the rank that accepts.
    pub server: Arc<ServerConfig>,
}

/// The name by which a rank that connects calls the other.
const NAME: &str = "rank.lockstep.internal";

/// A connection that one thread at a time reads and writes.
pub(crate) struct Link {
    stream: TcpStream,
    /// The TLS session; `None` if data is not encrypted.
    session: Option<Mutex<Connection>>,
}

impl Link {
    /// Makes a connection to a rank that has connected.
    pub fn accept(stream: TcpStream, tls: Option<&Tls>) -> io::Result<Self> {
        let session = |tls: &Tls| ServerConnection::new(tls.server.clone()).map(Into::into);
        Self::new(stream, tls.map(session))
    }

    /// Makes a connection to a rank that accepts.
    pub fn connect(stream: TcpStream, tls: Option<&Tls>) -> io::Result<Self> {
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let session = |tls: &Tls| ClientConnection::new(tls.client.clone(), name).map(Into::into);
        Self::new(stream, tls.map(session))
    }

    fn new(
        stream: TcpStream,
        session: Option<Result<Connection, rustls::Error>>,
    ) -> io::Result<Self> {
        let session = session.transpose().map_err(io::Error::other)?;
        Ok(Self {
            stream,
            session: session.map(Mutex::new),
        })
    }

    /// Returns the socket, to wait for it and to close it.
    pub fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// Reads the bytes that have come. Agreeing on keys is a part of it.
    pub fn receive(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let Some(mut session) = self.session() else {
            return (&self.stream).read_vectored(parts);
        };
        loop {
            match session.reader().read_vectored(parts) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            // Data that a peer sent before it left may still be read.
            let _ = send(&mut session, &self.stream);
            if session.read_tls(&mut &self.stream)? == 0 {
                return Ok(0);
            }
            if let Err(error) = session.process_new_packets() {
                // Tells the other side the reason.
                let _ = send(&mut session, &self.stream);
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
        }
    }

    /// Takes bytes to send. Some may wait until [`Self::flush`].
    pub fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(mut session) = self.session() else {
            return (&self.stream).write_vectored(parts);
        };
        loop {
            let taken = session.writer().write_vectored(parts)?;
            match send(&mut session, &self.stream) {
                Err(error) if taken == 0 || error.kind() != ErrorKind::WouldBlock => {
                    return Err(error);
                }
                // The bytes that filled the buffer are gone, so try again.
                Ok(()) if taken == 0 && parts.iter().any(|part| !part.is_empty()) => {}
                _ => return Ok(taken),
            }
        }
    }

    /// Sends the bytes that wait. Returns true if none wait any more, or ever will.
    pub fn flush(&self) -> bool {
        let Some(mut session) = self.session() else {
            return true;
        };
        let sent = send(&mut session, &self.stream);
        sent.err()
            .is_none_or(|error| error.kind() != ErrorKind::WouldBlock)
    }

    fn session(&self) -> Option<MutexGuard<'_, Connection>> {
        let session = self.session.as_ref()?;
        Some(session.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn send(session: &mut Connection, mut stream: &TcpStream) -> io::Result<()> {
    while session.wants_write() {
        match session.write_tls(&mut stream) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) => {}
        }
    }
    Ok(())
}

impl Read for Link {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(&mut [IoSliceMut::new(buffer)])
    }
}

impl Write for Link {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.send(&[IoSlice::new(buffer)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
