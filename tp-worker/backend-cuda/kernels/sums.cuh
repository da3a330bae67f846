// What products leave to whoever reads them: sums in parts, and a bias.
#pragma once
#include "device.cuh"

struct Sums {
    const float* parts;         // [count, rows, width]
    const float* bias;          // [width], or null
    size_t stride;              // from part to part
    unsigned count;             // 0: there is nothing
    unsigned pad;
};
constexpr unsigned PARTS_AT_ONCE = 4;
// Up to COUNT values of the bias, from `column` on, as `sums_of` adds them. No pass writes it.
template <unsigned COUNT>
__device__ inline void biases_of(const Sums& sums, unsigned column, unsigned step, unsigned columns, float (&bias)[COUNT]) {
    UNROLL
    for (unsigned i = 0; i < COUNT; i++)
        if (i * step < columns) bias[i] = sums.bias ? sums.bias[column + i * step] : 0;
}
// Up to COUNT values of every part: those at `at`, `at + step`, and so on, as far as `step` times
// their number is below `columns`. Parts are added in their order, then the bias. All values of
// some parts are on their way before the first is added.
template <unsigned COUNT>
__device__ inline void sums_of(const Sums& sums, size_t at, unsigned step, unsigned columns, const float (&bias)[COUNT], float (&sum)[COUNT]) {
    UNROLL
    for (unsigned i = 0; i < COUNT; i++)
        if (i * step < columns) sum[i] = sums.parts[at + i * step];
    ROLLED
    for (unsigned first = 1; first < sums.count; first += PARTS_AT_ONCE) {
        float parts[PARTS_AT_ONCE][COUNT];
        UNROLL
        for (unsigned part = 0; part < PARTS_AT_ONCE; part++)
            UNROLL
            for (unsigned i = 0; i < COUNT; i++)
                if (first + part < sums.count && i * step < columns)
                    parts[part][i] = sums.parts[(first + part) * sums.stride + at + i * step];
        UNROLL
        for (unsigned part = 0; part < PARTS_AT_ONCE; part++)
            UNROLL
            for (unsigned i = 0; i < COUNT; i++)
                if (first + part < sums.count && i * step < columns) sum[i] = __fadd_rn(sum[i], parts[part][i]);
    }
    UNROLL
    for (unsigned i = 0; i < COUNT; i++)
        if (sums.bias && i * step < columns) sum[i] = __fadd_rn(sum[i], bias[i]);
}
// The value at `at` of every part, in column `column`.
__device__ inline float sum_of(const Sums& sums, size_t at, unsigned column) {
    float bias[1], sum[1];
    biases_of(sums, column, 1, 1, bias);
    sums_of(sums, at, 1, 1, bias, sum);
    return sum[0];
}

// Activations: SiLU, and GELU in its approximation by tanh (Hendrycks and Gimpel,
// arXiv:1606.08415).
enum Activation : unsigned { SILU = 1, GELU_TANH = 2, RELU_SQUARED = 3 };
__device__ inline float activated(unsigned activation, float x) {
    if (activation == RELU_SQUARED) return x < 0.0f ? 0.0f : x * x;
    // x · (1 + tanh(u)) / 2 is x · σ(2u)
    const float twice = activation == GELU_TANH ? 1.5957691f * (x + 0.044715f * x * x * x) : x;
    return x / (1.0f + expf(-twice));
}
// f(gate) · up (Shazeer, arXiv:2002.05202)
__device__ inline float gated(unsigned activation, float gate, float up) { return activated(activation, gate) * up; }
