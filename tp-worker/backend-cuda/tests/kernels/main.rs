//! Kernels and products against plain loops in f64, on shapes that are no
//! multiples of anything, with outputs that were NaN before; and what must be
//! equal bit for bit. Started by cargo they run on the fake libraries, under
//! several orders of everything that CUDA leaves open; started by hand, on the
//! machine's own.

mod accepting;
mod attention;
mod cells;
mod choosing;
mod copies;
mod driver;
mod errors;
mod faults;
mod products;
mod requests;
mod rowwise;
mod sanitizers;
mod support;
