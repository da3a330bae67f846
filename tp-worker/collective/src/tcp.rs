//! Ranks on several machines, over a full mesh of TCP connections.

mod door;
mod frame;
mod handshake;
mod lane;
mod link;
mod links;
mod mac;
mod member;
mod mesh;

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;

pub use link::Tls;
use links::Links;
use member::Member;

use crate::group::Group;
use crate::membership::Membership;
use crate::patience::Patience;
use crate::{CollectiveError, Options};

#[cfg(target_endian = "big")]
compile_error!("frames carry little-endian elements as they lie in memory");

/// One rank of a group whose ranks are connected by TCP.
///
/// The secret keeps strangers and other groups out. If the ranks speak [`Tls`], later data is
/// encrypted and authenticated. Otherwise the network between them has to be a trusted one.
pub type Tcp = Group<Member>;

/// A rank's open port, before the group is formed.
#[derive(Debug)]
pub struct TcpListenerHandle {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Tls>,
}

impl Tcp {
    /// Opens the port where higher ranks will connect. Port 0 picks a free one.
    ///
    /// # Errors
    /// [`CollectiveError::System`] if the address can't be opened.
    pub fn bind(address: impl ToSocketAddrs) -> Result<TcpListenerHandle, CollectiveError> {
        let open = || {
            let listener = TcpListener::bind(address)?;
            let address = listener.local_addr()?;
            Ok::<_, std::io::Error>(TcpListenerHandle {
                listener,
                address,
                tls: None,
            })
        };
        open().map_err(|error| CollectiveError::system(0, "listen for ranks", &error))
    }
}

impl TcpListenerHandle {
    /// Returns the address in use, with the port that the system picked.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes the group speak TLS. All its ranks must do so.
    #[must_use]
    pub fn secured(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// Forms the group of all `addresses` as number `rank` among them, with default
    /// [`Options`]. All ranks pass equal addresses in equal order, the same `group_id` and the
    /// same `secret`.
    ///
    /// # Errors
    /// [`CollectiveError::Join`] if a peer refuses this rank or doesn't come in time.
    pub fn connect(
        self,
        rank: usize,
        addresses: &[SocketAddr],
        group_id: &str,
        secret: &[u8],
    ) -> Result<Tcp, CollectiveError> {
        self.connect_with(rank, addresses, group_id, secret, &Options::default())
    }

    /// Forms the group as [`Self::connect`] does, with settings. Returns once this rank is
    /// connected to all others. Ranks may come in any order within the time-out.
    ///
    /// # Errors
    /// [`CollectiveError::Join`] if a peer refuses this rank (another secret, group, size or
    /// settings), can't be trusted, or doesn't come in time.
    pub fn connect_with(
        self,
        rank: usize,
        addresses: &[SocketAddr],
        group_id: &str,
        secret: &[u8],
        options: &Options,
    ) -> Result<Tcp, CollectiveError> {
        let size = addresses.len();
        if rank >= size || size > member::MAX_RANKS {
            let reason = format!(
                "rank {rank} of {size}; there may be 1 to {}",
                member::MAX_RANKS
            );
            return Err(CollectiveError::join(rank, reason));
        }
        let options = &Options {
            max_elements: options.max_elements.max(1),
            ..options.clone()
        };
        let identity = handshake::Identity::new(rank, size, options.max_elements, group_id, secret);
        let streams = mesh::connect(
            &self.listener,
            addresses,
            &identity,
            self.tls.as_ref(),
            options.join_timeout,
        )?;
        let local = addresses
            .iter()
            .filter(|peer| peer.ip() == addresses[rank].ip())
            .count();
        let links = Links::new(streams)
            .map_err(|error| CollectiveError::system(rank, "prepare the connections", &error))?;
        let (links, names) = (Arc::new(links), (0..size).collect());
        let patience = Patience::new(local, options);
        let member = Member::new(rank, names, links.clone(), patience, options.max_elements);
        Ok(Group::new(member, Membership::new(rank, links)))
    }
}
