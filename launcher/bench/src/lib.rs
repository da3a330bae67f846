//! lockstep bench: offline, serving and component benchmarks.
