//! Collectives between tensor-parallel ranks: shared memory and TCP.
