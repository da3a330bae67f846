// Cuts a batch into items of attention's work.
#include "work.cuh"

struct Plan {
    const unsigned* batch;
    unsigned* work;
    unsigned most_rows;
    unsigned heads;
    unsigned split_tiles;       // rows of more tiles are not split
    unsigned blocks;            // that share the items of one key head, running at once
    unsigned wide_blocks;       // the same of wide items
    unsigned least_wide;        // with fewer wide items there are none
    unsigned most_parts;
    unsigned window;
};

typedef unsigned long long Count;
template <class T> __device__ inline T sum_up_to(T x) {
    for (unsigned d = 1; d < 32; d *= 2) {
        const T below = __shfl_up_sync(0xffffffffu, x, d);
        if (threadIdx.x >= d) x += below;
    }
    return x;
}
__device__ inline unsigned most_up_to(unsigned x) {
    for (unsigned d = 1; d < 32; d *= 2) x = max(x, __shfl_up_sync(0xffffffffu, x, d));     // the lowest get their own
    return x;
}
template <class T> __device__ inline T last_of(T x) { return __shfl_sync(0xffffffffu, x, 31); }

// Whether a row has wide tiles if the batch has enough of them.
__device__ inline bool may_be_wide(const Row& row) { return row.q_len * GROUP >= WIDE_TILE; }

// Most spans that one tile of a row reads.
__device__ inline unsigned tile_spans(const Plan& a, const Extent& e) { return min(e.spans, a.window / SPAN + 2); }

// Half spans that a row's tiles read. A prompt's tiles see half of its own spans on average.
struct HalfSpans { Count shared, own; };
__device__ inline HalfSpans work_of(const Plan& a, const Row& row, const Extent& e) {
    if (row.mask != CAUSAL)
        return {(Count)2 * e.shared_tiles * e.shared_spans, (Count)2 * e.token_tiles * (e.spans - e.shared_spans)};
    const unsigned mean = min(2 * e.spans + 1 - spans(row.q_len), 2 * tile_spans(a, e));
    return {(Count)e.shared_tiles * mean, 0};
}

// What the blocks of one kernel have to do, in half spans.
struct Load {
    Count work, even;           // of all rows, and of those that may be split and are not long
    unsigned longest, blocks;   // spans of one item of the even rows
};
// The sum of what the warp's lanes know.
__device__ inline Load summed(const Load& of) { return {last_of(sum_up_to(of.work)), 0, 0, of.blocks}; }
// Whether one item of so many spans would still run when a quarter of the time was idle elsewhere.
__device__ inline bool is_long(const Load& of, unsigned spans) { return (Count)3 * spans * of.blocks > 2 * of.work; }
// Whether blocks are busy for three quarters of the turns that even rows take unsplit.
__device__ inline bool is_busy(const Load& of) {
    const Count turn = (Count)2 * of.longest * of.blocks;
    return turn > 0 && 4 * of.work >= 3 * turn * ((of.even + turn - 1) / turn);
}

// Both kernels' loads; `wide.blocks` is zero where no item is wide.
struct Loads { Load narrow, wide; };
__device__ inline bool is_wide(const Loads& loads, const Row& row) { return loads.wide.blocks > 0 && may_be_wide(row); }
__device__ inline Load load_of(const Loads& loads, bool wide) {
    return {wide ? loads.wide.work : loads.narrow.work, 0, 0, wide ? loads.wide.blocks : loads.narrow.blocks};
}

// Adds up the work of all rows, and finds out whether there are wide items.
__device__ inline Loads work_of_all(const Plan& a, unsigned rows) {
    Load narrow = {0, 0, 0, a.blocks}, mixed = narrow, wide = {0, 0, 0, a.wide_blocks};
    Count items = 0;
    for (unsigned at = threadIdx.x; at < rows; at += 32) {
        const Row row = row_of(a.batch, at);
        const Extent e = extent_of(row, a.window);
        const HalfSpans work = work_of(a, row, e);
        narrow.work += work.shared + work.own;
        mixed.work += work.own;
        if (may_be_wide(row)) {
            const Extent of = extent_of(row, a.window, WIDE_TILE);
            wide.work += work_of(a, row, of).shared;
            items += row.mask == CAUSAL ? of.shared_tiles : of.shared_runs * of.shared_tiles;
        } else {
            mixed.work += work.shared;
        }
    }
    if (last_of(sum_up_to(items)) >= a.least_wide) return {summed(mixed), summed(wide)};
    return {summed(narrow), {0, 0, 0, 0}};
}

// Whether a causal row can be split at all.
__device__ inline bool may_be_split(const Plan& a, const Extent& e) {
    return e.shared_runs > 1 && e.shared_tiles <= a.split_tiles;
}

// Of even rows, which are told from long ones when all work is known.
struct Even { Count work; unsigned longest; };
__device__ inline Even even_with(const Even& even, Count work, unsigned spans, bool counts) {
    return {even.work + (counts ? work : 0), counts ? max(even.longest, spans) : even.longest};
}
__device__ inline Load load_with(const Load& of, const Even& even) {
    return {of.work, last_of(sum_up_to(even.work)), last_of(most_up_to(even.longest)), of.blocks};
}
__device__ inline Loads with_even(const Plan& a, unsigned rows, const Loads& loads) {
    Even even = {0, 0}, wide_even = even;
    for (unsigned at = threadIdx.x; at < rows; at += 32) {
        const Row row = row_of(a.batch, at);
        const bool wide = is_wide(loads, row);
        const Extent e = extent_of(row, a.window);
        const unsigned spans = tile_spans(a, e);
        if (row.mask != CAUSAL || !may_be_split(a, e) || is_long(load_of(loads, wide), spans)) continue;
        const Count work = work_of(a, row, wide ? extent_of(row, a.window, WIDE_TILE) : e).shared;
        even = even_with(even, work, spans, !wide);
        wide_even = even_with(wide_even, work, spans, wide);
    }
    return {load_with(loads.narrow, even), load_with(loads.wide, wide_even)};
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
// Parts cost their way through memory, so a row is split only where whole items would leave
// blocks idle: it is longer than a block's share of the work, or the last turn of blocks would
// be almost empty.
// Masked rows are split in any case, since their tokens share the spans of cached positions.
extern "C" __global__ void __launch_bounds__(32) attention_plan(Plan a) {
    begin_after_predecessors();
    const unsigned rows = min(a.batch[ROWS], a.most_rows), lane = threadIdx.x;
    const Loads loads = with_even(a, rows, work_of_all(a, rows));
    const bool busy = is_busy(loads.narrow), wide_busy = is_busy(loads.wide);
    unsigned items = 0, wide_items = 0;
    Count parts = 0;
    for (unsigned first = 0; first < rows; first += 32) {
        const bool there = first + lane < rows;
        const Row row = there ? row_of(a.batch, first + lane) : Row{0, 0, 0, 0, CAUSAL};
        const Extent e = extent_of(row, a.window);
        const bool causal = row.mask == CAUSAL;
        const bool tends_wide = is_wide(loads, row);
        const bool idles = !(tends_wide ? wide_busy : busy) || is_long(load_of(loads, tends_wide), tile_spans(a, e));
        const bool helps = causal ? may_be_split(a, e) && idles : e.shared_runs + e.own_runs > 1;
        const Count wants = helps ? (Count)row.q_len * a.heads * e.spans : 0;
        const Count with = parts + sum_up_to(wants);
        const bool split = wants > 0 && with <= a.most_parts;
        // Whole items of a masked row have positions of their own.
        const bool wide = tends_wide && (causal || split);
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
