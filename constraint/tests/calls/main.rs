//! Grammars of tool calls: what they let through, the parsers of their formats read as calls.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod formats;
mod refusals;
mod support;
mod walks;
