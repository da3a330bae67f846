// Mamba-2 around its recurrence: what comes before it, and the gates behind it. Every number has the
// roundings that processors have.
#include "delta.cuh"

constexpr unsigned WARPS = 4, THREADS = 32 * WARPS;

// Convolves a token's C, B and x, makes its decays, and of x the updates and what is added to the
// states' output. A token that is to be verified leaves its record. A warp has a head, whose step it
// reads before it writes the decay in its place. Grid: (most tokens, heads of all kinds / WARPS).
extern "C" __global__ void __launch_bounds__(THREADS, 4) mamba_prepare(Delta a) {
    griddepcontrol_launch_dependents();
    const unsigned token = blockIdx.x, lane = threadIdx.x % 32;
    const HeadColumns head = columns_of(a, blockIdx.y * WARPS + threadIdx.x / 32);
    // Weights come from far, so they are on their way while earlier work is done.
    Taps taps;
    load_taps(a, head, taps);
    const bool is_value = head.value_head != NONE;
    float bias = 0, power = 0, skip = 0;
    if (is_value && head.dim) {
        bias = a.dt_bias[head.value_head];
        power = -exp_of(a.a_log[head.value_head]);
        skip = a.skip[head.value_head];
    }
    griddepcontrol_wait();
    __shared__ const float* sources[TAPS];
    TokenAt at;
    if (!find_token(a, token, THREADS, at)) return;
    const bool commits = at.state.commits;
    if (threadIdx.x == 0) find_columns(a, at, sources);
    __syncthreads();        // sources are found
    float step = 0;
    if (is_value && head.dim) {
        float* gate = gates_of(a, token) + head.value_head;
        step = softplus_of(__fadd_rn(*gate, bias));
        __syncwarp();       // all lanes have the step
        const float decay = exp_of(__fmul_rn(power, step));
        if (lane == 0) {
            *gate = decay;
            if (!commits) a.decays[at.record * a.value_heads + head.value_head] = decay;
        }
    }
    float* to = a.space + (size_t)token * channels(a) + head.first;
    UNROLL
    for (unsigned i = 0; i < LANES; i++) {
        const unsigned column = lane + 32 * i;
        if (column >= head.dim) continue;
        float own;
        float x = convolved(a, head, taps, sources, i, own);
        const size_t value = (size_t)head.value_head * VALUE_DIM + column;
        if (is_value) {
            a.out[(size_t)token * value_width(a) + value] = __fmul_rn(skip, x);
            x = __fmul_rn(x, step);
        }
        to[is_value ? column : shared_out(column)] = x;
        if (commits) continue;
        a.raw[at.record * channels(a) + head.first + column] = own;
        if (is_value) a.updates[at.record * value_width(a) + value] = x;
        if (head.is_key) a.keys[at.record * key_width(a) + head.first - key_width(a) + shared_out(column)] = x;
    }
}

// Adds the states' output to that of x, and gates it. Grid: (most tokens, value columns / THREADS).
extern "C" __global__ void __launch_bounds__(THREADS) mamba_finish(Delta a) {
    begin_after_predecessors();
    const unsigned token = blockIdx.x, column = blockIdx.y * THREADS + threadIdx.x;
    if (token >= min(a.batch[TOKENS], a.tokens) || column >= value_width(a)) return;
    const float found = a.space[(size_t)token * channels(a) + 2 * key_width(a) + column];
    const float gate = own_column(a, token)[channels(a) + column];
    float& out = a.out[(size_t)token * value_width(a) + column];
    out = __fmul_rn(__fadd_rn(out, found), silu_of(gate));
}
