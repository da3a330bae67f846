//! Plain HTTP at a port that speaks TLS. The client is told to use TLS, as other
//! servers do.

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The whole answer, in a form that every client of HTTP/1.1 reads.
const ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    content-type: text/plain\r\ncontent-length: 63\r\nconnection: close\r\n\r\n\
    This port speaks TLS. Use https:// (over gRPC: with TLS) here.\n";
/// Bytes of a request that are read before the connection ends. Unread bytes would make
/// the system drop the answer.
const TAKEN: u64 = 64 << 10;

/// Returns the connection unchanged, unless it begins with a letter as HTTP's requests
/// do.
///
/// # Errors
/// `InvalidData` for plain HTTP, which has got its answer.
pub(super) async fn refused(mut stream: TcpStream) -> io::Result<TcpStream> {
    // The byte is only peeked at, so TLS reads it again. TLS begins with a byte that is
    // no letter.
    let mut first = [0];
    let came = stream.peek(&mut first).await?;
    if came == 0 || !first[0].is_ascii_alphabetic() {
        return Ok(stream);
    }
    stream.write_all(ANSWER).await?;
    stream.shutdown().await?;
    let mut rest = stream.take(TAKEN);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        "it speaks HTTP without TLS",
    ))
}
