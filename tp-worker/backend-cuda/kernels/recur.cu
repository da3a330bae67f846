// The recurrence of a Gated DeltaNet, or of Mamba-2. Columns of a matrix evolve alone, so a block
// takes COLUMNS columns of one head in one row, and keeps them in registers through all tokens of
// the row: four threads for a column.
#include "delta.cuh"

constexpr unsigned THREADS = PARTS * COLUMNS;
constexpr unsigned AT_ONCE = 8;             // tokens that are on their way to shared memory together
constexpr unsigned STRIDE = OWN + 4;        // so that the parts of a key lie in different banks
constexpr unsigned ALL = 0xffffffffu;

// Inputs of some tokens: of replayed ones there are keys, updates in place of values, and decays.
struct Inputs {
    float4 keys[AT_ONCE][PARTS * STRIDE / 4];
    float4 queries[AT_ONCE][PARTS * STRIDE / 4];
    float4 values[AT_ONCE][COLUMNS / 4];
    float strengths[AT_ONCE], decays[AT_ONCE];
};

// The work of a block.
struct Job {
    Row row;
    RowState state;
    unsigned head, column;      // of values: the tile's first one among those of all heads
};
__device__ inline size_t key_at(const Delta& a, const Job& job) { return (size_t)(job.head / (a.value_heads / a.key_heads)) * KEY_DIM; }

// Begins to bring tokens `first..first + AT_ONCE` of a row, as far as there are so many; replayed
// ones come first. Units of 16 bytes: of the key, of the query, of the values; then the gates.
__device__ inline void bring(const Delta& a, const Job& job, unsigned first, Inputs& to) {
    constexpr unsigned KEYS = KEY_DIM / 4, VALUES = 2 * KEYS + COLUMNS / 4, UNITS = VALUES + GATES;
    const RowState& state = job.state;
    const unsigned all = state.replayed + job.row.q_len, count = min(AT_ONCE, all - min(first, all));
    for (unsigned unit = threadIdx.x; unit < count * UNITS; unit += THREADS) {
        const unsigned at = unit / UNITS, part = unit % UNITS, item = first + at;
        const float *key, *query, *values, *strength, *decay;
        if (item < state.replayed) {
            const size_t record = record_of(a, state, 1 - state.side, min(replays_of(a.batch, state)[item], a.nodes - 1));
            key = query = a.keys + record * key_width(a) + key_at(a, job);
            values = a.updates + record * value_width(a) + job.column;
            strength = decay = a.decays + record * a.value_heads + job.head;
        } else {
            const unsigned token = job.row.start + item - state.replayed;
            query = a.space + (size_t)token * channels(a) + key_at(a, job);
            key = query + key_width(a);
            values = a.space + (size_t)token * channels(a) + 2 * key_width(a) + job.column;
            strength = gates_of(a, token) + job.head;
            decay = decays_of(a, token) + job.head;
        }
        auto place = [](unsigned unit) { return unit / (OWN / 4) * (STRIDE / 4) + unit % (OWN / 4); };
        if (part < KEYS) cp_async_16(&to.keys[at][place(part)], key + 4 * part, 16);
        else if (part < 2 * KEYS) cp_async_16(&to.queries[at][place(part - KEYS)], query + 4 * (part - KEYS), 16);
        else if (part < VALUES) cp_async_16(&to.values[at][part - 2 * KEYS], values + 4 * (part - 2 * KEYS), 16);
        else if (part == VALUES) cp_async_4(&to.decays[at], decay, 4);
        else cp_async_4(&to.strengths[at], strength, 4);
    }
    cp_async_commit_group();
}

// Rows of a column that a thread has.
typedef float Part[OWN];
__device__ inline void load(const float* tile, Part& matrix) {
    UNROLL
    for (unsigned i = 0; i < OWN; i++) matrix[i] = tile[i * THREADS + threadIdx.x];
}
__device__ inline void store(const Part& matrix, float* tile) {
    UNROLL
    for (unsigned i = 0; i < OWN; i++) tile[i * THREADS + threadIdx.x] = matrix[i];
}
// Adds the parts of a column, by pairs.
__device__ inline float folded(float sum) {
    sum = __fadd_rn(sum, __shfl_xor_sync(ALL, sum, 1));
    return __fadd_rn(sum, __shfl_xor_sync(ALL, sum, 2));
}
// S ← decay · S + key · update
__device__ inline void replay(Part& matrix, const float4* key, float decay, float update) {
    UNROLL
    for (unsigned i = 0; i < OWN; i += 4) {
        const float4 k = key[i / 4];
        matrix[i] = __fmaf_rn(k.x, update, __fmul_rn(matrix[i], decay));
        matrix[i + 1] = __fmaf_rn(k.y, update, __fmul_rn(matrix[i + 1], decay));
        matrix[i + 2] = __fmaf_rn(k.z, update, __fmul_rn(matrix[i + 2], decay));
        matrix[i + 3] = __fmaf_rn(k.w, update, __fmul_rn(matrix[i + 3], decay));
    }
}
// S ← decay · S, update = strength · (value − Sᵀ key), S ← S + key · update, out = Sᵀ query.
__device__ inline float step(Part& matrix, const float4* key, const float4* query, float value, float strength, float decay, float& update) {
    float sum = 0;
    UNROLL
    for (unsigned i = 0; i < OWN; i += 4) {
        const float4 k = key[i / 4];
        sum = __fmaf_rn(matrix[i] = __fmul_rn(matrix[i], decay), k.x, sum);
        sum = __fmaf_rn(matrix[i + 1] = __fmul_rn(matrix[i + 1], decay), k.y, sum);
        sum = __fmaf_rn(matrix[i + 2] = __fmul_rn(matrix[i + 2], decay), k.z, sum);
        sum = __fmaf_rn(matrix[i + 3] = __fmul_rn(matrix[i + 3], decay), k.w, sum);
    }
    update = __fmul_rn(strength, __fadd_rn(value, -folded(sum)));
    sum = 0;
    UNROLL
    for (unsigned i = 0; i < OWN; i += 4) {
        const float4 k = key[i / 4], q = query[i / 4];
        sum = __fmaf_rn(matrix[i] = __fmaf_rn(k.x, update, matrix[i]), q.x, sum);
        sum = __fmaf_rn(matrix[i + 1] = __fmaf_rn(k.y, update, matrix[i + 1]), q.y, sum);
        sum = __fmaf_rn(matrix[i + 2] = __fmaf_rn(k.z, update, matrix[i + 2]), q.z, sum);
        sum = __fmaf_rn(matrix[i + 3] = __fmaf_rn(k.w, update, matrix[i + 3]), q.w, sum);
    }
    return folded(sum);
}
// S ← decay · S + key · update, out = Sᵀ query.
__device__ inline float scan(Part& matrix, const float4* key, const float4* query, float decay, float update) {
    float sum = 0;
    UNROLL
    for (unsigned i = 0; i < OWN; i += 4) {
        const float4 k = key[i / 4], q = query[i / 4];
        sum = __fmaf_rn(matrix[i] = __fmaf_rn(k.x, update, __fmul_rn(matrix[i], decay)), q.x, sum);
        sum = __fmaf_rn(matrix[i + 1] = __fmaf_rn(k.y, update, __fmul_rn(matrix[i + 1], decay)), q.y, sum);
        sum = __fmaf_rn(matrix[i + 2] = __fmaf_rn(k.z, update, __fmul_rn(matrix[i + 2], decay)), q.z, sum);
        sum = __fmaf_rn(matrix[i + 3] = __fmaf_rn(k.w, update, __fmul_rn(matrix[i + 3], decay)), q.w, sum);
    }
    return folded(sum);
}

// Brings the matrix to the state behind the parent of a node whose parent is not the node before
// it: the live state, onto which all ancestors are replayed.
__device__ inline void descend(const Delta& a, const Job& job, unsigned node, unsigned parent, const float* live, Part& matrix) {
    load(live, matrix);
    if (parent == NONE) return;
    __syncwarp();       // updates of this pass may be those of one thread of each column
    const unsigned part = threadIdx.x % PARTS, column = job.column + threadIdx.x / PARTS;
    for (unsigned ancestor = 0; ancestor <= parent; ancestor++) {
        if (ancestor_of(a.batch, job.row, node, ancestor + 1) != ancestor) continue;
        const size_t token = job.row.start + ancestor;
        const float* key = a.space + token * channels(a) + key_width(a) + key_at(a, job) + part * OWN;
        const float decay = decays_of(a, job.row.start + ancestor)[job.head];
        const size_t record = record_of(a, job.state, job.state.side, ancestor);
        replay(matrix, (const float4*)key, decay, a.updates[record * value_width(a) + column]);
    }
}

// Runs all tokens of a row in the columns of a block.
__device__ inline void run(const Delta& a, const Job& job, unsigned tile) {
    __shared__ Inputs stages[2];
    const Row& row = job.row;
    const RowState& state = job.state;
    const unsigned part = threadIdx.x % PARTS, own = threadIdx.x / PARTS;
    const size_t of_tile = (size_t)job.head * MATRIX + (size_t)tile * TILE, of_state = (size_t)a.value_heads * MATRIX;
    float* live = a.matrices + state.state * of_state + of_tile;
    const Keep* keeps = keeps_of(a.batch, state);
    const unsigned all = state.replayed + row.q_len;
    bring(a, job, 0, stages[0]);
    Part matrix;
    if (!state.fresh) load(live, matrix);
    else
        UNROLL
        for (unsigned i = 0; i < OWN; i++) matrix[i] = 0;
    unsigned kept = 0;
    auto keep = [&](unsigned stand) {
        for (; kept < state.kept && keeps[kept].after == stand; kept++)
            if (keeps[kept].state < a.states) store(matrix, a.matrices + keeps[kept].state * of_state + of_tile);
    };
    keep(0);
    for (unsigned first = 0, turn = 0; first < all; first += AT_ONCE, turn ^= 1) {
        bring(a, job, first + AT_ONCE, stages[turn ^ 1]);
        cp_async_wait_group<1>();
        __syncthreads();        // what all threads have asked for is there
        const Inputs& in = stages[turn];
        for (unsigned at = 0; at < AT_ONCE && first + at < all; at++) {
            const unsigned item = first + at;
            const float value = ((const float*)in.values[at])[own];
            const float4* key = in.keys[at] + part * (STRIDE / 4);
            if (item < state.replayed) {
                replay(matrix, key, in.decays[at], value);
                keep(item + 1);
                continue;
            }
            const unsigned node = item - state.replayed;
            // Nodes that are to be verified leave the live state as it is now.
            if (node == 0 && !state.commits && (state.fresh || state.replayed)) store(matrix, live);
            if (row.mask != CAUSAL && node > 0) {
                const unsigned parent = ancestor_of(a.batch, row, node, node);
                if (parent != node - 1) descend(a, job, node, parent, live, matrix);
            }
            const float4* query = in.queries[at] + part * (STRIDE / 4);
            float update = value;
            const float out = HAS_STRENGTHS ? step(matrix, key, query, value, in.strengths[at], in.decays[at], update)
                                            : scan(matrix, key, query, in.decays[at], value);
            if (part == 0) {
                a.space[(size_t)(row.start + node) * channels(a) + 2 * key_width(a) + job.column + own] = out;
                if (HAS_STRENGTHS && !state.commits) a.updates[record_of(a, state, state.side, node) * value_width(a) + job.column + own] = update;
            }
            if (state.commits) keep(item + 1);
        }
        __syncthreads();        // nobody reads what the next turn overwrites
    }
    if (state.commits) store(matrix, live);
}

// Replays accepted records, runs the rows' tokens, and keeps copies. Outputs take the place of
// values. Grid: (most rows, tiles of all heads, and channels / THREADS).
extern "C" __global__ void __launch_bounds__(THREADS) delta_recur(Delta a) {
    begin_after_predecessors();
    if (blockIdx.x >= min(a.batch[ROWS], a.rows)) return;
    const unsigned tiles = a.value_heads * TILES, tile = blockIdx.y % TILES;
    Job job = {row_of(a.batch, blockIdx.x), state_of(a.batch, blockIdx.x), blockIdx.y / TILES, 0};
    job.column = job.head * VALUE_DIM + tile * COLUMNS;
    if (!is_there(a, job.row, job.state)) return;
    if (blockIdx.y < tiles) run(a, job, tile);
    else keep_columns(a, job.row, job.state, (blockIdx.y - tiles) * THREADS + threadIdx.x);
}
