// Paged attention of rows with many queries, such as prompts: keys and values come to shared
// memory once for 64 queries instead of once for 16. A warp has 16 queries and all columns, so
// that its weights go from one product to the next in registers.
//
// Every sum has the order that it has in attention.cu, so both give the same bits: the weights
// of each 16 positions by themselves, then in their order; products in steps of 16; and spans
// folded one behind the other.
#include "attend.cuh"

constexpr unsigned WARPS = 4, THREADS = 32 * WARPS;
constexpr unsigned UNITS = DIM / 16;        // of 16 columns
constexpr unsigned GROUPS = BLOCK / 16;     // of 16 positions
static_assert(WIDE_TILE == QUERIES * WARPS, "each warp has a tile of queries");
static_assert(THREADS == 2 * BLOCK, "a thread finds one cell of two blocks");

// What a block stages. Keys and values of two blocks of positions: while one is multiplied, the
// next is on its way.
struct Stage {
    CACHED queries[WIDE_TILE * STRIDE];
    CACHED keys[2][BLOCK * STRIDE];
    CACHED values[2][BLOCK * STRIDE];
    unsigned up_to[WIDE_TILE];  // positions up to each query's own
    unsigned cells[2][BLOCK];
};
static_assert(sizeof(Stage) == WIDE_STAGE_BYTES, "the launch asks for as much");

// Scores of a warp's queries, and then their weights as the second product takes them.
typedef float Scores[GROUPS][2][4];
typedef unsigned Weights[GROUPS][4];

// sums += queries · keysᵀ, as `multiply_keys` does for 16 keys.
__device__ inline void multiply_all_keys(Scores& scores, const CACHED* queries, const CACHED* keys) {
    const unsigned lane = threadIdx.x % 32;
    UNROLL
    for (unsigned at = 0; at < DIM; at += 16) {
        unsigned a[4];
        ldmatrix_x4(a, queries + lane % 16 * STRIDE + at + lane / 16 * 8);
        UNROLL
        for (unsigned group = 0; group < GROUPS; group++) {
            unsigned b[4];
            ldmatrix_x4(b, keys + (group * 16 + lane / 16 * 8 + lane % 8) * STRIDE + at + lane / 8 % 2 * 8);
            const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
            mma_m16n8k16_bf16(scores[group][0], a, left);
            mma_m16n8k16_bf16(scores[group][1], a, right);
        }
    }
}
// Scores of a block's positions from `at` on; what a query does not see has none.
__device__ inline void score(const Attend& a, const Stage& s, unsigned turn, unsigned at, Scores& scores) {
    const unsigned first = threadIdx.x / 32 * QUERIES;
    UNROLL
    for (unsigned group = 0; group < GROUPS; group++)
        UNROLL
        for (unsigned j = 0; j < 2; j++)
            UNROLL
            for (unsigned i = 0; i < 4; i++) scores[group][j][i] = 0;
    multiply_all_keys(scores, s.queries + first * STRIDE, s.keys[turn]);
    UNROLL
    for (unsigned half = 0; half < 2; half++) {
        const Visible seen = visible(s.up_to[first + tile_row(2 * half)], a.window);
        UNROLL
        for (unsigned group = 0; group < GROUPS; group++)
            UNROLL
            for (unsigned j = 0; j < 2; j++)
                UNROLL
                for (unsigned i = 2 * half; i < 2 * half + 2; i++) {
                    const unsigned position = at + group * 16 + tile_column(j, i);
                    const bool is_seen = seen.begin <= position && position < seen.end;
                    scores[group][j][i] = is_seen ? score_of(a, scores[group][j][i]) : -INFINITY;
                }
    }
}
// Turns scores into weights against the new maxima, and fades what was summed so far. Weights
// are summed as they are multiplied.
__device__ inline void weigh(Sums<UNITS>& span, const Scores& scores, Weights& weights) {
    UNROLL
    for (unsigned half = 0; half < 2; half++) {
        float max = -INFINITY;
        UNROLL
        for (unsigned group = 0; group < GROUPS; group++)
            UNROLL
            for (unsigned j = 0; j < 2; j++) max = fmaxf(max, fmaxf(scores[group][j][2 * half], scores[group][j][2 * half + 1]));
        for (unsigned d = 1; d < 4; d *= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, d));
        max = fmaxf(max, span.max[half]);
        const float base = base_of(max), faded = fade(span.max[half], base);
        span.max[half] = max;
        float all = 0;
        UNROLL
        for (unsigned group = 0; group < GROUPS; group++) {
            float sum = 0;
            UNROLL
            for (unsigned j = 0; j < 2; j++) {
                const unsigned two = cvt_rn_bf16x2(fade(scores[group][j][2 * half], base), fade(scores[group][j][2 * half + 1], base));
                sum = __fadd_rn(sum, __uint_as_float(two << 16));
                sum = __fadd_rn(sum, __uint_as_float(two & 0xffff0000u));
                weights[group][2 * j + half] = two;
            }
            for (unsigned d = 1; d < 4; d *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, d));
            all = __fadd_rn(all, sum);
        }
        span.weight[half] = __fmaf_rn(span.weight[half], faded, all);
        UNROLL
        for (unsigned unit = 0; unit < UNITS; unit++)
            UNROLL
            for (unsigned j = 0; j < 2; j++)
                UNROLL
                for (unsigned i = 2 * half; i < 2 * half + 2; i++) span.columns[unit][j][i] = __fmul_rn(span.columns[unit][j][i], faded);
    }
}
// Adds the block's weighted values.
__device__ inline void gather(Sums<UNITS>& span, const Weights& weights, const CACHED* values) {
    const unsigned lane = threadIdx.x % 32;
    UNROLL
    for (unsigned group = 0; group < GROUPS; group++)
        UNROLL
        for (unsigned unit = 0; unit < UNITS; unit++) {
            unsigned b[4];
            ldmatrix_x4_trans(b, values + (group * 16 + lane % 16) * STRIDE + unit * 16 + lane / 16 * 8);
            const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
            mma_m16n8k16_bf16(span.columns[unit][0], weights[group], left);
            mma_m16n8k16_bf16(span.columns[unit][1], weights[group], right);
        }
}

// One tile over its spans. A block's keys and values are on their way since the block before.
// Behind the last block's last barrier nobody touches queries or cells, so that the next item
// may write them.
__device__ inline void run_item(const Attend& a, Stage& s, const Row& row, const Item& item, unsigned first_part) {
    Visible seen = seen_by_tile(a, row, item);
    const unsigned begin = max(item.first_span * SPAN, seen.begin / BLOCK * BLOCK);
    const unsigned end = seen.end = min((item.first_span + item.spans) * SPAN, seen.end);
    if (item.split && begin >= end) return;         // no query sees any of this
    const unsigned slot = threadIdx.x % BLOCK, odd = threadIdx.x / BLOCK;
    copy_queries<THREADS>(a, s.queries, s.up_to, row, item);
    s.cells[odd][slot] = cell_of(a, row, item, begin + odd * BLOCK + slot, seen);
    __syncthreads();                                // first cells are there
    if (begin < end) copy_block<THREADS>(a, s.keys[0], a.keys, s.cells[0]);
    cp_async_commit_group();
    if (begin < end) copy_block<THREADS>(a, s.values[0], a.values, s.cells[0]);
    cp_async_commit_group();
    const Place place = {threadIdx.x / 32 * QUERIES, 0, 1};
    Sums<UNITS> total, span;
    clear(total);
    clear(span);
    unsigned turn = 0;
    for (unsigned at = begin; at < end; at += BLOCK, turn ^= 1) {
        const unsigned next = at + BLOCK;
        Scores scores;
        Weights weights;
        cp_async_wait_group<1>();
        __syncthreads();                            // keys are there, and the block before is done with
        if (next < end) copy_block<THREADS>(a, s.keys[turn ^ 1], a.keys, s.cells[turn ^ 1]);
        cp_async_commit_group();
        score(a, s, turn, at, scores);
        weigh(span, scores, weights);
        cp_async_wait_group<1>();
        __syncthreads();                            // all of the values are there
        if (next < end) copy_block<THREADS>(a, s.values[turn ^ 1], a.values, s.cells[turn ^ 1]);
        cp_async_commit_group();
        if (odd == 0 && next + BLOCK < end) s.cells[turn][slot] = cell_of(a, row, item, next + BLOCK + slot, seen);
        gather(span, weights, s.values[turn]);
        if (next % SPAN == 0 || next >= end) {
            if (item.split) leave_part(a, row, item, first_part, at / SPAN, place, span);
            else fold_span(total, span);
            clear(span);
        }
    }
    cp_async_wait_group<0>();
    if (!item.split) finish(a, row, item, place, total);
}

// Grid: (blocks that share the items, kv heads). Items of a row become lighter, so blocks take
// them to and fro.
extern "C" __global__ void __launch_bounds__(THREADS, 2) attend_wide(Attend a) {
    DYNAMIC_SHARED(Stage, stage);
    Stage& s = *stage;
    griddepcontrol_launch_dependents();
    // Columns past a head's width multiply queries' zeros, so they hold numbers.
    const unsigned slot = threadIdx.x % BLOCK, odd = threadIdx.x / BLOCK;
    for (unsigned at = slot * STRIDE + HEAD_DIM; at < slot * STRIDE + DIM; at++)
        s.keys[odd][at] = s.values[odd][at] = from_f32<CACHED>(0);
    griddepcontrol_wait();
    const Share* shares = shares_of(a.work);
    const unsigned rows = min(a.batch[ROWS], a.most_rows), items = a.work[WIDE_ITEMS];
    for (unsigned first = 0; first < items; first += gridDim.x) {
        const bool back = first / gridDim.x % 2 != 0;
        const unsigned index = first + (back ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        if (index >= items) continue;               // the same for all threads
        const unsigned at = last_at_most(rows, index, [&](unsigned row) { return shares[row].first_wide; });
        const Row row = row_of(a.batch, at);
        const Share share = shares[at];
        const Item item = item_of(row, a.window, share, index - share.first_wide, WIDE_TILE);
        run_item(a, s, row, item, share.first_part);
    }
}
