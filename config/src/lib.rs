//! Lockstep's configuration, resolved once and handed whole to every process.
