//! The scheduler process with simulated workers and real gRPC streams.

mod adapters;
mod dp_ranks;
mod faults;
mod fixture;
mod health;
mod logprobs;
mod serving;
mod sglang;
mod sglang_aborts;
mod sim_adapters;
mod speculation;
mod weights;
