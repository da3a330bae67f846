//! Listening sockets, and socket options of their connections.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};

/// Connections that the kernel holds before they are accepted.
const BACKLOG: i32 = 4096;
/// Time after which an idle connection is probed, and time between probes.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// Time without an acknowledgement of sent data after which a peer counts as gone.
const UNACKNOWLEDGED: Duration = Duration::from_secs(120);

/// Listens on an address, `host:port` or the two apart. If a name has several
/// addresses, it listens on the first that can be bound. With `shared`, other processes
/// may listen there too, and the kernel spreads connections over them. Without
/// `shared`, a port that another server uses is an error. Needs a tokio runtime.
///
/// # Errors
/// The address does not resolve, or cannot be bound.
pub fn listen(address: impl ToSocketAddrs, shared: bool) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name stands for no address");
    for address in address.to_socket_addrs()? {
        match bind(address, shared) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Sets options for small events and lost peers. Small events are sent at once. The
/// server notices peers that vanished or stopped reading.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    // Without this option, each small event would wait for the acknowledgement of the
    // last.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new()
        .with_time(PROBE_AFTER)
        .with_interval(PROBE_EVERY);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_is_shared_only_among_those_that_mean_to() {
        let port = |listener: &TcpListener| listener.local_addr().expect("bound").port();
        let at = |port| ("127.0.0.1", port);
        let shared = listen(at(0), true).expect("a free port");
        listen(at(port(&shared)), true).expect("several processes");
        listen(at(port(&shared)), false).expect_err("a server of its own");
        let alone = listen("127.0.0.1:0", false).expect("a free port");
        listen(at(port(&alone)), true).expect_err("taken");
        listen("127.0.0.1", false).expect_err("no port");
    }
}
