// Cuts a batch into items of attention's work.
#include "work.cuh"

struct Plan {
    const unsigned* batch;
    unsigned* work;
    unsigned most_rows;
    unsigned heads;
    unsigned split_tiles;       // rows of more tiles are not split
    unsigned busy_items;        // with as many whole items, only long rows are split
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
template <class T> __device__ inline T last_of(T x) { return __shfl_sync(0xffffffffu, x, 31); }

// What a batch has to do if no row is split.
struct Whole { Count items, spans; };
__device__ inline Whole whole_of(const Plan& a, unsigned rows) {
    Whole all = {0, 0};
    for (unsigned at = threadIdx.x; at < rows; at += 32) {
        const Row row = row_of(a.batch, at);
        const Extent e = extent_of(row, a.window);
        all.items += whole_items(row, e);
        all.spans += e.spans;
    }
    return {last_of(sum_up_to(all.items)), last_of(sum_up_to(all.spans))};
}

// One warp, once per pass.
//
// Splitting fills the device where whole items are few. Where they are many, parts would only
// cost their way through memory, but for rows that would still run when all others are done.
// Masked rows are split in any case, since their tokens share the spans of cached positions.
extern "C" __global__ void __launch_bounds__(32) attention_plan(Plan a) {
    const unsigned rows = min(a.batch[ROWS], a.most_rows), lane = threadIdx.x;
    const Whole whole = whole_of(a, rows);
    unsigned items = 0;
    Count parts = 0;
    for (unsigned first = 0; first < rows; first += 32) {
        const bool there = first + lane < rows;
        const Row row = there ? row_of(a.batch, first + lane) : Row{0, 0, 0, 0, CAUSAL};
        const Extent e = extent_of(row, a.window);
        const bool is_long = (Count)2 * e.spans * rows > 3 * whole.spans;       // than the mean
        const bool fills = e.shared_tiles <= a.split_tiles && (whole.items < a.busy_items || is_long);
        const bool helps = e.shared_runs + e.own_runs > 1 && (row.mask != CAUSAL || fills);
        const Count wants = helps ? (Count)row.q_len * a.heads * e.spans : 0;
        const Count with = parts + sum_up_to(wants);
        const bool split = wants > 0 && with <= a.most_parts;
        const unsigned mine = split ? split_items(e) : whole_items(row, e);
        const unsigned with_items = items + sum_up_to(mine);
        if (there) {
            a.work[FIRST + first + lane] = with_items - mine;
            a.work[FIRST + a.most_rows + first + lane] = split ? (unsigned)(with - wants) : NO_PARTS;
        }
        items = last_of(with_items);
        parts = last_of(with);
    }
    if (lane == 0) {
        a.work[ITEMS] = items;
        a.work[PARTS] = (unsigned)min(parts, (Count)a.most_parts);
    }
}
