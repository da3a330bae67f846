//! Constraints compiled for the demo model's tokenizer.

mod masks;
mod reasoning;
mod refusals;
mod schemas;
mod support;
