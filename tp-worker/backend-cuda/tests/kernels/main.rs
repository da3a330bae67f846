//! Kernels and products compared with plain loops in f64. Shapes are no multiples of anything,
//! and outputs are NaN before. Other tests expect equal bits. Started by cargo, they run on the
//! fake libraries, under several orders of the work whose order CUDA leaves open. Started by
//! hand, they run on the machine's own libraries.

mod accepting;
mod ahead;
mod attention;
mod blocks;
mod cells;
mod chains;
mod copies;
mod driver;
mod errors;
mod experts;
mod faults;
mod latents;
mod products;
mod recurrent;
mod requests;
mod rowwise;
mod sampling;
mod sanitizers;
mod support;
mod wide;
