// Weighted means of positions, in parts: the online softmax (Milakov &
// Gimelshein, arXiv:1805.02867) in powers of two. Every rounding is spelled out,
// so that parts that one block folds and parts that another kernel folds have
// the same bits.
#pragma once
#include "device.cuh"

// What a maximum is subtracted as: scores that see nothing have none.
__device__ inline float base_of(float max) { return max == -INFINITY ? 0.0f : max; }
// The factor of what was weighed against `max` when `base` is what counts.
__device__ inline float fade(float max, float base) { return exp2f(__fadd_rn(max, -base)); }

// Folds a later part of some positions into the total of earlier ones: first
// `fold_max`, then, with its factors, `fold` for sums and for every column.
struct Factors { float total, part; };
__device__ inline Factors fold_max(float& total, float part) {
    const float max = fmaxf(total, part), base = base_of(max);
    const Factors factors = {fade(total, base), fade(part, base)};
    total = max;
    return factors;
}
__device__ inline void fold(float& total, float part, const Factors& factors) {
    total = __fmaf_rn(total, factors.total, __fmul_rn(part, factors.part));
}
// Folds a sink, a score without a column, behind all positions; returns the factor of their sums.
__device__ inline float fold_sink(float& max, float& weight, float sink) {
    const Factors factors = fold_max(max, __fmul_rn(sink, 1.442695040888963f));     // in powers of two
    fold(weight, 1.0f, factors);
    return factors.total;
}
// The mean; zero of a query that saw nothing.
__device__ inline float mean(float total, float sum) { return sum == 0.0f ? 0.0f : total / sum; }
