//! The lockstep binary: launcher and roles.
