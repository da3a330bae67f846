//! The scheduler process.
