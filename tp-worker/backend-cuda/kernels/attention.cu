// Paged attention of a ragged batch: every row length, mask and page size.
#include "tiles.cuh"

constexpr unsigned THREADS = 32 * WARPS;
static_assert(TILE == QUERIES, "a tile of work is one of queries");
typedef Staged<1> Stage;
static_assert(sizeof(Stage) == STAGE_BYTES, "the launch asks for as much");
// Blocks that have to fit on a multiprocessor: it leaves each as many registers.
constexpr unsigned AT_ONCE = sizeof(Stage) > (48 << 10) ? 2 : 4;

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
    fill_padding(s);
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
