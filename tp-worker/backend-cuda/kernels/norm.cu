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
// The sum over a block, the same in every thread: of the threads' sums in one order.
__device__ inline float block_sum(float x) {
    __shared__ float sums[THREADS / 32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    float total = 0;
    for (unsigned warp = 0; warp < THREADS / 32; warp++) total += sums[warp];
    return total;
}
__device__ inline float scale_of(const RmsNorm& a, float squares) {
    return 1.0f / sqrtf(block_sum(squares) / (float)a.width + a.eps);
}

// Any row, a value at a time.
__device__ inline void norm_values(const RmsNorm& a, size_t row) {
    float squares = 0;
    for (unsigned i = threadIdx.x; i < a.width; i += THREADS) {
        float x = a.x[row + i];
        if (a.delta.count) a.x[row + i] = x = x + sum_of(a.delta, row + i, i);
        squares += x * x;
    }
    const float scale = scale_of(a, squares);
    for (unsigned i = threadIdx.x; i < a.width; i += THREADS)
        a.out[row + i] = from_f32<OPERAND>(a.x[row + i] * scale * a.weight[i]);
}

// A row that a block's registers hold, so that all of it is on its way at once.
constexpr unsigned OWN = 8;         // units of four values that a thread has at most
__device__ inline bool in_registers(unsigned width) { return width % 4 == 0 && width <= 4 * OWN * THREADS; }
__device__ inline void add_to(float4& x, const float4& y) {
    x.x = __fadd_rn(x.x, y.x);
    x.y = __fadd_rn(x.y, y.y);
    x.z = __fadd_rn(x.z, y.z);
    x.w = __fadd_rn(x.w, y.w);
}
// Calls `with(own, column)` for this thread's units, at most OWN.
template <class With> __device__ inline void for_own(unsigned width, With with) {
    UNROLL
    for (unsigned own = 0; own < OWN; own++) {
        const unsigned column = (own * THREADS + threadIdx.x) * 4;
        if (column < width) with(own, column);
    }
}
__device__ inline void norm_units(const RmsNorm& a, size_t row) {
    struct __align__(4 * sizeof(OPERAND)) Unit { OPERAND of[4]; };
    auto at = [](const float* from) { return *(const float4*)from; };
    float4 x[OWN];
    for_own(a.width, [&](unsigned own, unsigned column) { x[own] = at(a.x + row + column); });
    if (a.delta.count) {
        float4 sum[OWN];
        const float* parts = a.delta.parts + row;
        for_own(a.width, [&](unsigned own, unsigned column) { sum[own] = at(parts + column); });
        for (unsigned part = 1; part < a.delta.count; part++)
            for_own(a.width, [&](unsigned own, unsigned column) {
                add_to(sum[own], at(parts + part * a.delta.stride + column));
            });
        for_own(a.width, [&](unsigned own, unsigned column) {
            if (a.delta.bias) add_to(sum[own], at(a.delta.bias + column));
            add_to(x[own], sum[own]);
            *(float4*)(a.x + row + column) = x[own];
        });
    }
    float squares = 0;
    for_own(a.width, [&](unsigned own, unsigned) {
        squares += x[own].x * x[own].x + x[own].y * x[own].y + x[own].z * x[own].z + x[own].w * x[own].w;
    });
    const float scale = scale_of(a, squares);
    for_own(a.width, [&](unsigned own, unsigned column) {
        const float4 weight = at(a.weight + column);
        *(Unit*)(a.out + row + column) = {{
            from_f32<OPERAND>(x[own].x * scale * weight.x), from_f32<OPERAND>(x[own].y * scale * weight.y),
            from_f32<OPERAND>(x[own].z * scale * weight.z), from_f32<OPERAND>(x[own].w * scale * weight.w)}};
    });
}

// x += delta where there is one, then out = x / rms(x) · weight; a block per
// row. Every thread sums its own columns, so a row's bits depend on nothing but
// the row.
extern "C" __global__ void __launch_bounds__(THREADS) rms_norm(RmsNorm a) {
    if (blockIdx.x >= rows_of(a.rows)) return;
    const size_t row = (size_t)blockIdx.x * a.width;
    if (in_registers(a.width)) norm_units(a, row);
    else norm_values(a, row);
}
