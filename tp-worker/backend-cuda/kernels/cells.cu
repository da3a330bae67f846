// What is written to the cache: new keys and values, and cells that move.
#include "batch.cuh"
#include "sums.cuh"

constexpr unsigned WARPS = 4;       // of a block; each has one head of one token
constexpr unsigned OWN = (HEAD_DIM + 31) / 32;      // columns of a lane: `lane`, `lane + 32`, …

struct Heads {
    Sums sums;                  // [tokens, (heads + 2 · kv_heads) · HEAD_DIM], read
    float* qkv;                 // as large, written; may be the only part of the sums
    const float* q_norm;        // [HEAD_DIM], or null
    const float* k_norm;        // [HEAD_DIM], or null
    const float* v_norm;        // [HEAD_DIM], or null
    const float* cos;           // [positions, half]
    const float* sin;           // [positions, half]
    const float* query_scales;  // [positions], or null: factors of queries behind their rotation
    CACHED* keys;               // [cells, kv_heads, HEAD_DIM], or null: keys stay in qkv
    CACHED* values;             // [cells, kv_heads, HEAD_DIM], or null
    const unsigned* batch;      // null: `most` tokens, which are normed alone
    unsigned heads, kv_heads, half, cells, positions, most;
    float eps;
    unsigned group;             // of layers, whose cells are written
    // Queries are written as CACHED, each head at the beginning of its place in qkv, and what
    // stays in qkv else as f32.
    unsigned rounds;
    unsigned pad;
};

// x / rms(x) · weight
__device__ inline void normalize(float* x, const float (&weight)[OWN], float eps, unsigned lane) {
    float squares = 0;
    for (unsigned i = lane; i < HEAD_DIM; i += 32) squares += x[i] * x[i];
    const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)HEAD_DIM + eps);
    UNROLL
    for (unsigned i = 0; i < OWN; i++)
        if (lane + 32 * i < HEAD_DIM) x[lane + 32 * i] = x[lane + 32 * i] * scale * weight[i];
}

// Column `i` of a head after its rotation by angles (Su et al.,
// arXiv:2104.09864): `i` pairs with `i + half`, and what lies behind stays.
__device__ inline float rotated(const float* x, unsigned i, const float* cos, const float* sin, unsigned half) {
    if (i < half) return x[i] * cos[i] - x[i + half] * sin[i];
    if (i < 2 * half) return x[i] * cos[i - half] + x[i - half] * sin[i - half];
    return x[i];
}

// Sums up, norms and rotates queries and keys; writes queries to their place, and keys and
// values to the token's cell, where there is a cache. Grid: (most tokens, heads of all kinds / 4).
extern "C" __global__ void __launch_bounds__(32 * WARPS) rotate_and_store(Heads a) {
    griddepcontrol_launch_dependents();
    __shared__ float shared[WARPS][HEAD_DIM];
    const unsigned token = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned head = blockIdx.y * WARPS + warp, rotates = a.heads + a.kv_heads;
    const unsigned columns = HEAD_DIM - min(lane, (unsigned)HEAD_DIM);
    // Biases and weights come from far, so they are on their way while earlier work is done.
    const float* norm = head < a.heads ? a.q_norm : head < rotates ? a.k_norm : a.v_norm;
    float bias[OWN], weight[OWN];
    if (head < rotates + a.kv_heads) biases_of(a.sums, head * HEAD_DIM + lane, 32, columns, bias);
    UNROLL
    for (unsigned i = 0; i < OWN; i++)
        if (norm && 32 * i < columns) weight[i] = norm[lane + 32 * i];
    griddepcontrol_wait();
    const unsigned tokens = a.batch ? min(a.batch[TOKENS], a.most) : a.most;
    if (token >= tokens || head >= rotates + a.kv_heads) return;
    const size_t at = ((size_t)token * (rotates + a.kv_heads) + head) * HEAD_DIM;
    float* x = shared[warp];
    float sums[OWN];
    sums_of(a.sums, at + lane, 32, columns, bias, sums);
    UNROLL
    for (unsigned i = 0; i < OWN; i++)
        if (lane + 32 * i < HEAD_DIM) x[lane + 32 * i] = sums[i];
    if (norm) normalize(x, weight, a.eps, lane);
    __syncwarp();       // a pair's columns belong to different lanes

    const unsigned position = a.half ? list(a.batch, POSITIONS_AT)[token] : 0;
    const unsigned half = head < rotates && position < a.positions ? a.half : 0;
    const float* cos = a.cos + (size_t)position * half;
    const float* sin = a.sin + (size_t)position * half;
    float* to_qkv = a.qkv + at;
    const float factor = head < a.heads && half && a.query_scales ? a.query_scales[position] : 1.0f;
    if (head < a.heads && a.rounds) {
        // Nobody else reads the sums that this overwrites.
        for (unsigned i = lane; i < HEAD_DIM; i += 32) ((CACHED*)to_qkv)[i] = from_f32<CACHED>(rotated(x, i, cos, sin, half) * factor);
        return;
    }
    if (head < a.heads || !a.keys) {
        const bool changed = norm || half;
        for (unsigned i = lane; changed && i < HEAD_DIM; i += 32) to_qkv[i] = rotated(x, i, cos, sin, half) * factor;
        return;
    }
    const unsigned cell = cells_of(a.batch, a.group)[token];
    if (cell >= a.cells) return;
    const unsigned kv_head = (head - a.heads) % a.kv_heads;
    CACHED* to = (head < rotates ? a.keys : a.values) + ((size_t)cell * a.kv_heads + kv_head) * HEAD_DIM;
    for (unsigned i = lane; i < HEAD_DIM; i += 32) to[i] = from_f32<CACHED>(rotated(x, i, cos, sin, half));
}

struct CopyCells {
    uint4* keys;                // [layers, cells, cell_units]
    uint4* values;
    const uint2* moves;         // (from, to)
    Rows rows;                  // moves that there are
    unsigned cells, cell_units;
};
// Copies cells in all layers, one move after the other: each thread has a unit
// of every cell to itself. Grid: (units / 128, layers, keys and values).
extern "C" __global__ void __launch_bounds__(128) copy_cells(CopyCells a) {
    begin_after_predecessors();
    const unsigned unit = blockIdx.x * 128 + threadIdx.x;
    if (unit >= a.cell_units) return;
    uint4* layer = (blockIdx.z ? a.values : a.keys) + (size_t)blockIdx.y * a.cells * a.cell_units;
    const unsigned count = rows_of(a.rows);
    for (unsigned i = 0; i < count; i++) {
        const uint2 move = a.moves[i];
        if (move.x < a.cells && move.y < a.cells)
            layer[(size_t)move.y * a.cell_units + unit] = layer[(size_t)move.x * a.cell_units + unit];
    }
}

struct CopyAccepted {
    uint4* keys;                // [layers, cells, cell_units]
    uint4* values;
    const unsigned* batch;
    const uint2* moves;         // [requests, most]: (from, to), tokens whose cells move
    const unsigned* counts;     // [requests]: moves that there are
    Rows requests;
    unsigned most, layers, cells, cell_units;
    unsigned group, pad;        // of layers, whose cells move
};
// The same for each request by itself, as no two have a cell in common. Grid:
// (units / 128, keys and values of layers, most requests).
extern "C" __global__ void __launch_bounds__(128) copy_accepted(CopyAccepted a) {
    begin_after_predecessors();
    const unsigned unit = blockIdx.x * 128 + threadIdx.x, request = blockIdx.z;
    if (unit >= a.cell_units || request >= rows_of(a.requests)) return;
    const bool is_values = blockIdx.y >= a.layers;
    const size_t number = is_values ? blockIdx.y - a.layers : blockIdx.y;
    uint4* layer = (is_values ? a.values : a.keys) + number * a.cells * a.cell_units;
    const unsigned count = min(a.counts[request], a.most);
    const unsigned* cells = cells_of(a.batch, a.group);
    for (unsigned i = 0; i < count; i++) {
        const uint2 move = a.moves[(size_t)request * a.most + i];
        const unsigned from = cells[move.x], to = cells[move.y];
        if (from < a.cells && to < a.cells)
            layer[(size_t)to * a.cell_units + unit] = layer[(size_t)from * a.cell_units + unit];
    }
}
