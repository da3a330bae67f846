//! Ports that strangers reach, whatever they speak.
//!
//! ```text
//! listen ──▶ accept ──▶ Places ──▶ TLS, first bytes ──▶ HTTP/1.1 or HTTP/2 ──▶ requests
//!            EMFILE     per port,  in time              head, idle time        body in time,
//!                       per peer                                               answer taken in time
//! ```
//!
//! A connection that no request is on waits. When a port is full the one that
//! waits longest gives its place away, as in nginx; one that works keeps it,
//! until its answers are sent or their clients have taken nothing for too long.
//! Whoever finds no place then is served as a probe: health is answered, and
//! all else refused.

#![forbid(unsafe_code)]

mod accept;
mod answer;
mod body;
mod budget;
mod deadline;
mod first_bytes;
mod health;
mod listen;
mod messages;
mod outgoing;
mod peer;
mod places;
mod port;
mod report;
mod reserve;
mod serve;
mod tls;
mod visit;
mod waiting;
mod wanted;

pub use body::{BodyError, Held};
pub use budget::{Budget, OverBudget};
pub use health::Health;
pub use listen::listen;
pub use outgoing::Unsent;
pub use port::{Port, Protocol};
pub use report::{Closed, PortReport};
pub use reserve::{Paid, Reserve};
pub use tls::{NodeTls, Tls, TlsError};
pub use waiting::{GivenUp, OutputReceiver, OutputSender, outputs};
