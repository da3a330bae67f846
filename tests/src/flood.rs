//! Many connections that send too little.

use std::{io::ErrorKind, net::SocketAddr};

use futures::future::join_all;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::raw::connect;

/// Opens `count` silent connections from 127.0.0.1.
///
/// # Panics
/// Panics if nobody listens.
pub async fn silent(port: u16, count: usize) -> Vec<TcpStream> {
    silent_from("127.0.0.1", port, count).await
}

/// Opens `count` silent connections from another address of this machine.
///
/// # Panics
/// Panics if nobody listens.
pub async fn silent_from(address: &str, port: u16, count: usize) -> Vec<TcpStream> {
    let from: SocketAddr = format!("{address}:0").parse().expect("an address");
    let to: SocketAddr = ([127, 0, 0, 1], port).into();
    let mut streams = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4().expect("a descriptor");
        socket.bind(from).expect("an address of this machine");
        streams.push(socket.connect(to).await.expect("somebody listens"));
    }
    streams
}

/// Opens a connection that sends `bytes` and then nothing.
///
/// # Panics
/// Panics if nobody listens.
pub async fn begin(port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = connect(port).await;
    stream.write_all(bytes).await.expect("sent");
    stream
}

/// Opens a connection from another address of this machine, which sends `bytes` and
/// then nothing.
///
/// # Panics
/// Panics if nobody listens.
pub async fn begin_from(address: &str, port: u16, bytes: &[u8]) -> TcpStream {
    let mut streams = silent_from(address, port, 1).await;
    let mut stream = streams.pop().expect("one");
    stream.write_all(bytes).await.expect("sent");
    stream
}

/// Waits until the server has closed all connections.
pub async fn closed(streams: Vec<TcpStream>) {
    join_all(streams.into_iter().map(|mut stream| async move {
        // A reset counts as an end too.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }))
    .await;
}

/// Returns the number of connections that the server has not closed yet, as far as
/// known here.
pub fn open(streams: &[TcpStream]) -> usize {
    let open = |stream: &&TcpStream| {
        let read = stream.try_read(&mut [0]);
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    streams.iter().filter(open).count()
}
