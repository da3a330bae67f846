//! Constraints compiled for the demo model's tokenizer.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod budgets;
mod cases;
mod forced;
mod formats;
mod gbnf;
mod masks;
mod reasoning;
mod refusals;
mod schemas;
mod soak;
mod support;
mod work;
