//! What every role does as a process: control link to the launcher, logging, sockets, exit codes.
