//! Values, operations, methods, filters, tests and functions with the behaviour of Python and
//! Jinja2.

pub(super) mod args;
pub(super) mod compare;
mod error;
pub(super) mod filters;
mod format;
pub(super) mod functions;
pub(super) mod html;
pub(super) mod items;
pub(super) mod macros;
pub(super) mod methods;
mod names;
mod number;
mod objects;
pub(super) mod operators;
mod percent;
pub(super) mod repr;
pub(super) mod tests;
mod text;
pub(super) mod value;
