//! The messages between Lockstep's processes.
