// Root-mean-square norms (Zhang & Sennrich, arXiv:1910.07467).
#include "sums.cuh"

constexpr unsigned THREADS = 256;

struct RmsNorm {
    float* x;                   // [rows, width]
    const float* weight;        // [width]
    OPERAND* out;               // [rows, width]
    Sums delta;                 // [rows, width], or nothing
    Rows rows;
    unsigned width;
    float eps;
};
// x += delta where there is one, then out = x / rms(x) · weight; a block per
// row. Every thread sums its own columns and the threads' sums are added in one
// order, so a row's bits depend on nothing but the row.
extern "C" __global__ void __launch_bounds__(THREADS) rms_norm(RmsNorm a) {
    __shared__ float sums[THREADS / 32];
    if (blockIdx.x >= rows_of(a.rows)) return;
    const size_t row = (size_t)blockIdx.x * a.width;
    float squares = 0;
    for (unsigned i = threadIdx.x; i < a.width; i += THREADS) {
        float x = a.x[row + i];
        if (a.delta.count) a.x[row + i] = x = x + sum_of(a.delta, row + i, i);
        squares += x * x;
    }
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    float total = 0;
    for (unsigned warp = 0; warp < THREADS / 32; warp++) total += sums[warp];
    const float scale = 1.0f / sqrtf(total / (float)a.width + a.eps);
    for (unsigned i = threadIdx.x; i < a.width; i += THREADS)
        a.out[row + i] = from_f32<OPERAND>(a.x[row + i] * scale * a.weight[i]);
}
