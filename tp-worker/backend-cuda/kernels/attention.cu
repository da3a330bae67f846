// Paged attention of a ragged batch: every row length, mask and page size.
#include "attend.cuh"

constexpr unsigned WARPS = 4, THREADS = 32 * WARPS;
constexpr unsigned UNITS = (VALUE_UNITS + WARPS - 1) / WARPS;     // of 16 columns, of one warp
static_assert(BLOCK == 16 * WARPS, "each warp scores 16 positions");
static_assert(TILE == QUERIES, "a tile of work is one of queries");
static_assert(!LATENT || BUFFERS == 1, "values are in keys");

// What a block stages: keys and values of a block of positions. Where wide heads leave no room for
// both, values come to the place of their keys when these are done with.
struct Stage {
    CACHED queries[QUERIES * STRIDE];
    CACHED buffers[BUFFERS][BLOCK * STRIDE];
    CACHED weights[QUERIES * WEIGHT_STRIDE];
    float maxima[WARPS][QUERIES];
    float sums[WARPS][QUERIES];
    unsigned up_to[QUERIES];    // positions up to each query's own
    unsigned cells[2][BLOCK];   // of this block of positions and the next
};
static_assert(sizeof(Stage) == STAGE_BYTES, "the launch asks for as much");
__device__ inline CACHED* keys_of(Stage& s) { return s.buffers[0]; }
__device__ inline CACHED* values_of(Stage& s) { return s.buffers[BUFFERS - 1]; }
// Blocks that have to fit on a multiprocessor: it leaves each as many registers.
constexpr unsigned AT_ONCE = sizeof(Stage) > (48 << 10) ? 2 : 4;

// Scores of this warp's 16 positions from `at` on, and each query's largest.
__device__ inline void score(const Attend& a, Stage& s, unsigned at, float (&scores)[2][4]) {
    const unsigned warp = threadIdx.x / 32;
    UNROLL
    for (unsigned j = 0; j < 2; j++)
        UNROLL
        for (unsigned i = 0; i < 4; i++) scores[j][i] = 0;
    multiply_keys(scores, s.queries, keys_of(s) + warp * 16 * STRIDE);
    float max[2] = {-INFINITY, -INFINITY};
    UNROLL
    for (unsigned j = 0; j < 2; j++)
        UNROLL
        for (unsigned i = 0; i < 4; i++) {
            const Visible seen = visible(s.up_to[tile_row(i)], a.window);
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
__device__ inline void weigh(Stage& s, Sums<UNITS>& span, float (&scores)[2][4], float (&faded)[2]) {
    const unsigned warp = threadIdx.x / 32;
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
__device__ inline void gather(Stage& s, Sums<UNITS>& span, const float (&faded)[2]) {
    const unsigned warp = threadIdx.x / 32;
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
        multiply_values(columns, s.weights, values_of(s) + column);
    }
}
// One tile over its spans. With two buffers the next block's keys are on their way while a block of
// positions is weighed, and its values while that one is scored. With one buffer only other blocks
// of the multiprocessor have something to do meanwhile. Behind the last block's last barrier nobody
// reads the stage, so that the next item may write.
__device__ inline void run_item(const Attend& a, Stage& s, const Row& row, const Item& item, unsigned first_part) {
    Visible seen = seen_by_tile(a, row, item);
    const unsigned begin = max(item.first_span * SPAN, seen.begin / BLOCK * BLOCK);
    const unsigned end = seen.end = min((item.first_span + item.spans) * SPAN, seen.end);
    if (item.split && begin >= end) return;         // no query sees any of this
    copy_queries<THREADS>(a, s.queries, s.up_to, row, item);
    if (threadIdx.x < BLOCK) s.cells[0][threadIdx.x] = cell_of(a, row, item, begin + threadIdx.x, seen);
    __syncthreads();
    if (begin < end) copy_block<THREADS>(a, keys_of(s), a.keys, s.cells[0]);
    cp_async_commit_group();
    if (begin < end && BUFFERS == 2) copy_block<THREADS>(a, values_of(s), a.values, s.cells[0]);
    cp_async_commit_group();
    const Place place = {0, threadIdx.x / 32, WARPS};
    Sums<UNITS> total, span;
    clear(total);
    clear(span);
    unsigned turn = 0;
    for (unsigned at = begin; at < end; at += BLOCK) {
        const unsigned next = at + BLOCK;
        turn ^= 1;
        if (threadIdx.x < BLOCK) s.cells[turn][threadIdx.x] = cell_of(a, row, item, next + threadIdx.x, seen);
        float scores[2][4], faded[2];
        cp_async_wait_group<BUFFERS - 1>();
        __syncthreads();                            // keys, queries and cells are there
        score(a, s, at, scores);
        __syncthreads();                            // maxima are there, keys are done with
        if (BUFFERS == 2 && next < end) copy_block<THREADS>(a, keys_of(s), a.keys, s.cells[turn]);
        if (BUFFERS == 1 && !LATENT) copy_block<THREADS>(a, values_of(s), a.values, s.cells[turn ^ 1]);
        cp_async_commit_group();
        weigh(s, span, scores, faded);
        cp_async_wait_group<BUFFERS - 1>();
        __syncthreads();                            // values, weights and sums are there
        gather(s, span, faded);
        __syncthreads();                            // and done with
        if (next < end) copy_block<THREADS>(a, values_of(s), BUFFERS == 2 ? a.values : a.keys, s.cells[turn]);
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

// Begins to fetch the weights of the product behind attention, in pieces that all blocks share:
// in a small batch most blocks have no item, and the memory has little to do.
constexpr unsigned PIECE = 16 << 10;        // bytes
__device__ inline void fetch_ahead(const Attend& a) {
    const unsigned blocks = gridDim.x * gridDim.y, block = blockIdx.y * gridDim.x + blockIdx.x;
    const unsigned pieces = (a.ahead_bytes + PIECE - 1) / PIECE;
    for (unsigned piece = threadIdx.x * blocks + block; piece < pieces; piece += THREADS * blocks)
        cp_async_bulk_prefetch_L2(a.ahead + piece * PIECE, min(PIECE, a.ahead_bytes - piece * PIECE));
}

// Grid: (blocks that share the items, kv heads).
extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE) attend(Attend a) {
    DYNAMIC_SHARED(Stage, stage);
    Stage& s = *stage;
    griddepcontrol_launch_dependents();
    // Columns past a head's width multiply queries' zeros, so they hold numbers.
    for (unsigned slot = threadIdx.x; slot < BLOCK; slot += THREADS)
        for (unsigned column = HEAD_DIM; column < DIM; column++)
            keys_of(s)[slot * STRIDE + column] = values_of(s)[slot * STRIDE + column] = from_f32<CACHED>(0);
    griddepcontrol_wait();
    const Share* shares = shares_of(a.work);
    const unsigned rows = min(a.batch[ROWS], a.most_rows), items = a.work[ITEMS];
    if (items > 0) fetch_ahead(a);      // without items the product behind reads no weights either
    for (unsigned index = blockIdx.x; index < items; index += gridDim.x) {
        const unsigned at = last_at_most(rows, index, [&](unsigned row) { return shares[row].first_item; });
        const Row row = row_of(a.batch, at);
        const Share share = shares[at];
        const Item item = item_of(row, a.window, share, index - share.first_item, TILE);
        run_item(a, s, row, item, share.first_part);
    }
}

struct Merge {
    const unsigned* batch;
    const unsigned* work;
    const float* parts;         // [parts, PART]
    OPERAND* out;               // [tokens, heads · VALUE_DIM]
    unsigned most_rows, most_tokens, heads, window;
    const float* sinks;         // [heads], or null
};
// Where a multiprocessor runs 48 warps, the compiler would rather spill than have fewer of them.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890)
#define MERGE_BOUNDS __launch_bounds__(THREADS, 8)
#else
#define MERGE_BOUNDS __launch_bounds__(THREADS)
#endif
// Folds the parts of every query in the order of their spans. Blocks share
// queries, which are a token's heads in turn.
extern "C" __global__ void MERGE_BOUNDS attention_merge(Merge a) {
    begin_after_predecessors();
    if (a.work[PARTS] == 0) return;
    const unsigned rows = min(a.batch[ROWS], a.most_rows), tokens = min(a.batch[TOKENS], a.most_tokens);
    const Row* all = (const Row*)list(a.batch, ROWS_AT);
    for (unsigned query = blockIdx.x; query < tokens * a.heads; query += gridDim.x) {
        const unsigned token = query / a.heads;
        const unsigned at = last_at_most(rows, token, [&](unsigned row) { return all[row].start; });
        const Row row = all[at];
        const unsigned first_part = shares_of(a.work)[at].first_part;
        if (first_part == NO_PARTS || token - row.start >= row.q_len) continue;
        const size_t of = (size_t)(token - row.start) * a.heads + query % a.heads;
        const Extent e = extent_of(row, a.window);
        const Visible seen = visible(up_to(a.batch, row, token - row.start), a.window);
        const float* parts = a.parts + (first_part + of * e.spans) * PART;
        const unsigned first = seen.begin / SPAN - e.first_span, end = spans(seen.end) - e.first_span;
        for (unsigned column = threadIdx.x; column < VALUE_DIM; column += THREADS) {
            float max = -INFINITY, weight = 0, sum = 0;
            for (unsigned span = first; span < end; span++) {
                const float* part = parts + (size_t)span * PART;
                const Factors factors = fold_max(max, part[VALUE_DIM]);
                fold(weight, part[VALUE_DIM + 1], factors);
                fold(sum, part[column], factors);
            }
            if (a.sinks) sum = __fmul_rn(sum, fold_sink(max, weight, a.sinks[query % a.heads]));
            a.out[((size_t)token * a.heads + query % a.heads) * VALUE_DIM + column] = from_f32<OPERAND>(mean(sum, weight));
        }
    }
}
