//! Planner and worker ranks inside one process, without a server.
#![forbid(unsafe_code)]
