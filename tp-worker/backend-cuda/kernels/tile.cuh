// Products of small tiles in shared memory, for one warp: on tensor cores where
// the cache is bf16, as multiply-adds where it is f32. Sums lie where
// mma.m16n8k16 has them: `sums[j][i]` of a lane is row `tile_row(i)`, column
// `tile_column(j, i)` of a tile of 16 rows and 16 columns.
#pragma once
#include "device.cuh"

constexpr unsigned QUERIES = 16;        // rows of a tile
constexpr unsigned BLOCK = 64;          // positions staged in shared memory at a time
constexpr unsigned DIM = (HEAD_DIM + 15) / 16 * 16;
constexpr unsigned VALUE_UNITS = (VALUE_DIM + 15) / 16;     // of 16 columns
// Rows are padded by 16 bytes: those of a matrix lie in different banks.
constexpr unsigned PAD = 16 / sizeof(CACHED);
constexpr unsigned STRIDE = DIM + PAD, WEIGHT_STRIDE = BLOCK + PAD;
static_assert(HEAD_DIM * sizeof(CACHED) % 16 == 0, "a head is copied in units of 16 bytes");
static_assert(VALUE_DIM % 2 == 0, "results are written two at a time");

__device__ inline unsigned tile_row(unsigned i) { return threadIdx.x % 32 / 4 + i / 2 * 8; }
__device__ inline unsigned tile_column(unsigned j, unsigned i) { return j * 8 + threadIdx.x % 4 * 2 + i % 2; }

#if CACHED_IS_BF16
// sums += queries · keysᵀ over a head's columns, for 16 keys.
__device__ inline void multiply_keys(float (&sums)[2][4], const CACHED* queries, const CACHED* keys) {
    const unsigned lane = threadIdx.x % 32;
    for (unsigned at = 0; at < DIM; at += 16) {
        unsigned a[4], b[4];
        ldmatrix_x4(a, queries + lane % 16 * STRIDE + at + lane / 16 * 8);
        ldmatrix_x4(b, keys + (lane / 16 * 8 + lane % 8) * STRIDE + at + lane / 8 % 2 * 8);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
        mma_m16n8k16_bf16(sums[0], a, left);
        mma_m16n8k16_bf16(sums[1], a, right);
    }
}
// sums += weights · values over a block's positions, for 16 columns.
__device__ inline void multiply_values(float (&sums)[2][4], const CACHED* weights, const CACHED* values) {
    const unsigned lane = threadIdx.x % 32;
    for (unsigned at = 0; at < BLOCK; at += 16) {
        unsigned a[4], b[4];
        ldmatrix_x4(a, weights + lane % 16 * WEIGHT_STRIDE + at + lane / 16 * 8);
        ldmatrix_x4_trans(b, values + (at + lane % 16) * STRIDE + lane / 16 * 8);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
        mma_m16n8k16_bf16(sums[0], a, left);
        mma_m16n8k16_bf16(sums[1], a, right);
    }
}
#else
__device__ inline void multiply_keys(float (&sums)[2][4], const CACHED* queries, const CACHED* keys) {
    for (unsigned at = 0; at < DIM; at++)
        UNROLL
        for (unsigned j = 0; j < 2; j++)
            UNROLL
            for (unsigned i = 0; i < 4; i++)
                sums[j][i] = __fmaf_rn(queries[tile_row(i) * STRIDE + at], keys[tile_column(j, i) * STRIDE + at], sums[j][i]);
}
__device__ inline void multiply_values(float (&sums)[2][4], const CACHED* weights, const CACHED* values) {
    for (unsigned at = 0; at < BLOCK; at++)
        UNROLL
        for (unsigned j = 0; j < 2; j++)
            UNROLL
            for (unsigned i = 0; i < 4; i++)
                sums[j][i] = __fmaf_rn(weights[tile_row(i) * WEIGHT_STRIDE + at], values[at * STRIDE + tile_column(j, i)], sums[j][i]);
}
#endif
