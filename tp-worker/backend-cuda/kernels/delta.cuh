// A Gated DeltaNet between its projections (Yang et al., arXiv:2412.06464): its operands, and the
// states and records of one layer.
#pragma once
#include "exp.cuh"
#include "states.cuh"

// Rows of a matrix are shared out to four threads of a column by their numbers modulo four, in
// which sums have their partial sums. Keys and queries lie so too: [4][KEY_DIM / 4].
constexpr unsigned PARTS = 4, OWN = KEY_DIM / PARTS;
constexpr unsigned TILES = VALUE_DIM / COLUMNS;         // of a head's matrix
constexpr unsigned MATRIX = KEY_DIM * VALUE_DIM, TILE = KEY_DIM * COLUMNS;

struct Delta {
    const float* projected;     // [tokens, channels + value_width]: queries, keys, values, gates
    float* gates;               // [tokens, 2 · value_heads]: become strengths and decays
    float* space;               // [tokens, channels]: queries, keys, values; then outputs for values
    OPERAND* out;               // [tokens, value_width]
    const float* convolution;   // [TAPS, channels]
    const float* a_log;         // [value_heads]
    const float* dt_bias;       // [value_heads]
    const float* norm;          // [VALUE_DIM]
    float* matrices;            // [states, value_heads, TILES, OWN, COLUMNS, PARTS]
    float* columns;             // [states, TAPS - 1, channels]
    float* keys;                // records: [nodes, key_width]
    float* updates;             // [nodes, value_width]
    float* raw;                 // [nodes, channels]
    float* decays;              // [nodes, value_heads]
    const unsigned* batch;
    unsigned tokens, rows;      // for which launches have blocks
    unsigned key_heads, value_heads;
    unsigned states, records, nodes;        // nodes in a half of a row's records
    float eps;
};
__device__ inline unsigned key_width(const Delta& a) { return a.key_heads * KEY_DIM; }
__device__ inline unsigned value_width(const Delta& a) { return a.value_heads * VALUE_DIM; }
__device__ inline unsigned channels(const Delta& a) { return 2 * key_width(a) + value_width(a); }
// Columns of a new token before the convolution.
__device__ inline const float* projected(const Delta& a, unsigned token) { return a.projected + (size_t)token * (channels(a) + value_width(a)); }
// Number of a node's record in half `side`.
__device__ inline size_t record_of(const Delta& a, const RowState& state, unsigned side, unsigned node) {
    return ((size_t)state.records * 2 + side) * a.nodes + node;
}
// False for a row that names what is not there; nothing of it is touched.
__device__ inline bool is_there(const Delta& a, const Row& row, const RowState& state) {
    return state.state < a.states && state.records < a.records && (state.commits || row.q_len <= a.nodes);
}
// Place of row `i` of a key or a query.
__device__ inline unsigned shared_out(unsigned i) { return i % PARTS * OWN + i / PARTS; }
