// Paged attention of a ragged batch: every row length, mask and page size.
#include "softmax.cuh"
#include "tile.cuh"
#include "work.cuh"

constexpr unsigned WARPS = 4, THREADS = 32 * WARPS;
constexpr unsigned UNITS = (DIM / 16 + WARPS - 1) / WARPS;      // of 16 columns, of one warp
constexpr unsigned PART = HEAD_DIM + 2;                         // sums of columns, maximum, sum of weights
constexpr unsigned NO_CELL = 0xffffffffu;
static_assert(BLOCK == 16 * WARPS, "each warp scores 16 positions");
static_assert(SPAN % BLOCK == 0, "a block of positions lies in one span");
static_assert(TILE == QUERIES, "a tile of work is one of queries");

struct Attend {
    const float* queries;       // [tokens, (heads + 2 · kv_heads) · HEAD_DIM], the queries first
    const CACHED* keys;         // [cells, kv_heads, HEAD_DIM]
    const CACHED* values;       // [cells, kv_heads, HEAD_DIM]
    const unsigned* batch;
    const unsigned* work;
    float* parts;               // [parts, PART]
    OPERAND* out;               // [tokens, heads · HEAD_DIM]
    unsigned most_rows, kv_heads, cells, page_size;
    float scale;                // of scores, with log₂ e in it
    unsigned group;             // of layers, whose page tables are read
    unsigned window;
    unsigned rounded;           // queries are CACHED, each head at the begin of its place
};

// What a block stages.
struct Stage {
    CACHED queries[QUERIES * STRIDE];
    CACHED keys[BLOCK * STRIDE];
    CACHED values[BLOCK * STRIDE];
    CACHED weights[QUERIES * WEIGHT_STRIDE];
    float maxima[WARPS][QUERIES];
    float sums[WARPS][QUERIES];
    unsigned up_to[QUERIES];    // positions up to each query's own
    unsigned cells[2][BLOCK];   // of this block of positions and the next
};
static_assert(sizeof(Stage) == STAGE_BYTES, "the launch asks for as much");
// Blocks that have to fit on a multiprocessor: it leaves each as many registers.
constexpr unsigned AT_ONCE = sizeof(Stage) > (48 << 10) ? 2 : 4;

// One tile's running result, in the lanes that compute it: rows `tile_row(0)`
// and `tile_row(2)`.
struct Sums {
    float max[2], weight[2];
    float columns[UNITS][2][4];
};
__device__ inline void clear(Sums& sums) {
    UNROLL
    for (unsigned half = 0; half < 2; half++) { sums.max[half] = -INFINITY; sums.weight[half] = 0; }
    UNROLL
    for (unsigned unit = 0; unit < UNITS; unit++)
        UNROLL
        for (unsigned j = 0; j < 2; j++)
            UNROLL
            for (unsigned i = 0; i < 4; i++) sums.columns[unit][j][i] = 0;
}

// The cell where a tile finds position `at`, if it sees that.
__device__ inline unsigned cell_of(const Attend& a, const Row& row, const Item& item, unsigned at, const Visible& seen) {
    if (at < seen.begin || at >= seen.end) return NO_CELL;
    if (item.own && at >= row.kv_len)
        at = row.kv_len + seen_token(mask_of(a.batch, row, item.query / GROUP), row, at - row.kv_len);
    const unsigned page = pages_of(a.batch, a.group)[row.pages + at / a.page_size];
    const unsigned cell = page * a.page_size + at % a.page_size;
    return cell < a.cells ? cell : NO_CELL;
}
// Begins to copy a block of keys or values; what has no cell is zero.
__device__ inline void copy_block(const Attend& a, CACHED* to, const CACHED* from, const unsigned* cells) {
    constexpr unsigned EACH = 16 / sizeof(CACHED), CHUNKS = HEAD_DIM / EACH;
    for (unsigned i = threadIdx.x; i < BLOCK * CHUNKS; i += THREADS) {
        const unsigned slot = i / CHUNKS, column = i % CHUNKS * EACH, cell = cells[slot];
        const bool there = cell != NO_CELL;
        const size_t at = there ? ((size_t)cell * a.kv_heads + blockIdx.y) * HEAD_DIM + column : 0;
        cp_async_16(to + slot * STRIDE + column, from + at, there ? 16 : 0);
    }
}
// Begins to copy the tile's queries; what is none is zero.
__device__ inline void copy_queries(const Attend& a, Stage& s, const Row& row, const Item& item) {
    constexpr unsigned EACH = 16 / sizeof(CACHED), CHUNKS = DIM / EACH;
    const size_t width = (size_t)a.kv_heads * (GROUP + 2) * HEAD_DIM;
    for (unsigned i = threadIdx.x; i < QUERIES * CHUNKS; i += THREADS) {
        const unsigned query = i / CHUNKS, column = i % CHUNKS * EACH;
        const bool there = query < item.queries && column < HEAD_DIM;
        const unsigned token = (item.query + query) / GROUP, head = blockIdx.y * GROUP + (item.query + query) % GROUP;
        const float* from = there ? a.queries + (row.start + token) * width + head * HEAD_DIM : a.queries;
        CACHED* to = s.queries + query * STRIDE + column;
        if (a.rounded) {
            cp_async_16(to, (const CACHED*)from + (there ? column : 0), there ? 16 : 0);
            continue;
        }
        UNROLL
        for (unsigned j = 0; j < EACH; j++) to[j] = from_f32<CACHED>(there ? from[column + j] : 0.0f);
    }
    if (threadIdx.x < QUERIES) {
        const bool there = threadIdx.x < item.queries;
        s.up_to[threadIdx.x] = there ? up_to(a.batch, row, (item.query + threadIdx.x) / GROUP) : 0;
    }
}

// Scores of this warp's 16 positions from `at` on, and each query's largest.
__device__ inline void score(const Attend& a, Stage& s, unsigned at, float (&scores)[2][4]) {
    const unsigned warp = threadIdx.x / 32;
    UNROLL
    for (unsigned j = 0; j < 2; j++)
        UNROLL
        for (unsigned i = 0; i < 4; i++) scores[j][i] = 0;
    multiply_keys(scores, s.queries, s.keys + warp * 16 * STRIDE);
    float max[2] = {-INFINITY, -INFINITY};
    UNROLL
    for (unsigned j = 0; j < 2; j++)
        UNROLL
        for (unsigned i = 0; i < 4; i++) {
            const Visible seen = visible(s.up_to[tile_row(i)], a.window);
            const unsigned position = at + warp * 16 + tile_column(j, i);
            const bool is_seen = seen.begin <= position && position < seen.end;
            scores[j][i] = is_seen ? __fmul_rn(scores[j][i], a.scale) : -INFINITY;
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
__device__ inline void weigh(Stage& s, Sums& span, float (&scores)[2][4], float (&faded)[2]) {
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
__device__ inline void gather(const Stage& s, Sums& span, const float (&faded)[2]) {
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
        if (column >= DIM) continue;        // the same for all lanes of the warp
        float (&columns)[2][4] = span.columns[unit];
        UNROLL
        for (unsigned j = 0; j < 2; j++)
            UNROLL
            for (unsigned i = 0; i < 4; i++) columns[j][i] = __fmul_rn(columns[j][i], faded[i / 2]);
        multiply_values(columns, s.weights, s.values + column);
    }
}
__device__ inline void fold_span(Sums& total, const Sums& span) {
    UNROLL
    for (unsigned half = 0; half < 2; half++) {
        const Factors factors = fold_max(total.max[half], span.max[half]);
        fold(total.weight[half], span.weight[half], factors);
        UNROLL
        for (unsigned unit = 0; unit < UNITS; unit++)
            UNROLL
            for (unsigned j = 0; j < 2; j++)
                UNROLL
                for (unsigned i = 2 * half; i < 2 * half + 2; i++)
                    fold(total.columns[unit][j][i], span.columns[unit][j][i], factors);
    }
}
// Calls `put(query, column, half, value)` for what this lane has of the tile.
template <class Put> __device__ inline void for_each(const Sums& sums, const Item& item, Put put) {
    UNROLL
    for (unsigned unit = 0; unit < UNITS; unit++)
        UNROLL
        for (unsigned j = 0; j < 2; j++)
            UNROLL
            for (unsigned i = 0; i < 4; i++) {
                const unsigned column = (unit * WARPS + threadIdx.x / 32) * 16 + tile_column(j, i);
                if (tile_row(i) < item.queries && column < HEAD_DIM)
                    put(item.query + tile_row(i), column, i / 2, sums.columns[unit][j][i]);
            }
}
// Leaves the result of span `number` where `attention_merge` finds it.
__device__ inline void leave_part(const Attend& a, const Row& row, const Item& item, unsigned first_part, unsigned number, const Sums& sums) {
    const Extent e = extent_of(row, a.window);
    const unsigned heads = a.kv_heads * GROUP, span = number - e.first_span;
    auto part = [&](unsigned query) {
        const size_t of = (size_t)query / GROUP * heads + blockIdx.y * GROUP + query % GROUP;
        return a.parts + (first_part + of * e.spans + span) * PART;
    };
    for_each(sums, item, [&](unsigned query, unsigned column, unsigned, float x) { part(query)[column] = x; });
    if (threadIdx.x < 32 && threadIdx.x % 4 == 0)
        for (unsigned half = 0; half < 2; half++)
            if (tile_row(2 * half) < item.queries) {
                float* to = part(item.query + tile_row(2 * half)) + HEAD_DIM;
                to[0] = sums.max[half];
                to[1] = sums.weight[half];
            }
}
__device__ inline void finish(const Attend& a, const Row& row, const Item& item, const Sums& sums) {
    for_each(sums, item, [&](unsigned query, unsigned column, unsigned half, float x) {
        const size_t token = row.start + query / GROUP;
        const unsigned head = blockIdx.y * GROUP + query % GROUP;
        const float weight = half ? sums.weight[1] : sums.weight[0];
        a.out[(token * a.kv_heads * GROUP + head) * HEAD_DIM + column] = from_f32<OPERAND>(mean(x, weight));
    });
}

// The positions that at least one query of a tile sees.
__device__ inline Visible seen_by_tile(const Attend& a, const Row& row, const Item& item) {
    // Shared tiles of masked rows see cached positions alone, down to those of a query that
    // sees no new token.
    if (row.mask != CAUSAL && !item.own) return visible(row.kv_len, a.window);
    const unsigned first = item.query / GROUP, last = (item.query + item.queries - 1) / GROUP;
    return {visible(up_to(a.batch, row, first), a.window).begin, visible(up_to(a.batch, row, last), a.window).end};
}

// One tile over its spans. While a block of positions is weighed, the next
// one's keys are on their way; while that is scored, its values. Behind the last
// block's last barrier nobody reads the stage, so that the next item may write.
__device__ inline void run_item(const Attend& a, Stage& s, const Row& row, const Item& item, unsigned first_part) {
    Visible seen = seen_by_tile(a, row, item);
    const unsigned begin = max(item.first_span * SPAN, seen.begin / BLOCK * BLOCK);
    const unsigned end = seen.end = min((item.first_span + item.spans) * SPAN, seen.end);
    if (item.split && begin >= end) return;         // no query sees any of this
    copy_queries(a, s, row, item);
    if (threadIdx.x < BLOCK) s.cells[0][threadIdx.x] = cell_of(a, row, item, begin + threadIdx.x, seen);
    __syncthreads();
    if (begin < end) copy_block(a, s.keys, a.keys, s.cells[0]);
    cp_async_commit_group();
    if (begin < end) copy_block(a, s.values, a.values, s.cells[0]);
    cp_async_commit_group();
    Sums total, span;
    clear(total);
    clear(span);
    unsigned turn = 0;
    for (unsigned at = begin; at < end; at += BLOCK) {
        const unsigned next = at + BLOCK;
        turn ^= 1;
        if (threadIdx.x < BLOCK) s.cells[turn][threadIdx.x] = cell_of(a, row, item, next + threadIdx.x, seen);
        float scores[2][4], faded[2];
        cp_async_wait_group<1>();
        __syncthreads();                            // keys, queries and cells are there
        score(a, s, at, scores);
        __syncthreads();                            // maxima are there, keys are done with
        if (next < end) copy_block(a, s.keys, a.keys, s.cells[turn]);
        cp_async_commit_group();
        weigh(s, span, scores, faded);
        cp_async_wait_group<1>();
        __syncthreads();                            // values, weights and sums are there
        gather(s, span, faded);
        __syncthreads();                            // and done with
        if (next < end) copy_block(a, s.values, a.values, s.cells[turn]);
        cp_async_commit_group();
        if (next % SPAN == 0 || next >= end) {
            if (item.split) leave_part(a, row, item, first_part, at / SPAN, span);
            else fold_span(total, span);
            clear(span);
        }
    }
    cp_async_wait_group<0>();
    if (!item.split) finish(a, row, item, total);
}

// Grid: (blocks that share the items, kv heads).
extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE) attend(Attend a) {
    DYNAMIC_SHARED(Stage, stage);
    Stage& s = *stage;
    // Columns past a head's width multiply queries' zeros, so they hold numbers.
    for (unsigned slot = threadIdx.x; slot < BLOCK; slot += THREADS)
        for (unsigned column = HEAD_DIM; column < DIM; column++)
            s.keys[slot * STRIDE + column] = s.values[slot * STRIDE + column] = from_f32<CACHED>(0);
    const unsigned* first_items = a.work + FIRST;
    const unsigned rows = min(a.batch[ROWS], a.most_rows), items = a.work[ITEMS];
    for (unsigned index = blockIdx.x; index < items; index += gridDim.x) {
        const unsigned at = last_at_most(rows, index, [&](unsigned row) { return first_items[row]; });
        const Row row = row_of(a.batch, at);
        const unsigned first_part = first_items[a.most_rows + at];
        const Item item = item_of(row, a.window, index - first_items[at], first_part != NO_PARTS);
        run_item(a, s, row, item, first_part);
    }
}

struct Merge {
    const unsigned* batch;
    const unsigned* work;
    const float* parts;         // [parts, PART]
    OPERAND* out;               // [tokens, heads · HEAD_DIM]
    unsigned most_rows, most_tokens, heads, window;
};
// Folds the parts of every query in the order of their spans. Blocks share
// queries, which are a token's heads in turn.
extern "C" __global__ void __launch_bounds__(THREADS) attention_merge(Merge a) {
    if (a.work[PARTS] == 0) return;
    const unsigned rows = min(a.batch[ROWS], a.most_rows), tokens = min(a.batch[TOKENS], a.most_tokens);
    const Row* all = (const Row*)list(a.batch, ROWS_AT);
    for (unsigned query = blockIdx.x; query < tokens * a.heads; query += gridDim.x) {
        const unsigned token = query / a.heads;
        const unsigned at = last_at_most(rows, token, [&](unsigned row) { return all[row].start; });
        const Row row = all[at];
        const unsigned first_part = a.work[FIRST + a.most_rows + at];
        if (first_part == NO_PARTS || token - row.start >= row.q_len) continue;
        const size_t of = (size_t)(token - row.start) * a.heads + query % a.heads;
        const Extent e = extent_of(row, a.window);
        const Visible seen = visible(up_to(a.batch, row, token - row.start), a.window);
        const float* parts = a.parts + (first_part + of * e.spans) * PART;
        const unsigned first = seen.begin / SPAN - e.first_span, end = spans(seen.end) - e.first_span;
        for (unsigned column = threadIdx.x; column < HEAD_DIM; column += THREADS) {
            float max = -INFINITY, weight = 0, sum = 0;
            for (unsigned span = first; span < end; span++) {
                const float* part = parts + (size_t)span * PART;
                const Factors factors = fold_max(max, part[HEAD_DIM]);
                fold(weight, part[HEAD_DIM + 1], factors);
                fold(sum, part[column], factors);
            }
            a.out[((size_t)token * a.heads + query % a.heads) * HEAD_DIM + column] = from_f32<OPERAND>(mean(sum, weight));
        }
    }
}
