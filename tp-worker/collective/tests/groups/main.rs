//! Every transport, compared with plain loops, and its behaviour when ranks diverge, stop or
//! leave.

mod attached;
mod cross_group;
mod processes;
mod shared;
mod shown;
mod single;
mod subgroups;
mod support;
mod tcp;
mod tls;
mod uneven;
