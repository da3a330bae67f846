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
    griddepcontrol_wait();
    if (blockIdx.x >= rows_of(a.rows)) return;
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
// A thread has OWN units of four values at most, and LOADS of parts on their way at once.
constexpr unsigned LOADS = 16;
__device__ inline bool in_registers(unsigned width, unsigned own) { return width % 4 == 0 && width <= 4 * own * THREADS; }
__device__ inline void add_to(float4& x, const float4& y) {
    x.x = __fadd_rn(x.x, y.x);
    x.y = __fadd_rn(x.y, y.y);
    x.z = __fadd_rn(x.z, y.z);
    x.w = __fadd_rn(x.w, y.w);
}
__device__ inline float4 at(const float* from) { return *(const float4*)from; }
// Calls `with(own, column)` for this thread's units from the one after `from` others on, at
// most COUNT.
template <unsigned COUNT, class With> __device__ inline void for_own(unsigned width, unsigned from, With with) {
    UNROLL
    for (unsigned own = 0; own < COUNT; own++) {
        const unsigned column = ((from + own) * THREADS + threadIdx.x) * 4;
        if (column < width) with(own, column);
    }
}
// Adds the parts of `delta`, in their order, to the units of a row, and its bias behind them.
// As many parts as a round has are on their way before the first one is added.
template <unsigned ROUND, unsigned OWN> __device__ inline void add_parts(const RmsNorm& a, size_t row, float4 (&x)[OWN]) {
    constexpr unsigned AT_ONCE = LOADS / ROUND < OWN ? LOADS / ROUND : OWN;
    const float *parts = a.delta.parts + row, *bias = a.delta.bias;
    UNROLL
    for (unsigned from = 0; from < OWN; from += AT_ONCE) {
        float4 sum[AT_ONCE];
        for (unsigned first = 0; first < a.delta.count; first += ROUND) {
            float4 round[AT_ONCE][ROUND];
            UNROLL
            for (unsigned part = 0; part < ROUND; part++)
                for_own<AT_ONCE>(a.width, from, [&](unsigned own, unsigned column) {
                    if (first + part < a.delta.count) round[own][part] = at(parts + (first + part) * a.delta.stride + column);
                });
            for_own<AT_ONCE>(a.width, from, [&](unsigned own, unsigned) {
                if (first == 0) sum[own] = round[own][0];
                UNROLL
                for (unsigned part = 0; part < ROUND; part++)
                    if (first + part > 0 && first + part < a.delta.count) add_to(sum[own], round[own][part]);
            });
        }
        for_own<AT_ONCE>(a.width, from, [&](unsigned own, unsigned column) {
            if (bias) add_to(sum[own], at(bias + column));
            add_to(x[from + own], sum[own]);
        });
    }
}
template <unsigned OWN> __device__ inline void norm_units(const RmsNorm& a, size_t row) {
    struct __align__(4 * sizeof(OPERAND)) Unit { OPERAND of[4]; };
    // Weights come from far, so they are on their way while earlier work is done.
    float4 weight[OWN], x[OWN];
    for_own<OWN>(a.width, 0, [&](unsigned own, unsigned column) { weight[own] = at(a.weight + column); });
    griddepcontrol_wait();
    if (blockIdx.x >= rows_of(a.rows)) return;
    for_own<OWN>(a.width, 0, [&](unsigned own, unsigned column) { x[own] = at(a.x + row + column); });
    if (a.delta.count) {
        if (a.delta.count == 1) add_parts<1>(a, row, x);
        else if (a.delta.count == 2) add_parts<2>(a, row, x);
        else if (a.delta.count <= 4) add_parts<4>(a, row, x);
        else add_parts<8>(a, row, x);
        for_own<OWN>(a.width, 0, [&](unsigned own, unsigned column) { *(float4*)(a.x + row + column) = x[own]; });
    }
    float squares = 0;
    for_own<OWN>(a.width, 0, [&](unsigned own, unsigned) {
        squares += x[own].x * x[own].x + x[own].y * x[own].y + x[own].z * x[own].z + x[own].w * x[own].w;
    });
    const float scale = scale_of(a, squares);
    for_own<OWN>(a.width, 0, [&](unsigned own, unsigned column) {
        *(Unit*)(a.out + row + column) = {{
            from_f32<OPERAND>(x[own].x * scale * weight[own].x), from_f32<OPERAND>(x[own].y * scale * weight[own].y),
            from_f32<OPERAND>(x[own].z * scale * weight[own].z), from_f32<OPERAND>(x[own].w * scale * weight[own].w)}};
    });
}

template <unsigned OWN> __device__ inline void norm_row(const RmsNorm& a) {
    griddepcontrol_launch_dependents();
    const size_t row = (size_t)blockIdx.x * a.width;
    if (in_registers(a.width, OWN)) norm_units<OWN>(a, row);
    else norm_values(a, row);
}

// x += delta where there is one, then out = x / rms(x) · weight; a block per
// row. Every thread sums its own columns, so a row's bits depend on nothing but
// the row. Wide rows take so many registers that fewer of them run at once.
extern "C" __global__ void __launch_bounds__(THREADS, 2) rms_norm(RmsNorm a) { norm_row<4>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) rms_norm_wide(RmsNorm a) { norm_row<8>(a); }
