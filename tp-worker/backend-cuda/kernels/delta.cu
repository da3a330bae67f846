// Gated DeltaNet around its recurrence: what comes before it, and the gated norm behind it. Every sum
// has the order and the roundings that processors have.
#include "delta.cuh"

constexpr unsigned WARPS = 4, THREADS = 32 * WARPS;

// Makes a token's strengths and decays of its projections, and leaves decays in its record.
__device__ inline void prepare_gates(const Delta& a, unsigned head, unsigned token, float* decays) {
    if (head >= a.value_heads) return;
    float* gates = gates_of(a, token);
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
    const HeadColumns head = columns_of(a, blockIdx.y * WARPS + threadIdx.x / 32);
    const bool is_value = head.value_head != NONE;
    // Weights come from far, so they are on their way while earlier work is done.
    Taps taps;
    load_taps(a, head, taps);
    griddepcontrol_wait();
    __shared__ const float* sources[TAPS];
    TokenAt at;
    if (!find_token(a, token, THREADS, at)) return;
    const bool commits = at.state.commits;
    if (blockIdx.y >= blocks) {
        const unsigned own = (blockIdx.y - blocks) * THREADS + threadIdx.x;
        return prepare_gates(a, own, token, commits ? nullptr : a.decays + at.record * a.value_heads);
    }
    if (threadIdx.x == 0) find_columns(a, at, sources);
    __syncthreads();        // sources are found
    float x[LANES], own[LANES], squares = 0;
    UNROLL
    for (unsigned i = 0; i < LANES; i++) {
        if (lane + 32 * i >= head.dim) continue;
        x[i] = convolved(a, head, taps, sources, i, own[i]);
        squares = __fadd_rn(squares, __fmul_rn(x[i], x[i]));
    }
    const float inverse = __fdiv_rn(1.0f, sqrtf(__fadd_rn(warp_sum(squares), 1e-6f)));
    const float scale = head.is_key ? 1.0f : __fdiv_rn(1.0f, sqrtf((float)KEY_DIM));
    float* to = a.space + (size_t)token * channels(a) + head.first;
    UNROLL
    for (unsigned i = 0; i < LANES; i++) {
        const unsigned column = lane + 32 * i;
        if (column >= head.dim) continue;
        if (!is_value) x[i] = __fmul_rn(__fmul_rn(x[i], inverse), scale);
        to[is_value ? column : shared_out(column)] = x[i];
        if (commits) continue;
        a.raw[at.record * channels(a) + head.first + column] = own[i];
        if (head.is_key) a.keys[at.record * key_width(a) + head.first - key_width(a) + shared_out(column)] = x[i];
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
    const float* gates = own_column(a, token) + channels(a) + head * VALUE_DIM;
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
