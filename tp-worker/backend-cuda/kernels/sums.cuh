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
// The value at `at` of every part, in column `column`: parts are added in their
// order, then the bias.
__device__ inline float sum_of(const Sums& sums, size_t at, unsigned column) {
    float sum = sums.parts[at];
    for (unsigned part = 1; part < sums.count; part++) sum = __fadd_rn(sum, sums.parts[part * sums.stride + at]);
    return sums.bias ? __fadd_rn(sum, sums.bias[column]) : sum;
}

// silu(gate) · up (Shazeer, arXiv:2002.05202)
__device__ inline float gated(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }
