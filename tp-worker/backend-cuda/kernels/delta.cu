// Gated DeltaNet between its projections, in three kernels: what comes before the recurrence, the
// recurrence, and the gated norm. Every sum has the order and the roundings that processors have.
#include "delta.cuh"

constexpr unsigned WARPS = 4, THREADS = 32 * WARPS;
constexpr unsigned WIDEST = KEY_DIM > VALUE_DIM ? KEY_DIM : VALUE_DIM, LANES = (WIDEST + 31) / 32;

// Column of the committed token that is `back` tokens before a row's first; null is zero.
__device__ inline const float* committed(const Delta& a, const RowState& state, unsigned back) {
    if (back < state.replayed) {
        const unsigned node = replays_of(a.batch, state)[state.replayed - 1 - back];
        return node < a.nodes ? a.raw + record_of(a, state, 1 - state.side, node) * channels(a) : nullptr;
    }
    back -= state.replayed;
    return state.fresh ? nullptr : a.columns + ((size_t)state.state * (TAPS - 1) + (TAPS - 2 - back)) * channels(a);
}
// Columns that a token is convolved with, the oldest first.
__device__ inline void find_columns(const Delta& a, const Row& row, const RowState& state, unsigned node, const float** columns) {
    unsigned own = node, back = 0;
    for (unsigned tap = TAPS; tap-- > 0;) {
        columns[tap] = own == NONE ? committed(a, state, back++) : projected(a, row.start + own);
        if (own != NONE) own = ancestor_of(a.batch, row, node, own);
    }
}
// Makes a token's strengths and decays of its projections, and leaves decays in its record.
__device__ inline void prepare_gates(const Delta& a, unsigned head, unsigned token, float* decays) {
    if (head >= a.value_heads) return;
    float* gates = a.gates + (size_t)token * 2 * a.value_heads;
    const float step = softplus_of(__fadd_rn(gates[a.value_heads + head], a.dt_bias[head]));
    const float decay = exp_of(__fmul_rn(-exp_of(a.a_log[head]), step));
    gates[head] = sigmoid_of(gates[head]);
    gates[a.value_heads + head] = decay;
    if (decays) decays[head] = decay;
}

// Convolves a token's queries, keys and values, and norms the former; makes its strengths and
// decays. A token that is to be verified leaves its key, decays and raw column in its record. A
// warp has a head. Grid: (most tokens, heads of all kinds / WARPS, and value heads / THREADS).
extern "C" __global__ void __launch_bounds__(THREADS, 4) delta_prepare(Delta a) {
    griddepcontrol_launch_dependents();
    const unsigned token = blockIdx.x, lane = threadIdx.x % 32;
    const unsigned heads = 2 * a.key_heads + a.value_heads, blocks = (heads + WARPS - 1) / WARPS;
    const unsigned head = blockIdx.y * WARPS + threadIdx.x / 32;
    const bool is_key = head >= a.key_heads && head < 2 * a.key_heads, is_value = head >= 2 * a.key_heads;
    const unsigned dim = head >= heads ? 0 : is_value ? VALUE_DIM : KEY_DIM;
    const unsigned first = is_value ? 2 * key_width(a) + (head - 2 * a.key_heads) * VALUE_DIM : head * KEY_DIM;
    // Weights come from far, so they are on their way while earlier work is done.
    float taps[TAPS][LANES];
    UNROLL
    for (unsigned tap = 0; tap < TAPS; tap++)
        UNROLL
        for (unsigned i = 0; i < LANES; i++)
            if (lane + 32 * i < dim) taps[tap][i] = a.convolution[tap * channels(a) + first + lane + 32 * i];
    griddepcontrol_wait();
    __shared__ const float* sources[TAPS];
    const unsigned number = token < min(a.batch[TOKENS], a.tokens) ? row_of_token(a.batch, token, a.rows, THREADS) : NONE;
    if (number == NONE) return;
    const Row row = row_of(a.batch, number);
    const RowState state = state_of(a.batch, number);
    if (!is_there(a, row, state)) return;
    const unsigned node = token - row.start;
    const size_t record = record_of(a, state, state.side, node);
    if (blockIdx.y >= blocks) {
        const unsigned own = (blockIdx.y - blocks) * THREADS + threadIdx.x;
        return prepare_gates(a, own, token, state.commits ? nullptr : a.decays + record * a.value_heads);
    }
    if (threadIdx.x == 0) find_columns(a, row, state, node, sources);
    __syncthreads();
    float x[LANES], own[LANES], squares = 0;
    UNROLL
    for (unsigned i = 0; i < LANES; i++) {
        if (lane + 32 * i >= dim) continue;
        const unsigned channel = first + lane + 32 * i;
        UNROLL
        for (unsigned tap = 0; tap < TAPS; tap++) {
            own[i] = sources[tap] ? sources[tap][channel] : 0.0f;
            x[i] = tap == 0 ? __fmul_rn(taps[0][i], own[i]) : __fmaf_rn(taps[tap][i], own[i], x[i]);
        }
        x[i] = silu_of(x[i]);
        squares = __fadd_rn(squares, __fmul_rn(x[i], x[i]));
    }
    const float inverse = __fdiv_rn(1.0f, sqrtf(__fadd_rn(warp_sum(squares), 1e-6f)));
    const float scale = is_key ? 1.0f : __fdiv_rn(1.0f, sqrtf((float)KEY_DIM));
    float* to = a.space + (size_t)token * channels(a) + first;
    UNROLL
    for (unsigned i = 0; i < LANES; i++) {
        const unsigned at = lane + 32 * i;
        if (at >= dim) continue;
        if (!is_value) x[i] = __fmul_rn(__fmul_rn(x[i], inverse), scale);
        to[is_value ? at : shared_out(at)] = x[i];
        if (state.commits) continue;
        a.raw[record * channels(a) + first + at] = own[i];
        if (is_key) a.keys[record * key_width(a) + first - key_width(a) + shared_out(at)] = x[i];
    }
}

// Norms and gates the output of a head, which a warp has. Grid: (most tokens, value heads / WARPS).
extern "C" __global__ void __launch_bounds__(THREADS) delta_finish(Delta a) {
    constexpr unsigned EACH = (VALUE_DIM + 31) / 32;
    griddepcontrol_launch_dependents();
    const unsigned token = blockIdx.x, lane = threadIdx.x % 32, head = blockIdx.y * WARPS + threadIdx.x / 32;
    float weight[EACH];
    UNROLL
    for (unsigned i = 0; i < EACH; i++)
        if (lane + 32 * i < VALUE_DIM) weight[i] = a.norm[lane + 32 * i];
    griddepcontrol_wait();
    if (token >= min(a.batch[TOKENS], a.tokens) || head >= a.value_heads) return;
    const float* from = a.space + (size_t)token * channels(a) + 2 * key_width(a) + head * VALUE_DIM;
    const float* gates = projected(a, token) + channels(a) + head * VALUE_DIM;
    float x[EACH], squares = 0;
    UNROLL
    for (unsigned i = 0; i < EACH; i++) {
        if (lane + 32 * i >= VALUE_DIM) continue;
        x[i] = from[lane + 32 * i];
        squares = __fadd_rn(squares, __fmul_rn(x[i], x[i]));
    }
    const float mean = __fdiv_rn(warp_sum(squares), (float)VALUE_DIM);
    const float scale = __fdiv_rn(1.0f, sqrtf(__fadd_rn(mean, a.eps)));
    OPERAND* to = a.out + (size_t)token * value_width(a) + head * VALUE_DIM;
    UNROLL
    for (unsigned i = 0; i < EACH; i++)
        if (lane + 32 * i < VALUE_DIM)
            to[lane + 32 * i] = from_f32<OPERAND>(__fmul_rn(__fmul_rn(__fmul_rn(x[i], scale), weight[i]), silu_of(gates[lane + 32 * i])));
}

struct CopyStates {
    uint4* values;              // [layers, states, units]
    const uint2* moves;         // (from, to)
    Rows rows;                  // moves that there are
    unsigned states, units;
};
// Copies parts of states in all layers, one move after the other: each thread has a unit of every
// state to itself. Grid: (units / THREADS, layers).
extern "C" __global__ void __launch_bounds__(THREADS) copy_states(CopyStates a) {
    begin_after_predecessors();
    const unsigned unit = blockIdx.x * THREADS + threadIdx.x;
    if (unit >= a.units) return;
    uint4* layer = a.values + (size_t)blockIdx.y * a.states * a.units;
    const unsigned count = rows_of(a.rows);
    for (unsigned i = 0; i < count; i++) {
        const uint2 move = a.moves[i];
        if (move.x < a.states && move.y < a.states)
            layer[(size_t)move.y * a.units + unit] = layer[(size_t)move.x * a.units + unit];
    }
}
