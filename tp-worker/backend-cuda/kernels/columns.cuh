// Columns of the causal convolution of recurrent layers: those of new tokens, those of accepted
// records, and those that states keep. A kernel's operands have these arrays and numbers:
//
//   columns                of states: [states, TAPS - 1, channels], the oldest first
//   raw                    of records: [nodes, channels]
//   batch, tokens, rows    the batch, and for how many of it launches have blocks
//   states, records        how many there are
//   nodes                  in a half of a row's records
//
// And these functions: channels(a); own_column(a, token), where a new token's column begins; and
// own_value(a, token, channel), the value of such a column.
#pragma once
#include "states.cuh"

// Number of a node's record in half `side`.
template <class A> __device__ inline size_t record_of(const A& a, const RowState& state, unsigned side, unsigned node) {
    return ((size_t)state.records * 2 + side) * a.nodes + node;
}
// False for a row that names what is not there; nothing of it is touched.
template <class A> __device__ inline bool is_there(const A& a, const Row& row, const RowState& state) {
    return state.state < a.states && state.records < a.records && (state.commits || row.q_len <= a.nodes);
}

// A token, with its row, its number in that, and its record.
struct TokenAt {
    Row row;
    RowState state;
    unsigned node;
    size_t record;
};
// Finds a token by all threads of a block together. False for one of which nothing is touched.
template <class A> __device__ inline bool find_token(const A& a, unsigned token, unsigned threads, TokenAt& at) {
    const unsigned number = token < min(a.batch[TOKENS], a.tokens) ? row_of_token(a.batch, token, a.rows, threads) : NONE;
    if (number == NONE) return false;
    at.row = row_of(a.batch, number);
    at.state = state_of(a.batch, number);
    at.node = token - at.row.start;
    at.record = record_of(a, at.state, at.state.side, at.node);
    return is_there(a, at.row, at.state);
}

// Column of the committed token that is `back` tokens before a row's first; null is zero.
template <class A> __device__ inline const float* committed(const A& a, const RowState& state, unsigned back) {
    if (back < state.replayed) {
        const unsigned node = replays_of(a.batch, state)[state.replayed - 1 - back];
        return node < a.nodes ? a.raw + record_of(a, state, 1 - state.side, node) * channels(a) : nullptr;
    }
    back -= state.replayed;
    return state.fresh ? nullptr : a.columns + ((size_t)state.state * (TAPS - 1) + (TAPS - 2 - back)) * channels(a);
}
// Finds the columns that a token is convolved with, the oldest first. Returns how many of them are
// committed; the others are those of new tokens.
template <class A> __device__ inline unsigned find_columns(const A& a, const TokenAt& at, const float** columns) {
    unsigned own = at.node, back = 0;
    for (unsigned tap = TAPS; tap-- > 0;) {
        columns[tap] = own == NONE ? committed(a, at.state, back++) : own_column(a, at.row.start + own);
        if (own != NONE) own = ancestor_of(a.batch, at.row, at.node, own);
    }
    return back;
}

// The column of a channel at `at`, counted from the oldest of the live state: those of replayed
// nodes come behind the live state's, then those of the row's tokens.
template <class A> __device__ inline float column_at(const A& a, const Row& row, const RowState& state, unsigned at, unsigned channel) {
    if (at < TAPS - 1) return state.fresh ? 0.0f : a.columns[((size_t)state.state * (TAPS - 1) + at) * channels(a) + channel];
    const unsigned behind = at - (TAPS - 1);
    if (behind >= state.replayed) return own_value(a, row.start + behind - state.replayed, channel);
    const unsigned node = min(replays_of(a.batch, state)[behind], a.nodes - 1);
    return a.raw[record_of(a, state, 1 - state.side, node) * channels(a) + channel];
}
// Writes the last columns of the convolution of a row's committed tokens to its live state, and
// those of earlier positions to the copies that are kept. A thread has a channel.
template <class A> __device__ inline void keep_columns(const A& a, const Row& row, const RowState& state, unsigned channel) {
    if (channel >= channels(a)) return;
    const Keep* keeps = keeps_of(a.batch, state);
    auto place = [&](unsigned number, unsigned tap) { return ((size_t)number * (TAPS - 1) + tap) * channels(a) + channel; };
    for (unsigned i = 0; i < state.kept; i++)
        for (unsigned tap = 0; keeps[i].state < a.states && tap < TAPS - 1; tap++)
            a.columns[place(keeps[i].state, tap)] = column_at(a, row, state, keeps[i].after + tap, channel);
    const unsigned committed = state.replayed + (state.commits ? row.q_len : 0);
    if (committed == 0 && !state.fresh) return;
    // Ascending, so that a column is read before another takes its place.
    for (unsigned tap = 0; tap < TAPS - 1; tap++) a.columns[place(state.state, tap)] = column_at(a, row, state, committed + tap, channel);
}
