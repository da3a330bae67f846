// The gated short convolution of LFM2 (Liquid AI, arXiv:2511.23404) between its projections, in two
// kernels: the convolution of all tokens, then the columns of states, which it reads. Every number
// has the roundings that processors have.
#include "columns.cuh"

constexpr unsigned THREADS = 256;

struct Short {
    const float* projected;     // [tokens, 3 · channels]: b, c, x
    OPERAND* out;               // [tokens, channels]
    const float* convolution;   // [TAPS, channels]
    const float* bias;          // [channels], or null
    float* columns;             // [states, TAPS - 1, channels]
    float* raw;                 // records: [nodes, channels]
    const unsigned* batch;
    unsigned tokens, rows;      // for which launches have blocks
    unsigned channels;
    unsigned states, records, nodes;        // nodes in a half of a row's records
};
__device__ inline unsigned channels(const Short& a) { return a.channels; }
// Where a new token has b, and x two widths behind it: the column is their product.
__device__ inline const float* own_column(const Short& a, unsigned token) { return a.projected + (size_t)token * 3 * a.channels; }
__device__ inline float product_at(const Short& a, const float* column, unsigned channel) { return __fmul_rn(column[channel], column[2 * a.channels + channel]); }
__device__ inline float own_value(const Short& a, unsigned token, unsigned channel) { return product_at(a, own_column(a, token), channel); }

// out = c · (w * (b · x)). A token that is to be verified leaves its column in its record. A thread
// has a channel of a token. Grid: (most tokens, channels / THREADS).
extern "C" __global__ void __launch_bounds__(THREADS, 2) short_convolve(Short a) {
    griddepcontrol_launch_dependents();
    const unsigned token = blockIdx.x, channel = blockIdx.y * THREADS + threadIdx.x;
    // Weights come from far, so they are on their way while earlier work is done.
    float taps[TAPS], x = 0;
    if (channel < a.channels) {
        UNROLL
        for (unsigned tap = 0; tap < TAPS; tap++) taps[tap] = a.convolution[tap * a.channels + channel];
        if (a.bias) x = a.bias[channel];
    }
    griddepcontrol_wait();
    __shared__ const float* sources[TAPS];
    __shared__ unsigned of_states;
    TokenAt at;
    if (!find_token(a, token, THREADS, at)) return;
    if (threadIdx.x == 0) of_states = find_columns(a, at, sources);
    __syncthreads();        // sources are found
    if (channel >= a.channels) return;
    float own = 0;
    UNROLL
    for (unsigned tap = 0; tap < TAPS; tap++) {
        const float* source = sources[tap];
        own = !source ? 0.0f : tap < of_states ? source[channel] : product_at(a, source, channel);
        x = tap == 0 && !a.bias ? __fmul_rn(taps[0], own) : __fmaf_rn(taps[tap], own, x);
    }
    const float gate = own_column(a, token)[a.channels + channel];
    a.out[(size_t)token * a.channels + channel] = from_f32<OPERAND>(__fmul_rn(x, gate));
    if (!at.state.commits) a.raw[at.record * a.channels + channel] = own;
}

// Moves the columns of states on, and keeps copies. Grid: (most rows, channels / THREADS).
extern "C" __global__ void __launch_bounds__(THREADS, 2) short_commit(Short a) {
    begin_after_predecessors();
    if (blockIdx.x >= min(a.batch[ROWS], a.rows)) return;
    const Row row = row_of(a.batch, blockIdx.x);
    const RowState state = state_of(a.batch, blockIdx.x);
    if (is_there(a, row, state)) keep_columns(a, row, state, blockIdx.y * THREADS + threadIdx.x);
}
