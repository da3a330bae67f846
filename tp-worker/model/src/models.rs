//! Whole models, made of blocks: which they have, and what their tensors are called.

pub(crate) mod decoder;
pub(crate) mod eagle;
