//! HTTP without TLS at a port that speaks it: told what to do, as other servers do.

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// What follows the status line, in a language that every client of HTTP/1.1 reads.
const ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    content-type: text/plain\r\ncontent-length: 63\r\nconnection: close\r\n\r\n\
    This port speaks TLS. Use https:// (over gRPC: with TLS) here.\n";
/// Bytes of a request that are taken before the connection ends; what is not taken makes
/// the system drop the answer.
const TAKEN: u64 = 64 << 10;

/// Gives the connection back, unless it begins with a word as HTTP's requests do.
///
/// # Errors
/// `InvalidData` for plain HTTP, which has got its answer.
pub(super) async fn refused(mut stream: TcpStream) -> io::Result<TcpStream> {
    // Nothing is taken: TLS reads it again. It begins with a byte that is no letter.
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
