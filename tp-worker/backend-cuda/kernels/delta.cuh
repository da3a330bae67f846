// Recurrences over the matrices of heads, between a layer's projections: a Gated DeltaNet (Yang et
// al., arXiv:2412.06464), and Mamba-2 (Dao and Gu, arXiv:2405.21060), which has the same heads by
// other names: queries are C, keys B, values x, updates the values times their steps. Here are the
// operands, and the states and records of one layer.
#pragma once
#include "exp.cuh"
#include "columns.cuh"

// Rows of a matrix are shared out to four threads of a column by their numbers modulo four, in
// which sums have their partial sums. Keys and queries lie so too: [4][KEY_DIM / 4].
constexpr unsigned PARTS = 4, OWN = KEY_DIM / PARTS;
constexpr unsigned TILES = VALUE_DIM / COLUMNS;         // of a head's matrix
constexpr unsigned MATRIX = KEY_DIM * VALUE_DIM, TILE = KEY_DIM * COLUMNS;
// A head has a strength and a decay, or in Mamba-2 a decay alone.
constexpr bool HAS_STRENGTHS = !SCANS;
constexpr unsigned GATES = HAS_STRENGTHS ? 2 : 1;

struct Delta {
    const float* projected;     // [tokens, channels + value_width]: queries, keys, values, gates
    float* gates;               // [tokens, GATES · value_heads]: become strengths and decays
    float* space;               // [tokens, channels]: queries, keys, values; then outputs for values
    OPERAND* out;               // [tokens, value_width]
    const float* convolution;   // [TAPS, channels]
    const float* bias;          // of the convolution: [channels], or null
    const float* a_log;         // [value_heads]
    const float* dt_bias;       // [value_heads]
    const float* norm;          // of a Gated DeltaNet: [VALUE_DIM]
    const float* skip;          // of Mamba-2: factors of values in outputs, [value_heads]
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
__device__ inline const float* own_column(const Delta& a, unsigned token) { return a.projected + (size_t)token * (channels(a) + value_width(a)); }
__device__ inline float own_value(const Delta& a, unsigned token, unsigned channel) { return own_column(a, token)[channel]; }
// Gates of a token's heads: strengths if there are some, then decays.
__device__ inline float* gates_of(const Delta& a, unsigned token) { return a.gates + (size_t)token * GATES * a.value_heads; }
__device__ inline const float* decays_of(const Delta& a, unsigned token) { return gates_of(a, token) + (GATES - 1) * a.value_heads; }
// Place of row `i` of a key or a query.
__device__ inline unsigned shared_out(unsigned i) { return i % PARTS * OWN + i / PARTS; }

// The columns of a token that a warp convolves: a head of queries, of keys or of values.
constexpr unsigned WIDEST = KEY_DIM > VALUE_DIM ? KEY_DIM : VALUE_DIM, LANES = (WIDEST + 31) / 32;
struct HeadColumns {
    unsigned dim, first;        // how many, and the first among all channels
    unsigned value_head;        // NONE for a head of queries or keys
    bool is_key;
};
__device__ inline HeadColumns columns_of(const Delta& a, unsigned head) {
    const unsigned before = 2 * a.key_heads;
    if (head < before) return {KEY_DIM, head * KEY_DIM, NONE, head >= a.key_heads};
    const unsigned own = head - before;
    return {own < a.value_heads ? VALUE_DIM : 0, 2 * key_width(a) + own * VALUE_DIM, own, false};
}
// A lane's weights of the convolution, which no pass writes.
struct Taps { float of[TAPS][LANES], bias[LANES]; };
__device__ inline void load_taps(const Delta& a, const HeadColumns& head, Taps& taps) {
    const unsigned lane = threadIdx.x % 32;
    UNROLL
    for (unsigned i = 0; i < LANES; i++) {
        if (lane + 32 * i >= head.dim) continue;
        const unsigned channel = head.first + lane + 32 * i;
        UNROLL
        for (unsigned tap = 0; tap < TAPS; tap++) taps.of[tap][i] = a.convolution[tap * channels(a) + channel];
        if (SCANS) taps.bias[i] = a.bias ? a.bias[channel] : 0;
    }
}
// silu of a lane's convolved column `i`; `own` becomes the token's own value.
__device__ inline float convolved(const Delta& a, const HeadColumns& head, const Taps& taps, const float* const* sources, unsigned i, float& own) {
    const unsigned channel = head.first + threadIdx.x % 32 + 32 * i;
    const bool biased = SCANS && a.bias;
    float x = biased ? taps.bias[i] : 0;
    UNROLL
    for (unsigned tap = 0; tap < TAPS; tap++) {
        own = sources[tap] ? sources[tap][channel] : 0.0f;
        x = tap == 0 && !biased ? __fmul_rn(taps.of[0][i], own) : __fmaf_rn(taps.of[tap][i], own, x);
    }
    return silu_of(x);
}
