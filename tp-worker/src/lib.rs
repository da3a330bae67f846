//! The tensor-parallel worker process.
