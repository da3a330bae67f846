//! Ports that strangers can reach, for any protocol.
//!
//! ```text
//! listen ──▶ accept ──▶ Places ──▶ TLS, first bytes ──▶ HTTP/1.1 or HTTP/2 ──▶ requests
//!            EMFILE     per port,  in time              head, idle time        body in time,
//!                       per peer                                               answer taken in time
//! ```
//!
//! A connection without a request waits. When a port is full, the connection that waits longest
//! loses its place, as in nginx. A connection that works keeps its place until its answers are
//! sent, or until their clients have taken nothing for too long. A connection that finds no place
//! is served as a probe: its health checks are answered, and everything else is refused.

#![forbid(unsafe_code)]

mod accept;
mod answer;
mod body;
mod budget;
mod deadline;
mod first_bytes;
mod health;
mod limits;
mod listen;
mod memory_pressure;
mod messages;
mod outgoing;
mod output_queue;
mod peer;
mod places;
mod port;
mod report;
mod request_service;
mod reserve;
mod serve;
mod tls;

pub use body::{BodyError, RequestMemory};
pub use budget::{Budget, OverBudget};
pub use health::Health;
pub use listen::listen;
pub use outgoing::UnsentBytes;
pub use output_queue::{OutputReceiver, OutputSender, SlowClient, outputs};
pub use port::{Port, Protocol};
pub use report::{Closed, PortReport};
pub use reserve::{Prepaid, Reservation};
pub use tls::{NodeTls, Tls, TlsError};
