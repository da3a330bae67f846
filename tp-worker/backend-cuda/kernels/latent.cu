// Latent attention between its projections and its attention (MLA; DeepSeek-V2, arXiv:2405.04434):
// what is rotated and stored, and the products of each head with its own matrix.
#include "batch.cuh"
#include "few_rows.cuh"

struct Latents {
    // [tokens, heads · (nope + rotated)], all columns that are not rotated first. These become
    // OPERAND, each head's at the beginning of its place.
    float* query;
    const float* cell;          // [tokens, latent + rotated]
    // [tokens, (heads + 1) · (latent + rotated)]. The rotated columns of each head are written, as
    // CACHED, which begin at the beginning of the head's place.
    float* qkv;
    CACHED* cells;              // [cells, latent + rotated]
    const float* norm;          // [latent]
    const float* cos;           // [positions, rotated / 2]
    const float* sin;           // [positions, rotated / 2]
    const float* query_scales;  // [positions], or null: factors of queries behind their rotation
    const unsigned* batch;
    unsigned heads, nope, rotated, latent, most, positions, cell_count;
    unsigned group;             // of layers, whose cells are written
    float eps;
    unsigned pad;
};

// Rounds columns in place. Lanes have read what others overwrite: a value's place is in the first
// half of those that were read.
constexpr unsigned AT_ONCE = 8;
__device__ inline void round_in_place(float* x, unsigned columns, unsigned lane) {
    if (sizeof(OPERAND) == sizeof(float)) return;
    for (unsigned first = 0; first < columns; first += 32 * AT_ONCE) {
        float read[AT_ONCE];
        UNROLL
        for (unsigned i = 0; i < AT_ONCE; i++)
            if (first + 32 * i + lane < columns) read[i] = x[first + 32 * i + lane];
        __syncwarp();
        UNROLL
        for (unsigned i = 0; i < AT_ONCE; i++)
            if (first + 32 * i + lane < columns) ((OPERAND*)x)[first + 32 * i + lane] = from_f32<OPERAND>(read[i]);
        __syncwarp();
    }
}
// Rotates columns by a position's angles: the first half with the second one.
__device__ inline void rotate(const Latents& a, unsigned position, float factor, const float* x, CACHED* to, unsigned lane) {
    const unsigned half = a.rotated / 2;
    const bool turns = position < a.positions;
    const float *cos = a.cos + (size_t)position * half, *sin = a.sin + (size_t)position * half;
    for (unsigned i = lane; i < half; i += 32) {
        const float c = turns ? cos[i] : 1, s = turns ? sin[i] : 0;
        to[i] = from_f32<CACHED>((x[i] * c - x[i + half] * s) * factor);
        to[i + half] = from_f32<CACHED>((x[i + half] * c + x[i] * s) * factor);
    }
}

// Rounds and rotates each head's query, norms and rotates the token's cell and writes it. A warp
// takes a head or the cell. Grid: (most tokens, (heads + 1) / 4). With fewer blocks than this at once
// the compiler leaves more registers than it would by itself, and does not spill.
extern "C" __global__ void __launch_bounds__(THREADS, 8) store_latents(Latents a) {
    begin_after_predecessors();
    const unsigned token = blockIdx.x, lane = threadIdx.x % 32, head = blockIdx.y * WARPS + threadIdx.x / 32;
    if (token >= min(a.batch[TOKENS], a.most) || head > a.heads) return;
    const unsigned position = list(a.batch, POSITIONS_AT)[token], each = a.latent + a.rotated;
    if (head < a.heads) {
        float* query = a.query + (size_t)token * a.heads * (a.nope + a.rotated);
        const float* turned = query + (size_t)a.heads * a.nope + head * a.rotated;
        const float factor = a.query_scales && position < a.positions ? a.query_scales[position] : 1.0f;
        CACHED* to = (CACHED*)(a.qkv + ((size_t)token * (a.heads + 1) + head) * each);
        rotate(a, position, factor, turned, to + a.latent, lane);
        round_in_place(query + head * a.nope, a.nope, lane);
        return;
    }
    const unsigned number = cells_of(a.batch, a.group)[token];
    if (number >= a.cell_count) return;
    const float* cell = a.cell + (size_t)token * each;
    CACHED* to = a.cells + (size_t)number * each;
    float squares = 0;
    for (unsigned i = lane; i < a.latent; i += 32) squares = __fmaf_rn(cell[i], cell[i], squares);
    const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)a.latent + a.eps);
    for (unsigned i = lane; i < a.latent; i += 32) to[i] = from_f32<CACHED>(cell[i] * scale * a.norm[i]);
    rotate(a, position, 1.0f, cell + a.latent, to + a.latent, lane);
}

// Products of each head's columns with the head's matrix.
struct HeadProduct {
    const OPERAND* x;           // of a token and head: `x_token` and `x_head` values from one to the next
    const OPERAND* const* w;    // of each head, [outputs, inputs]
    void* out;                  // CACHED or OPERAND, placed likewise
    const float* scales;        // [positions], or null: factors of a token's results
    const unsigned* batch;
    unsigned x_token, x_head, out_token, out_head;
    unsigned outputs, inputs, most, positions;
    unsigned aligned;           // columns begin at multiples of 16 bytes
    unsigned to_cached;         // results are CACHED
};
// Writes what this lane has of a head's outputs from `first` on, for tokens from `before` on.
template <unsigned OWN, unsigned TILES>
__device__ inline void store_head(const HeadProduct& p, const float (&sums)[OWN][TILES][4], unsigned before, unsigned rows, unsigned first) {
    const unsigned lane = threadIdx.x % 32;
    UNROLL
    for (unsigned t = 0; t < TILES; t++)
        UNROLL
        for (unsigned odd = 0; odd < 2; odd++) {
            const unsigned row = t * TILE + lane % 4 * 2 + odd;
            if (row >= rows) continue;
            const unsigned position = p.scales ? list(p.batch, POSITIONS_AT)[before + row] : 0;
            const float factor = p.scales && position < p.positions ? p.scales[position] : 1.0f;
            const size_t at = (size_t)(before + row) * p.out_token + blockIdx.y * p.out_head;
            UNROLL
            for (unsigned g = 0; g < OWN; g++)
                UNROLL
                for (unsigned half = 0; half < 2; half++) {
                    const unsigned output = first + g * GROUP + half * 8 + lane / 4;
                    if (output >= p.outputs) continue;
                    const float sum = __fmul_rn(sums[g][t][2 * half + odd], factor);
                    if (p.to_cached) ((CACHED*)p.out)[at + output] = from_f32<CACHED>(sum);
                    else ((OPERAND*)p.out)[at + output] = from_f32<OPERAND>(sum);
                }
        }
}
// A block takes a tile of outputs of a head, for TILES · 8 tokens, with all columns in one slice.
// Grid: (tiles of outputs, heads, tiles of tokens).
template <unsigned TILES, unsigned OWN, unsigned STAGES>
__device__ inline void multiply(const HeadProduct& p) {
    using Found = TileOf<TILES, OWN, STAGES>;
    DYNAMIC_SHARED(uint4, stages);
    begin_after_predecessors();
    const unsigned before = blockIdx.z * Found::MOST, tokens = min(p.batch[TOKENS], p.most);
    if (before >= tokens) return;
    Product a;
    a.x = p.x + (size_t)before * p.x_token + blockIdx.y * p.x_head;
    a.w = p.w[blockIdx.y];
    a.bias = nullptr;
    a.rows = {nullptr, min(tokens - before, Found::MOST), 0};
    a.outputs = p.outputs;
    a.inputs = p.inputs;
    a.gated = 0;
    a.aligned = p.aligned;
    const Weights weights = weights_of(a, blockIdx.x, Found::GROUPS);
    const Slice slice = {0, (a.inputs + CHUNK - 1) / CHUNK};
    Found found;
    found.multiply(a, weights, Apart{p.x_token}, stages, a.rows.most, slice, false, NEVER);
    const unsigned first = (blockIdx.x * Found::GROUPS + threadIdx.x / 32 * OWN) * GROUP;
    store_head(p, found.sums, before, a.rows.most, first);
}
extern "C" __global__ void __launch_bounds__(THREADS, 4) heads_8(HeadProduct p) { multiply<1, 1, 6>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 4) heads_16(HeadProduct p) { multiply<2, 1, 5>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) heads_32(HeadProduct p) { multiply<4, 2, 4>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) heads_64(HeadProduct p) { multiply<8, 2, 4>(p); }
