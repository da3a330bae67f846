// Cuts a batch into items of attention's work.
#include "work.cuh"

struct Plan {
    const unsigned* batch;
    unsigned* work;
    unsigned most_rows;
    unsigned heads;
    unsigned split_tiles;       // rows of more tiles are not split
    unsigned busy_items;        // with as many whole items, only long rows are split
    unsigned least_wide;        // with fewer wide items there are none
    unsigned most_parts;
    unsigned window, pad;
};

typedef unsigned long long Count;
template <class T> __device__ inline T sum_up_to(T x) {
    for (unsigned d = 1; d < 32; d *= 2) {
        const T below = __shfl_up_sync(0xffffffffu, x, d);
        if (threadIdx.x >= d) x += below;
    }
    return x;
}
template <class T> __device__ inline T last_of(T x) { return __shfl_sync(0xffffffffu, x, 31); }

// Whether a row has wide tiles if the batch has enough of them.
__device__ inline bool may_be_wide(const Row& row) { return row.q_len * GROUP >= WIDE_TILE; }

// What a batch has to do: whole items without wide tiles and with them, wide items, and spans.
struct Whole { Count narrow, mixed, wide, spans; };
__device__ inline Whole whole_of(const Plan& a, unsigned rows) {
    Whole all = {0, 0, 0, 0};
    for (unsigned at = threadIdx.x; at < rows; at += 32) {
        const Row row = row_of(a.batch, at);
        const Extent e = extent_of(row, a.window), wide = extent_of(row, a.window, WIDE_TILE);
        const bool causal = row.mask == CAUSAL, may = may_be_wide(row);
        all.narrow += whole_items(row, e);
        all.mixed += whole_items(row, may ? wide : e);
        if (may) all.wide += causal ? wide.shared_tiles : wide.shared_runs * wide.shared_tiles;
        all.spans += e.spans;
    }
    return {last_of(sum_up_to(all.narrow)), last_of(sum_up_to(all.mixed)), last_of(sum_up_to(all.wide)),
            last_of(sum_up_to(all.spans))};
}

// A row's items in both lists.
struct Items { unsigned narrow, wide; };
__device__ inline Items items_of(const Row& row, const Extent& e, bool split, bool wide) {
    const unsigned shared = split ? e.shared_runs * e.shared_tiles : whole_items(row, e);
    const unsigned own = split ? e.own_runs * e.token_tiles : 0;
    return {wide ? own : shared + own, wide ? shared : 0};
}

// One warp, once per pass.
//
// Wide tiles read keys and values less often, but fill a device only where there are many.
// Splitting fills the device where whole items are few. Where they are many, parts would only
// cost their way through memory, but for rows that would still run when all others are done.
// Masked rows are split in any case, since their tokens share the spans of cached positions.
extern "C" __global__ void __launch_bounds__(32) attention_plan(Plan a) {
    const unsigned rows = min(a.batch[ROWS], a.most_rows), lane = threadIdx.x;
    const Whole whole = whole_of(a, rows);
    const bool has_wide = whole.wide >= a.least_wide;
    const bool busy = (has_wide ? whole.mixed : whole.narrow) >= a.busy_items;
    unsigned items = 0, wide_items = 0;
    Count parts = 0;
    for (unsigned first = 0; first < rows; first += 32) {
        const bool there = first + lane < rows;
        const Row row = there ? row_of(a.batch, first + lane) : Row{0, 0, 0, 0, CAUSAL};
        const Extent e = extent_of(row, a.window);
        const bool causal = row.mask == CAUSAL;
        const bool is_long = (Count)2 * e.spans * rows > 3 * whole.spans;       // than the mean
        const bool fills = e.shared_tiles <= a.split_tiles && (!busy || is_long);
        const bool helps = e.shared_runs + e.own_runs > 1 && (!causal || fills);
        const Count wants = helps ? (Count)row.q_len * a.heads * e.spans : 0;
        const Count with = parts + sum_up_to(wants);
        const bool split = wants > 0 && with <= a.most_parts;
        // Whole items of a masked row have positions of their own.
        const bool wide = has_wide && may_be_wide(row) && (causal || split);
        const unsigned tile = wide ? WIDE_TILE : TILE;
        const Items mine = items_of(row, extent_of(row, a.window, tile), split, wide);
        const unsigned with_items = items + sum_up_to(mine.narrow), with_wide = wide_items + sum_up_to(mine.wide);
        if (there)
            ((Share*)(a.work + SHARES))[first + lane] = {with_items - mine.narrow, with_wide - mine.wide,
                                                         split ? (unsigned)(with - wants) : NO_PARTS, tile};
        items = last_of(with_items);
        wide_items = last_of(with_wide);
        parts = last_of(with);
    }
    if (lane == 0) {
        a.work[ITEMS] = items;
        a.work[WIDE_ITEMS] = wide_items;
        a.work[PARTS] = (unsigned)min(parts, (Count)a.most_parts);
    }
}
