//! Tasks of every role as a process: the control link to the launcher, logs, sockets between
//! processes, exit codes, the clock, and freed memory. Commands print their answers with it,
//! too.
//!
//! A role's `main` calls [`RoleContext::enter`], hands the context to the
//! role's `run`, and ends with [`RoleContext::leave`].

#![deny(unsafe_code)]

pub mod clock;
pub mod exit;
pub mod heap;
pub mod logging;

mod answer;
mod bearer;
mod link;
mod message;
mod role;
mod socket;

pub use answer::{print, reader_left};
pub use bearer::{BearerError, check_bearer};
pub use link::{ControlLink, Lifecycle, Outlook};
pub use logging::LineQueue;
pub use message::{ChildMessage, ChildReport, LauncherMessage};
pub use role::{Role, RoleContext, RoleError};
pub use socket::{ConnectError, connect_tcp, connect_unix, listen_unix, root_cause};
