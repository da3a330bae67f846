// What rows of a batch do with the states of recurrent layers.
#pragma once
#include "batch.cuh"

constexpr unsigned NONE = 0xffffffffu;

// The state that a row goes on from.
struct RowState {
    unsigned state;         // number of the live one
    unsigned records;       // place of its records
    unsigned side;          // half of them that this pass writes; replays read the other
    unsigned fresh;         // true if the live state is zero, whatever it holds
    unsigned commits;       // true if the row's tokens go into the live state
    unsigned replays, replayed;     // accepted nodes of the last pass: where they begin, how many
    unsigned keeps, kept;           // likewise copies
};
// A copy that is kept, so many committed tokens behind the live state's stand.
struct Keep { unsigned after, state; };

__device__ inline RowState state_of(const unsigned* batch, unsigned row) { return ((const RowState*)list(batch, STATES_AT))[row]; }
__device__ inline const unsigned* replays_of(const unsigned* batch, const RowState& state) { return list(batch, REPLAYS_AT) + state.replays; }
__device__ inline const Keep* keeps_of(const unsigned* batch, const RowState& state) { return (const Keep*)list(batch, KEEPS_AT) + state.keeps; }

// The last new token before `last` that new token `node` of a row goes on from: the one before in
// a plain row, in a masked one the last that the node's mask shows. NONE if there is none.
__device__ inline unsigned ancestor_of(const unsigned* batch, const Row& row, unsigned node, unsigned last) {
    if (row.mask == CAUSAL) return last - 1;
    const unsigned* mask = mask_of(batch, row, node);
    while (last > 0) {
        const unsigned word = (last - 1) / 32, bits = last - 32 * word;
        const unsigned seen = mask[word] & (NONE >> (32 - bits));
        if (seen) return 32 * word + 31 - __clz((int)seen);
        last = 32 * word;
    }
    return NONE;
}

// The row of a token, found by all threads of a block together; NONE for a token that is in none.
__device__ inline unsigned row_of_token(const unsigned* batch, unsigned token, unsigned most, unsigned threads) {
    __shared__ unsigned found;
    if (threadIdx.x == 0) found = NONE;
    __syncthreads();
    const unsigned rows = min(batch[ROWS], most);
    for (unsigned i = threadIdx.x; i < rows; i += threads) {
        const Row row = row_of(batch, i);
        if (token >= row.start && token - row.start < row.q_len) found = i;
    }
    __syncthreads();
    return found;
}
