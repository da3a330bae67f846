//! HTTP/2 frames for requests that no client library would send (RFC 9113).

use tokio::io::{AsyncRead, AsyncReadExt};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame");
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns the preface and empty settings.
pub fn hello() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// Returns the preface and settings that grant no stream any window for its answer.
pub fn hello_without_windows() -> Vec<u8> {
    let initial_window = [0, 4, 0, 0, 0, 0];
    [PREFACE, &frame(SETTINGS, 0, 0, &initial_window)].concat()
}

/// Returns the head of a gRPC call whose body follows.
pub fn headers(stream: u32, path: &str) -> Vec<u8> {
    // `:method: POST` and `:scheme: http` come from the static table. The others are
    // literals with names from that table (RFC 7541).
    let mut block = vec![0x83, 0x86];
    let mut literal = |name: &[u8], value: &str| {
        block.extend(name);
        block.push(u8::try_from(value.len()).expect("a short value"));
        block.extend(value.as_bytes());
    };
    literal(&[0x04], path);
    literal(&[0x01], "x");
    literal(&[0x0f, 31 - 15], "application/grpc");
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// Returns a part of a stream's body.
pub fn data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, 0, stream, bytes)
}

/// Returns the last part of a stream's body.
pub fn last_data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, END_STREAM, stream, bytes)
}

/// Returns a frame that grants more window for the server's answer.
pub fn window_update(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

/// Returns a ping, which asks for an answer.
pub fn ping() -> Vec<u8> {
    frame(PING, 0, 0, &[7; 8])
}

/// Returns kind, flags and stream of the next frame; `None` at the connection's end.
async fn next(read: &mut (impl AsyncRead + Unpin)) -> Option<(u8, u8, u32)> {
    let mut head = [0; 9];
    read.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    read.read_exact(&mut payload).await.ok()?;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Some((head[3], head[4], stream))
}

/// Waits until the server ends a stream: by an answer, by a reset, or with the
/// connection.
pub async fn stream_ends(read: &mut (impl AsyncRead + Unpin), stream: u32) {
    while let Some((kind, flags, of)) = next(read).await {
        let last = matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0;
        if of == stream && (last || kind == RST_STREAM) {
            return;
        }
    }
}

/// Waits for the server. Returns true if it says goodbye or hangs up, and false if it
/// answers a ping.
pub async fn until_goaway_or_pong(read: &mut (impl AsyncRead + Unpin)) -> bool {
    while let Some((kind, flags, _)) = next(read).await {
        match kind {
            GOAWAY => return true,
            PING if flags & ACK != 0 => return false,
            _ => {}
        }
    }
    true
}
