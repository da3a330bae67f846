//! Raw bytes, for requests that no HTTP client would send.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http::Answer;
use crate::wait::{LIMIT, within};

/// Connects to a port of this machine.
///
/// # Panics
/// Panics if nobody listens.
pub async fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port))
        .await
        .expect("somebody listens")
}

/// Sends `request` and reads until the server closes the connection, or has sent
/// nothing for `quiet`.
///
/// # Panics
/// Panics if the server neither answers nor closes.
pub async fn exchange(port: u16, request: &[u8], quiet: Duration) -> Vec<u8> {
    let mut stream = connect(port).await;
    // The send may fail: a server that refuses a large request may close before it has
    // read it.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let limit = if answer.is_empty() { LIMIT } else { quiet };
        match tokio::time::timeout(limit, stream.read(&mut buffer)).await {
            Ok(Ok(read)) if read > 0 => answer.extend_from_slice(&buffer[..read]),
            Ok(_) => return answer,
            Err(_) if answer.is_empty() => panic!("neither answered nor closed"),
            Err(_) => return answer,
        }
    }
}

/// Sends a complete HTTP/1.1 request on a connection of its own, which the request asks
/// to close. Returns the answer; `None` if the server just closes.
///
/// # Panics
/// Panics if the answer is not HTTP, or there is none in time.
pub async fn http(port: u16, request: &[u8]) -> Option<Answer> {
    let all = within("an answer", LIMIT, read_all(port, request)).await;
    if all.is_empty() {
        return None;
    }
    let text = String::from_utf8(all).expect("answers are UTF-8");
    let status = text
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .unwrap_or_else(|| panic!("no HTTP: {text:?}"));
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Some(Answer {
        status,
        headers: reqwest::header::HeaderMap::new(),
        text: body.to_owned(),
    })
}

async fn read_all(port: u16, request: &[u8]) -> Vec<u8> {
    let mut stream = connect(port).await;
    // The send may fail, as in `exchange`.
    let _ = stream.write_all(request).await;
    let mut all = Vec::new();
    // A reset after the answer leaves the bytes that were read.
    let _ = stream.read_to_end(&mut all).await;
    all
}
