// Attention of tiles of 16 queries. Each tile has four warps, which score 16 positions each and sum
// columns by turns. A block has one tile or several, whose queries share the staged positions.
#pragma once
#include "attend.cuh"

constexpr unsigned WARPS = 4;       // of a tile
constexpr unsigned UNITS = (VALUE_UNITS + WARPS - 1) / WARPS;   // of 16 columns, of one warp
static_assert(BLOCK == 16 * WARPS, "each warp scores 16 positions");
// What two buffers hold: keys and values of a block of positions, or latents of two blocks in turn.
// With one buffer, values come to the place of their keys when these are done with.
constexpr bool APART = BUFFERS == 2 && !LATENT, IN_TURN = BUFFERS == 2 && LATENT;

// What a tile leaves for its other warps.
struct Shared {
    CACHED weights[QUERIES * WEIGHT_STRIDE];
    float maxima[WARPS][QUERIES];
    float sums[WARPS][QUERIES];
};
// What a block stages.
template <unsigned TILES> struct Staged {
    CACHED queries[TILES * QUERIES * STRIDE];
    CACHED buffers[BUFFERS][BLOCK * STRIDE];
    Shared tiles[TILES];
    unsigned up_to[TILES * QUERIES];    // positions up to each query's own
    unsigned cells[2][BLOCK];   // of this block of positions and the next
};

// Scores of this warp's 16 positions from `at` on, and each query's largest.
__device__ inline void score(const Attend& a, Shared& s, const CACHED* queries, const CACHED* keys, const unsigned* up_to, unsigned at, float (&scores)[2][4]) {
    const unsigned warp = threadIdx.x / 32 % WARPS;
    UNROLL
    for (unsigned j = 0; j < 2; j++)
        UNROLL
        for (unsigned i = 0; i < 4; i++) scores[j][i] = 0;
    multiply_keys(scores, queries, keys + warp * 16 * STRIDE);
    float max[2] = {-INFINITY, -INFINITY};
    UNROLL
    for (unsigned j = 0; j < 2; j++)
        UNROLL
        for (unsigned i = 0; i < 4; i++) {
            const Visible seen = visible(up_to[tile_row(i)], a.window);
            const unsigned position = at + warp * 16 + tile_column(j, i);
            const bool is_seen = seen.begin <= position && position < seen.end;
            scores[j][i] = is_seen ? score_of(a, scores[j][i]) : -INFINITY;
            max[i / 2] = fmaxf(max[i / 2], scores[j][i]);
        }
    UNROLL
    for (unsigned half = 0; half < 2; half++) {
        for (unsigned d = 1; d < 4; d *= 2) max[half] = fmaxf(max[half], __shfl_xor_sync(0xffffffffu, max[half], d));
        if (threadIdx.x % 4 == 0) s.maxima[warp][tile_row(2 * half)] = max[half];
    }
}
// Turns scores into weights against the new maxima; `faded` becomes the factor
// of what was summed so far. Weights are summed as they are multiplied.
__device__ inline void weigh(Shared& s, Sums<UNITS>& span, float (&scores)[2][4], float (&faded)[2]) {
    const unsigned warp = threadIdx.x / 32 % WARPS;
    float base[2], sum[2] = {0, 0};
    UNROLL
    for (unsigned half = 0; half < 2; half++) {
        float max = span.max[half];
        for (unsigned w = 0; w < WARPS; w++) max = fmaxf(max, s.maxima[w][tile_row(2 * half)]);
        base[half] = base_of(max);
        faded[half] = fade(span.max[half], base[half]);
        span.max[half] = max;
    }
    UNROLL
    for (unsigned j = 0; j < 2; j++)
        UNROLL
        for (unsigned i = 0; i < 4; i++) {
            const CACHED weight = from_f32<CACHED>(fade(scores[j][i], base[i / 2]));
            s.weights[tile_row(i) * WEIGHT_STRIDE + warp * 16 + tile_column(j, i)] = weight;
            sum[i / 2] = __fadd_rn(sum[i / 2], to_f32(weight));
        }
    UNROLL
    for (unsigned half = 0; half < 2; half++) {
        for (unsigned d = 1; d < 4; d *= 2) sum[half] = __fadd_rn(sum[half], __shfl_xor_sync(0xffffffffu, sum[half], d));
        if (threadIdx.x % 4 == 0) s.sums[warp][tile_row(2 * half)] = sum[half];
    }
}
// Adds the block's weighted values.
__device__ inline void gather(const Shared& s, const CACHED* values, Sums<UNITS>& span, const float (&faded)[2]) {
    const unsigned warp = threadIdx.x / 32 % WARPS;
    UNROLL
    for (unsigned half = 0; half < 2; half++) {
        float sum = 0;
        for (unsigned w = 0; w < WARPS; w++) sum = __fadd_rn(sum, s.sums[w][tile_row(2 * half)]);
        span.weight[half] = __fmaf_rn(span.weight[half], faded[half], sum);
    }
    UNROLL
    for (unsigned unit = 0; unit < UNITS; unit++) {
        const unsigned column = (unit * WARPS + warp) * 16;
        if (column >= VALUE_UNITS * 16) continue;       // the same for all lanes of the warp
        float (&columns)[2][4] = span.columns[unit];
        UNROLL
        for (unsigned j = 0; j < 2; j++)
            UNROLL
            for (unsigned i = 0; i < 4; i++) columns[j][i] = __fmul_rn(columns[j][i], faded[i / 2]);
        multiply_values(columns, s.weights, values + column);
    }
}
// One item over its spans. With two buffers the next block of positions is on its way while one is
// scored and weighed: keys and values by turns, or latents. With one buffer only other blocks of the
// multiprocessor have something to do meanwhile. Behind the last block's last barrier nobody reads
// the stage, so that the next item may write.
template <unsigned TILES>
__device__ inline void run_item(const Attend& a, Staged<TILES>& s, const Row& row, const Item& item, unsigned first_part) {
    constexpr unsigned THREADS = 32 * WARPS * TILES;
    const unsigned tile = TILES == 1 ? 0 : threadIdx.x / 32 / WARPS, first = tile * QUERIES;
    Visible seen = seen_by_tile(a, row, item);
    const unsigned begin = max(item.first_span * SPAN, seen.begin / BLOCK * BLOCK);
    const unsigned end = seen.end = min((item.first_span + item.spans) * SPAN, seen.end);
    if (item.split && begin >= end) return;         // no query sees any of this
    copy_queries<THREADS>(a, s.queries, s.up_to, row, item);
    if (threadIdx.x < BLOCK) s.cells[0][threadIdx.x] = cell_of(a, row, item, begin + threadIdx.x, seen);
    __syncthreads();
    if (begin < end) copy_block<THREADS>(a, s.buffers[0], a.keys, s.cells[0]);
    cp_async_commit_group();
    if (begin < end && APART) copy_block<THREADS>(a, s.buffers[1], a.values, s.cells[0]);
    cp_async_commit_group();
    const Place place = {first, threadIdx.x / 32 % WARPS, WARPS};
    Sums<UNITS> total, span;
    clear(total);
    clear(span);
    unsigned turn = 0;
    for (unsigned at = begin; at < end; at += BLOCK) {
        const unsigned next = at + BLOCK;
        CACHED* const keys = s.buffers[IN_TURN ? turn : 0];
        CACHED* const values = s.buffers[APART ? 1 : IN_TURN ? turn : 0];
        turn ^= 1;
        if (threadIdx.x < BLOCK) s.cells[turn][threadIdx.x] = cell_of(a, row, item, next + threadIdx.x, seen);
        float scores[2][4], faded[2];
        cp_async_wait_group<APART ? 1 : 0>();
        __syncthreads();                            // keys, queries and cells are there
        if (IN_TURN && next < end) copy_block<THREADS>(a, s.buffers[turn], a.keys, s.cells[turn]);
        cp_async_commit_group();
        score(a, s.tiles[tile], s.queries + first * STRIDE, keys, s.up_to + first, at, scores);
        __syncthreads();                            // maxima are there, keys are done with
        if (APART && next < end) copy_block<THREADS>(a, keys, a.keys, s.cells[turn]);
        if (!APART && !LATENT) copy_block<THREADS>(a, values, a.values, s.cells[turn ^ 1]);
        cp_async_commit_group();
        weigh(s.tiles[tile], span, scores, faded);
        if (!LATENT) cp_async_wait_group<APART ? 1 : 0>();
        __syncthreads();                            // values, weights and sums are there
        gather(s.tiles[tile], values, span, faded);
        __syncthreads();                            // and done with
        if (APART && next < end) copy_block<THREADS>(a, values, a.values, s.cells[turn]);
        if (!APART && !IN_TURN && next < end) copy_block<THREADS>(a, keys, a.keys, s.cells[turn]);
        cp_async_commit_group();
        if (next % SPAN == 0 || next >= end) {
            if (item.split) leave_part(a, row, item, first_part, at / SPAN, place, span);
            else fold_span(total, span);
            clear(span);
        }
    }
    cp_async_wait_group<0>();
    if (!item.split) finish(a, row, item, place, total);
}
// Columns past a head's width multiply queries' zeros, so they hold numbers.
template <unsigned TILES> __device__ inline void fill_padding(Staged<TILES>& s) {
    for (unsigned slot = threadIdx.x; slot < BLOCK; slot += 32 * WARPS * TILES)
        for (unsigned column = HEAD_DIM; column < DIM; column++)
            for (unsigned i = 0; i < BUFFERS; i++) s.buffers[i][slot * STRIDE + column] = from_f32<CACHED>(0);
}
