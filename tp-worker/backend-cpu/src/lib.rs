//! CPU kernels: packed GEMM, paged attention, norms, thread pool.
