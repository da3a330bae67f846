//! Structural tags: what they let through.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod formats;
mod oracle;
mod random;
mod refusals;
mod support;
mod wide;
