// What the kernels of attention have in common: how an item finds its queries, keys and
// values, how spans are folded, and where results go.
//
// LATENT says that a value is the first VALUE_DIM columns of its key, and not a row of its own.
#pragma once
#include "softmax.cuh"
#include "tile.cuh"
#include "work.cuh"

constexpr unsigned PART = VALUE_DIM + 2;                        // sums of columns, maximum, sum of weights
constexpr unsigned NO_CELL = 0xffffffffu;
static_assert(SPAN % BLOCK == 0, "a block of positions lies in one span");

struct Attend {
    const float* queries;       // [tokens, query_stride], the queries of all heads first
    const CACHED* keys;         // [cells, kv_heads, HEAD_DIM]
    const CACHED* values;       // [cells, kv_heads, HEAD_DIM]
    const unsigned* batch;
    const unsigned* work;
    float* parts;               // [parts, PART]
    OPERAND* out;               // [tokens, heads · VALUE_DIM]
    unsigned most_rows, kv_heads, cells, page_size;
    float scale;                // of scores, with log₂ e in it
    unsigned group;             // of layers, whose page tables are read
    unsigned window;
    unsigned rounded;           // queries are CACHED, each head at the beginning of its place
    float softcap;              // of scores, with log₂ e in it; 0: none
    unsigned ahead_bytes;       // at `ahead`, a multiple of 16; 0: nothing is fetched
    const unsigned char* ahead; // weights of the product behind attention
    const float* sinks;         // [heads], or null
    unsigned query_stride;      // with keys and values behind queries, or without
    unsigned pad;
};

// A score from a product of query and key: scaled, and bounded where there is a softcap.
__device__ inline float score_of(const Attend& a, float product) {
    const float score = __fmul_rn(product, a.scale);
    return a.softcap > 0 ? a.softcap * tanhf(score / a.softcap) : score;
}

// A warp's running result of 16 queries: of `tile_row(0)` and `tile_row(2)` in a lane, for
// UNITS times 16 columns.
template <unsigned UNITS> struct Sums {
    float max[2], weight[2];
    float columns[UNITS][2][4];
};
template <unsigned UNITS> __device__ inline void clear(Sums<UNITS>& sums) {
    UNROLL
    for (unsigned half = 0; half < 2; half++) { sums.max[half] = -INFINITY; sums.weight[half] = 0; }
    UNROLL
    for (unsigned unit = 0; unit < UNITS; unit++)
        UNROLL
        for (unsigned j = 0; j < 2; j++)
            UNROLL
            for (unsigned i = 0; i < 4; i++) sums.columns[unit][j][i] = 0;
}

template <unsigned UNITS> __device__ inline void fold_span(Sums<UNITS>& total, const Sums<UNITS>& span) {
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

// The cell where a tile finds position `at`, if it sees that.
__device__ inline unsigned cell_of(const Attend& a, const Row& row, const Item& item, unsigned at, const Visible& seen) {
    if (at < seen.begin || at >= seen.end) return NO_CELL;
    if (item.own && at >= row.kv_len)
        at = row.kv_len + seen_token(mask_of(a.batch, row, item.query / GROUP), row, at - row.kv_len);
    const unsigned page = pages_of(a.batch, a.group)[row.pages + at / a.page_size];
    const unsigned cell = page * a.page_size + at % a.page_size;
    return cell < a.cells ? cell : NO_CELL;
}
// The positions that at least one query of a tile sees.
__device__ inline Visible seen_by_tile(const Attend& a, const Row& row, const Item& item) {
    const unsigned first = item.query / GROUP, last = (item.query + item.queries - 1) / GROUP;
    // Shared tiles of masked rows see cached positions alone. Pages before those that a query
    // sees may be gone.
    if (row.mask != CAUSAL && !item.own) {
        Visible seen = visible(row.kv_len, a.window);
        if (row.kv_len + row.q_len <= a.window) return seen;
        seen.begin = row.kv_len;
        for (unsigned token = first; token <= last; token++)
            seen.begin = min(seen.begin, visible(up_to(a.batch, row, token), a.window).begin);
        return seen;
    }
    return {visible(up_to(a.batch, row, first), a.window).begin, visible(up_to(a.batch, row, last), a.window).end};
}

// Begins to copy a block of keys or values; what has no cell is zero.
template <unsigned THREADS> __device__ inline void copy_block(const Attend& a, CACHED* to, const CACHED* from, const unsigned* cells) {
    constexpr unsigned EACH = 16 / sizeof(CACHED), CHUNKS = HEAD_DIM / EACH;
    for (unsigned i = threadIdx.x; i < BLOCK * CHUNKS; i += THREADS) {
        const unsigned slot = i / CHUNKS, column = i % CHUNKS * EACH, cell = cells[slot];
        const bool there = cell != NO_CELL;
        const size_t at = there ? ((size_t)cell * a.kv_heads + blockIdx.y) * HEAD_DIM + column : 0;
        cp_async_16(to + slot * STRIDE + column, from + at, there ? 16 : 0);
    }
}
// Begins to copy a tile's queries, and finds how far each sees. What is none is zero.
template <unsigned THREADS, unsigned COUNT>
__device__ inline void copy_queries(const Attend& a, CACHED* queries, unsigned (&ends)[COUNT], const Row& row, const Item& item) {
    constexpr unsigned EACH = 16 / sizeof(CACHED), CHUNKS = DIM / EACH;
    const size_t width = a.query_stride;
    for (unsigned i = threadIdx.x; i < COUNT * CHUNKS; i += THREADS) {
        const unsigned query = i / CHUNKS, column = i % CHUNKS * EACH;
        const bool there = query < item.queries && column < HEAD_DIM;
        const unsigned token = (item.query + query) / GROUP, head = blockIdx.y * GROUP + (item.query + query) % GROUP;
        const float* from = there ? a.queries + (row.start + token) * width + head * HEAD_DIM : a.queries;
        CACHED* to = queries + query * STRIDE + column;
        if (a.rounded) {
            cp_async_16(to, (const CACHED*)from + (there ? column : 0), there ? 16 : 0);
            continue;
        }
        UNROLL
        for (unsigned j = 0; j < EACH; j++) to[j] = from_f32<CACHED>(there ? from[column + j] : 0.0f);
    }
    if (threadIdx.x < COUNT) {
        const bool there = threadIdx.x < item.queries;
        ends[threadIdx.x] = there ? up_to(a.batch, row, (item.query + threadIdx.x) / GROUP) : 0;
    }
}

// Where a warp's sums lie in a tile.
struct Place {
    unsigned query;             // its first one
    unsigned unit, step;        // the first unit of 16 columns, and from one to the next
};
// Calls `put(query, column, half, left, right)` for what this lane has of the tile: the values
// of a column and of the next.
template <unsigned UNITS, class Put>
__device__ inline void for_each(const Sums<UNITS>& sums, const Item& item, const Place& place, Put put) {
    UNROLL
    for (unsigned unit = 0; unit < UNITS; unit++)
        UNROLL
        for (unsigned j = 0; j < 2; j++)
            UNROLL
            for (unsigned half = 0; half < 2; half++) {
                const unsigned column = (place.unit + unit * place.step) * 16 + tile_column(j, 0);
                const unsigned query = place.query + tile_row(2 * half);
                if (query < item.queries && column < VALUE_DIM)
                    put(item.query + query, column, half, sums.columns[unit][j][2 * half], sums.columns[unit][j][2 * half + 1]);
            }
}
// Leaves the result of span `number` where `attention_merge` finds it.
template <unsigned UNITS>
__device__ inline void leave_part(const Attend& a, const Row& row, const Item& item, unsigned first_part, unsigned number,
                                  const Place& place, const Sums<UNITS>& sums) {
    const Extent e = extent_of(row, a.window);
    const unsigned heads = a.kv_heads * GROUP, span = number - e.first_span;
    auto part = [&](unsigned query) {
        const size_t of = (size_t)query / GROUP * heads + blockIdx.y * GROUP + query % GROUP;
        return a.parts + (first_part + of * e.spans + span) * PART;
    };
    for_each(sums, item, place, [&](unsigned query, unsigned column, unsigned, float left, float right) {
        *(float2*)(part(query) + column) = {left, right};
    });
    if (place.unit == 0 && threadIdx.x % 4 == 0)
        UNROLL
        for (unsigned half = 0; half < 2; half++) {
            const unsigned query = place.query + tile_row(2 * half);
            if (query < item.queries) *(float2*)(part(item.query + query) + VALUE_DIM) = {sums.max[half], sums.weight[half]};
        }
}
template <unsigned UNITS>
__device__ inline void finish(const Attend& a, const Row& row, const Item& item, const Place& place, Sums<UNITS>& sums) {
    float kept[2] = {1, 1};
    if (a.sinks)
        UNROLL
        for (unsigned half = 0; half < 2; half++) {
            const unsigned head = blockIdx.y * GROUP + (item.query + place.query + tile_row(2 * half)) % GROUP;
            kept[half] = fold_sink(sums.max[half], sums.weight[half], a.sinks[head]);
        }
    struct __align__(2 * sizeof(OPERAND)) Two { OPERAND left, right; };
    for_each(sums, item, place, [&](unsigned query, unsigned column, unsigned half, float left, float right) {
        const size_t token = row.start + query / GROUP;
        const unsigned head = blockIdx.y * GROUP + query % GROUP;
        const float weight = half ? sums.weight[1] : sums.weight[0], factor = half ? kept[1] : kept[0];
        *(Two*)(a.out + (token * a.kv_heads * GROUP + head) * VALUE_DIM + column) =
            {from_f32<OPERAND>(mean(__fmul_rn(left, factor), weight)), from_f32<OPERAND>(mean(__fmul_rn(right, factor), weight))};
    });
}
