// How attention is cut into items of work, of which each block takes some.
//
// A request's positions fall into spans of SPAN, counted from its first one,
// and a query's result is what its spans give, each by itself, folded in their
// order. Which items compute the spans never shows in it: a row's queries are
// cut into tiles of 16, or wide ones of WIDE_TILE (a group's heads times new tokens), and an item is
// one tile over one span, left in `parts` for `attention_merge`, or, where tiles
// are many or parts have no room, one tile over all its spans. A short last span is not worth an
// item: it goes with the one before, and leaves a part of its own.
//
// The new tokens that a query of a masked row sees are attended as if they lay
// one behind the other. So spans that reach into them are computed with tiles of
// one token's heads; spans of cached positions alone are cut as ever.
#pragma once
#include "batch.cuh"

constexpr unsigned SPAN = 256;
constexpr unsigned TILE = 16;
constexpr unsigned SHORT = 64;      // positions: a last span of fewer goes with the one before
constexpr unsigned NO_PARTS = 0xffffffffu;
// Words of the work list: items, wide ones, parts, and for each row its share.
enum Work : unsigned { ITEMS, WIDE_ITEMS, PARTS, SHARES = 4 };
struct __align__(16) Share {
    unsigned first_item, first_wide, first_part;
    unsigned tile;              // of the queries that spans have in common
};
__device__ inline const Share* shares_of(const unsigned* work) { return (const Share*)(work + SHARES); }

__device__ inline unsigned spans(unsigned positions) { return (positions + SPAN - 1) / SPAN; }
__device__ inline unsigned tiles(unsigned queries, unsigned tile = TILE) { return (queries + tile - 1) / tile; }

// What one row has to do.
struct Extent {
    unsigned first_span;        // that a query sees
    unsigned spans;             // from that one on
    unsigned shared_spans;      // of those, how many are cut into tiles of several tokens
    unsigned shared_runs;       // items of one tile in these spans, if they are split
    unsigned own_runs;          // and in those behind them
    unsigned shared_tiles;      // in each of the shared spans
    unsigned token_tiles;       // tiles of one token, times new tokens
};
__device__ inline Extent extent_of(const Row& row, unsigned window, unsigned tile = TILE) {
    Extent e;
    // The first query sees the earliest positions; a masked one has the cached ones before it.
    e.first_span = visible(row.mask == CAUSAL ? row.kv_len + 1 : row.kv_len, window).begin / SPAN;
    e.spans = spans(row.kv_len + row.q_len) - e.first_span;
    e.shared_spans = row.mask == CAUSAL ? e.spans : row.kv_len / SPAN - e.first_span;
    const unsigned own_spans = e.spans - e.shared_spans, last = (row.kv_len + row.q_len) % SPAN;
    const bool is_short = last > 0 && last < SHORT;
    e.shared_runs = e.shared_spans - (is_short && own_spans == 0 && e.shared_spans > 1);
    e.own_runs = own_spans - (is_short && own_spans > 1);
    e.shared_tiles = tiles(row.q_len * GROUP, tile);
    e.token_tiles = row.q_len * tiles(GROUP);
    return e;
}
__device__ inline unsigned whole_items(const Row& row, const Extent& e) {
    return row.mask == CAUSAL ? e.shared_tiles : e.token_tiles;
}

// One tile of queries over some spans.
struct Item {
    unsigned row, query, queries;   // of the row's, token by token
    unsigned first_span, spans;
    bool own;                       // one token's, with positions of its own
    bool split;                     // its result is a part
};
__device__ inline void take_tile(Item& item, const Row& row, unsigned number, unsigned tile, bool own) {
    const unsigned per_token = tiles(GROUP);
    item.own = own;
    item.query = own ? number / per_token * GROUP + number % per_token * TILE : number * tile;
    const unsigned end = own ? (number / per_token + 1) * GROUP : row.q_len * GROUP;
    item.queries = min(own ? TILE : tile, end - item.query);
}
// Item `index` of those that a row has in a list of tiles of `tile` queries.
__device__ inline Item item_of(const Row& row, unsigned window, const Share& share, unsigned index, unsigned tile) {
    const Extent e = extent_of(row, window, share.tile);
    Item item;
    item.split = share.first_part != NO_PARTS;
    if (!item.split) {
        // Late tiles see most: they begin first.
        take_tile(item, row, whole_items(row, e) - 1 - index, tile, row.mask != CAUSAL);
        item.first_span = e.first_span;
        item.spans = e.spans;
        return item;
    }
    const unsigned shared = e.shared_runs * e.shared_tiles;
    if (tile != share.tile) index += shared;            // which are in the other list
    const bool own = index >= shared;
    const unsigned tiles = own ? e.token_tiles : e.shared_tiles, within = own ? index - shared : index;
    const unsigned run = within / tiles, runs = own ? e.own_runs : e.shared_runs;
    const unsigned spans = own ? e.spans - e.shared_spans : e.shared_spans;
    item.first_span = e.first_span + (own ? e.shared_spans : 0) + run;
    item.spans = run + 1 == runs ? spans - run : 1;     // the last one also takes a short span
    take_tile(item, row, within % tiles, tile, own);
    return item;
}

// The last of `count` ascending values that is at most `value`; the first is.
template <class At> __device__ inline unsigned last_at_most(unsigned count, unsigned value, At at) {
    unsigned low = 0;
    while (count > 1) {
        const unsigned half = count / 2;
        if (at(low + half) <= value) { low += half; count -= half; } else { count = half; }
    }
    return low;
}
