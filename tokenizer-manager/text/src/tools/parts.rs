//! Parts that several formats share.

pub(super) mod call_object;
pub(crate) mod channels;
pub(super) mod gemma_value;
pub(super) mod held;
pub(super) mod json;
pub(super) mod python_value;
pub(super) mod raw_arguments;
pub(super) mod tagged;
pub(super) mod typed;
