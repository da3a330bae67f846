//! cudarc, unchanged, on the fake libraries: calls that CUDA serves, calls that CUDA refuses,
//! and faults that the fakes catch.

mod captures;
mod children;
mod device;
mod errors;
mod groups;
mod kernels;
mod memory;
mod order;
mod products;
mod programmatic;
mod safe;
mod sanitizers;
mod warps;

/// Runs the scenario of the variable `SCENARIO`, in a process that it may break.
#[test]
#[ignore = "run by other tests, in processes of their own"]
fn scenario() {
    children::run();
}
