//! Checks that public ports can be opened, with remedies if they can't.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};

use lockstep_types::ServerConfig;

/// Number of ports above a taken port that are tried.
const NEAR: u16 = 1000;
/// First port that needs no privilege (Linux's `ip_unprivileged_port_start`).
const PRIVILEGED: u16 = 1024;

/// The ports that a server opens on its host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ports {
    host: String,
    /// The ports, each with its option.
    all: Vec<(&'static str, u16)>,
    /// True if the port of gRPC follows the port of HTTP.
    grpc_follows: bool,
}

/// An address that nothing can listen on.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The option to blame, with its value.
    what: String,
    source: io::Error,
    remedy: String,
}

impl Refusal {
    /// The error without the remedy.
    pub(crate) fn found(&self) -> String {
        format!("{}: {}", self.what, self.source)
    }

    /// The remedy, as a sentence without its full stop.
    pub(crate) fn remedy(&self) -> &str {
        &self.remedy
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {}.", self.found(), self.remedy)
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl Ports {
    /// The ports of a configuration. `grpc_follows` is true if `--grpc-port` is not given.
    pub(crate) fn of(server: &ServerConfig, grpc_follows: bool) -> Self {
        let (grpc, sglang) = (server.grpc_port, server.sglang_grpc_port);
        Self::new(
            &server.host,
            [Some(server.port), grpc, sglang],
            grpc_follows,
        )
    }

    /// The ports of HTTP, gRPC and SGLang's service, if they are open.
    pub(crate) fn new(host: &str, ports: [Option<u16>; 3], grpc_follows: bool) -> Self {
        let options = ["--port", "--grpc-port", "--sglang-grpc-port"];
        let named = options.into_iter().zip(ports);
        Self {
            host: host.to_owned(),
            all: named
                .filter_map(|(option, port)| Some((option, port?)))
                .collect(),
            grpc_follows,
        }
    }

    /// The host on which the ports are opened.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The ports, each with its option.
    pub(crate) fn all(&self) -> &[(&'static str, u16)] {
        &self.all
    }

    /// Listens on a port as a server would, and closes it again.
    ///
    /// # Errors
    /// The reason why nothing can listen there, and a remedy.
    pub(crate) fn try_out(&self, option: &'static str, port: u16) -> Result<(), Refusal> {
        let host = self.host.as_str();
        let of_host = |source| Refusal {
            what: format!("--host {host}"),
            source,
            remedy: "Give an address of this machine, or a name that leads to one; 0.0.0.0 \
                     listens on every interface"
                .to_owned(),
        };
        let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(of_host)?.collect();
        let Err(source) = TcpListener::bind(addresses.as_slice()) else {
            return Ok(());
        };
        let remedy = match source.kind() {
            ErrorKind::AddrNotAvailable => return Err(of_host(source)),
            ErrorKind::AddrInUse => format!(
                "End what listens there (`ss -ltnp` names it), or give {}",
                self.other(&addresses, option, port)
            ),
            ErrorKind::PermissionDenied => format!(
                "Give {option} {PRIVILEGED} or more; those below are for root and for programs \
                 with CAP_NET_BIND_SERVICE"
            ),
            _ => format!("Give another {option}; see also --host"),
        };
        Err(Refusal {
            what: format!("{option} {host}:{port}"),
            source,
            remedy,
        })
    }

    /// Option and port that are free instead of a taken port, at addresses of the host.
    fn other(&self, addresses: &[SocketAddr], option: &'static str, taken: u16) -> String {
        let both = self.grpc_follows && option != "--sglang-grpc-port";
        let (option, ports) = if both { ("--port", 2) } else { (option, 1) };
        match self.free_above(addresses, taken, ports) {
            Some(first) if both => {
                format!("--port {first}: it and {}, for gRPC, are free", first + 1)
            }
            Some(free) => format!("{option} {free}, which is free"),
            None => format!("another {option}"),
        }
    }

    /// The first port of `ports` free ports in a row above a taken one.
    fn free_above(&self, addresses: &[SocketAddr], taken: u16, ports: u16) -> Option<u16> {
        let own = |port| self.all.iter().any(|(_, own)| *own == port);
        let can_listen = |port| {
            let at_port = addresses.iter().map(|at| SocketAddr::new(at.ip(), port));
            TcpListener::bind(at_port.collect::<Vec<_>>().as_slice()).is_ok()
        };
        let free = |port| !own(port) && can_listen(port);
        let more = ports - 1;
        let last = taken.saturating_add(NEAR).min(u16::MAX - more);
        (taken.checked_add(1)?..=last).find(|first| (*first..=*first + more).all(free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "127.0.0.1";

    /// Ports in a row that are taken, with a free one behind them. Another test may take
    /// that one in the meantime; then other ports are looked for.
    fn taken(ports: u16) -> Vec<TcpListener> {
        loop {
            let first = TcpListener::bind((HERE, 0)).expect("a port");
            let port = first.local_addr().expect("bound").port();
            let others =
                (1..ports).map(|more| TcpListener::bind((HERE, port.checked_add(more)?)).ok());
            if port < u16::MAX - NEAR
                && let Some(others) = others.collect::<Option<Vec<_>>>()
            {
                return std::iter::once(first).chain(others).collect();
            }
        }
    }

    fn here() -> Vec<SocketAddr> {
        vec![SocketAddr::from(([127, 0, 0, 1], 0))]
    }

    fn port(listener: &TcpListener) -> u16 {
        listener.local_addr().expect("bound").port()
    }

    fn said(ports: &Ports) -> String {
        let mut refused = ports
            .all()
            .iter()
            .map(|(option, port)| ports.try_out(option, *port));
        let refused = refused.find_map(Result::err);
        refused.map_or_else(String::new, |refusal| refusal.to_string())
    }

    /// The number in `text` that follows `before`.
    fn number(text: &str, before: &str) -> u16 {
        let (_, rest) = text
            .split_once(before)
            .unwrap_or_else(|| panic!("{before:?}: {text}"));
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits
            .parse()
            .unwrap_or_else(|_| panic!("{before:?}: {text}"))
    }

    #[test]
    fn a_host_that_is_none_is_blamed_on_its_option() {
        for host in ["nowhere.invalid", "192.0.2.1"] {
            let ports = Ports::new(host, [Some(8000), None, None], true);
            let refused = said(&ports);
            let begin = format!("--host {host}: ");
            assert!(refused.starts_with(&begin), "{refused}");
            assert!(refused.contains("0.0.0.0"), "{refused}");
            assert!(!refused.contains("--port"), "{refused}");
        }
    }

    #[test]
    fn a_taken_port_brings_a_pair_that_is_free() {
        let held = taken(3);
        let first = port(&held[0]);
        for (http, grpc, blamed) in [
            (first, first + 1, "--port"),
            (first - 1, first, "--grpc-port"),
        ] {
            let ports = Ports::new(HERE, [Some(http), Some(grpc), None], true);
            let refused = ports.try_out(blamed, first).expect_err("taken").to_string();
            let begin = format!("{blamed} {HERE}:{first}: ");
            assert!(refused.starts_with(&begin), "{refused}");
            let free = number(&refused, "give --port ");
            assert!(free > port(&held[2]), "{refused}");
            let said = format!("it and {}, for gRPC", free + 1);
            assert!(refused.contains(&said), "{refused}");
        }
    }

    #[test]
    fn a_port_that_is_named_alone_is_replaced_alone() {
        let held = taken(2);
        let first = port(&held[0]);
        // The next free port is another service's own.
        let own = port(&held[1]) + 1;
        for option in ["--port", "--grpc-port", "--sglang-grpc-port"] {
            let ports = Ports {
                host: HERE.to_owned(),
                all: vec![(option, first), ("--other", own)],
                grpc_follows: false,
            };
            let refused = ports.try_out(option, first).expect_err("taken").to_string();
            let free = number(&refused, &format!("give {option} "));
            assert!(free > own, "{refused}");
            assert!(refused.ends_with("which is free."), "{refused}");
        }
    }

    #[test]
    fn above_the_last_port_there_is_none() {
        let ports = Ports::new(HERE, [None; 3], true);
        let free = |taken, in_a_row| ports.free_above(&here(), taken, in_a_row);
        assert_eq!(free(u16::MAX, 1), None);
        assert_eq!(free(u16::MAX - 1, 2), None);
    }

    /// The last ports are tried, and no number behind them.
    #[test]
    fn the_last_ports_are_tried() {
        let ports = Ports::new(HERE, [None; 3], true);
        for (taken, in_a_row) in [(u16::MAX - 1, 1), (u16::MAX - 2, 2)] {
            let held = TcpListener::bind((HERE, u16::MAX));
            let found = ports.free_above(&here(), taken, in_a_row);
            assert_eq!(found, None, "the last one is taken");
            // They are free unless another program has one of them.
            drop(held);
            let found = ports.free_above(&here(), taken, in_a_row);
            assert!([None, Some(taken + 1)].contains(&found), "{found:?}");
        }
    }
}
