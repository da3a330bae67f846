//! cudarc, unchanged, on the fake libraries: what works as CUDA says, what is
//! refused as CUDA refuses it, and which faults are caught.

mod captures;
mod children;
mod device;
mod errors;
mod groups;
mod kernels;
mod memory;
mod order;
mod products;
mod safe;
mod sanitizers;
mod warps;

/// Does what the variable `SCENARIO` names, in a process that it may break.
#[test]
#[ignore = "run by other tests, in processes of their own"]
fn scenario() {
    children::run();
}
