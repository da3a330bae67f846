//! Many connections that do too little.

use std::{io::ErrorKind, net::SocketAddr};

use futures::future::join_all;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::raw::connect;

/// `count` connections from 127.0.0.1 that say nothing.
///
/// # Panics
/// When nobody listens.
pub async fn silent(port: u16, count: usize) -> Vec<TcpStream> {
    silent_from("127.0.0.1", port, count).await
}

/// The same from another address of this machine.
///
/// # Panics
/// When nobody listens.
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

/// A connection that says `bytes` and no more.
///
/// # Panics
/// When nobody listens.
pub async fn begin(port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = connect(port).await;
    stream.write_all(bytes).await.expect("sent");
    stream
}

/// The same from another address of this machine.
///
/// # Panics
/// When nobody listens.
pub async fn begin_from(address: &str, port: u16, bytes: &[u8]) -> TcpStream {
    let mut streams = silent_from(address, port, 1).await;
    let mut stream = streams.pop().expect("one");
    stream.write_all(bytes).await.expect("sent");
    stream
}

/// Waits until the server has closed them all.
pub async fn closed(streams: Vec<TcpStream>) {
    join_all(streams.into_iter().map(|mut stream| async move {
        // A reset is an end too.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }))
    .await;
}

/// How many of them the server has not closed yet, as far as it is known here.
pub fn open(streams: &[TcpStream]) -> usize {
    let open = |stream: &&TcpStream| {
        let read = stream.try_read(&mut [0]);
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    streams.iter().filter(open).count()
}
