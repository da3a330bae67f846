//! Grammars of tool calls: what they let through, the parsers of their formats read as calls.

mod formats;
mod refusals;
mod support;
mod walks;
