//! Every transport against plain loops, and its behaviour when ranks diverge,
//! stop or leave.

mod shared;
mod support;
