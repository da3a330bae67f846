// Tiles of products of few rows by matrices whose rows are read once.
//
// A block multiplies a tile of outputs by a tile of rows. Weights and rows come to
// shared memory in chunks of columns, several of which are on their way at a
// time.
//
// The order of a sum: in a slice of columns they are added one behind the other,
// as multiply-adds in f32, or 16 at a time by mma.m16n8k16. Nothing of it depends
// on how many rows there are, or on which of them a row is.
#pragma once
#include "sums.cuh"

constexpr unsigned WARPS = 4, THREADS = 32 * WARPS;
constexpr unsigned EACH = 16 / sizeof(OPERAND);     // values of a unit of 16 bytes
constexpr unsigned UNITS = 8;                       // of a row in a chunk
constexpr unsigned CHUNK = UNITS * EACH;            // columns
constexpr unsigned GROUP = 16;                      // outputs that a warp multiplies at once
constexpr unsigned TILE = 8;                        // rows, likewise
static_assert(THREADS == GROUP * UNITS, "a thread copies one unit of a group");

struct Product {
    const OPERAND* x;           // [rows, inputs]
    const OPERAND* w;           // [outputs, inputs]; gated: [2 · outputs, inputs], the gates first
    const float* bias;          // as long as `w`, or null
    void* out;                  // f32 [slices, most rows, outputs]; gated: OPERAND [rows, outputs]
    Rows rows;
    unsigned outputs, inputs;
    unsigned gated;             // 0, or the activation f of out = f(gate) · up, of one slice
    unsigned aligned;           // rows begin at multiples of 16 bytes
};

// Where a stage has a unit: units of a row change places, so that the same unit of
// eight rows lies in different banks.
__device__ inline unsigned place_of(unsigned row, unsigned unit) { return row * UNITS + (unit ^ row % 8); }

// Begins to copy a unit from column `column` of `row` on; what lies outside is zero.
template <bool ALIGNED>
__device__ inline void copy_unit(const Product& a, uint4* to, const OPERAND* row, unsigned column, bool there) {
    if (ALIGNED) {
        const bool inside = there && column < a.inputs;
        cp_async_16(to, inside ? row + column : a.w, inside ? 16 : 0);
        return;
    }
    __align__(16) OPERAND values[EACH];
    UNROLL
    for (unsigned i = 0; i < EACH; i++)
        values[i] = there && column + i < a.inputs ? row[column + i] : from_f32<OPERAND>(0);
    *to = *(const uint4*)values;
}

// Which weights a thread copies: one unit of a row in every group of the tile. A
// group of a gated product has eight gates and then what these let through, so
// that a lane has both of an output.
struct Weights {
    const OPERAND* row;         // of the first group
    unsigned number, end;       // that row's, and where such rows end
    unsigned step;              // rows from group to group
};
__device__ inline Weights weights_of(const Product& a, unsigned tile, unsigned groups) {
    const unsigned within = threadIdx.x / UNITS;
    Weights weights;
    weights.step = a.gated ? GROUP / 2 : GROUP;
    const bool up = a.gated && within >= GROUP / 2;
    weights.end = up ? 2 * a.outputs : a.outputs;
    weights.number = tile * groups * weights.step + (up ? within - GROUP / 2 + a.outputs : within);
    weights.row = a.w + (size_t)weights.number * a.inputs;
    return weights;
}

// This thread's unit of a chunk: in a group of weights, and in as many rows of x.
template <bool ALIGNED>
__device__ inline void copy_weights(const Product& a, const Weights& weights, unsigned group, unsigned column, uint4* to) {
    const unsigned skip = group * weights.step;
    const OPERAND* row = weights.row + (size_t)skip * a.inputs;
    copy_unit<ALIGNED>(a, to + group * GROUP * UNITS, row, column, weights.number + skip < weights.end);
}
// Where the rows of x are that a thread copies a unit of, one in each group: one behind the other.
struct InTurn {
    __device__ size_t at(unsigned group, unsigned inputs) const { return (size_t)(group * GROUP + threadIdx.x / UNITS) * inputs; }
};
// Or `step` values apart, since other columns lie between them.
struct Apart {
    unsigned step;
    __device__ size_t at(unsigned group, unsigned) const { return (size_t)(group * GROUP + threadIdx.x / UNITS) * step; }
};
// Or anywhere.
template <unsigned GROUPS>
struct Listed {
    unsigned rows[GROUPS];
    __device__ size_t at(unsigned group, unsigned inputs) const {
        unsigned found = rows[0];       // by turns: registers have no index
        UNROLL
        for (unsigned i = 1; i < GROUPS; i++)
            if (i == group) found = rows[i];
        return (size_t)found * inputs;
    }
};
template <bool ALIGNED, unsigned MOST, class From>
__device__ inline void copy_rows(const Product& a, const From& from, unsigned rows, unsigned group, unsigned column, uint4* to) {
    const unsigned row = group * GROUP + threadIdx.x / UNITS;
    const OPERAND* x = a.x + from.at(group, a.inputs);
    if (row < MOST) copy_unit<ALIGNED>(a, to + group * GROUP * UNITS, x, column, row < rows);
}
// Where this thread's units of a chunk come from and go to.
struct Units { unsigned column; uint4* to; };
__device__ inline Units units_of(unsigned chunk, uint4* stage) {
    const unsigned within = threadIdx.x / UNITS, unit = threadIdx.x % UNITS;
    return {chunk * CHUNK + unit * EACH, stage + place_of(within, unit)};
}
// Begins to copy the tile's weights of a chunk.
template <unsigned GROUPS>
__device__ inline void copy_chunk_weights(const Product& a, const Weights& weights, unsigned chunk, uint4* stage) {
    const Units units = units_of(chunk, stage);
    if (a.aligned) {
        UNROLL
        for (unsigned group = 0; group < GROUPS; group++) copy_weights<true>(a, weights, group, units.column, units.to);
    } else {
        ROLLED
        for (unsigned group = 0; group < GROUPS; group++) copy_weights<false>(a, weights, group, units.column, units.to);
    }
}
// And the rows of x, which lie behind the weights.
constexpr unsigned row_groups(unsigned tiles) { return (tiles * TILE + GROUP - 1) / GROUP; }
template <unsigned GROUPS, unsigned TILES, class From>
__device__ inline void copy_chunk_rows(const Product& a, const From& from, unsigned rows, unsigned chunk, uint4* stage) {
    constexpr unsigned MOST = TILE * TILES, ROW_GROUPS = row_groups(TILES);
    const Units units = units_of(chunk, stage + GROUPS * GROUP * UNITS);
    if (a.aligned) {
        UNROLL
        for (unsigned group = 0; group < ROW_GROUPS; group++) copy_rows<true, MOST>(a, from, rows, group, units.column, units.to);
    } else {
        ROLLED
        for (unsigned group = 0; group < ROW_GROUPS; group++) copy_rows<false, MOST>(a, from, rows, group, units.column, units.to);
    }
}

// sums += weights · xᵀ over a chunk, for this warp's groups and all tiles of rows.
// They lie where mma.m16n8k16 has them: `sums[g][t][i]` of a lane is output
// lane / 4 + i / 2 · 8 of group g, row lane % 4 · 2 + i % 2 of tile t.
#if OPERAND_IS_BF16
// Reads the rows `x` of all tiles from a unit on, four matrices at a time: of one tile over 32
// columns, for this and the next 16 if `first`, or of two tiles over 16.
template <unsigned TILES>
__device__ inline void read_tiles(unsigned (&b)[TILES + TILES % 2][2], const uint4* x, unsigned unit, bool first) {
    const unsigned lane = threadIdx.x % 32;
    if (TILES == 1 && first) {
        unsigned both[4];
        ldmatrix_x4(both, x + place_of(lane % 8, unit + lane / 8));
        b[0][0] = both[0]; b[0][1] = both[1]; b[1][0] = both[2]; b[1][1] = both[3];
    }
    if (TILES > 1)
        UNROLL
        for (unsigned t = 0; t < TILES; t += 2) {
            unsigned both[4];
            ldmatrix_x4(both, x + place_of(t * TILE + lane / 16 * 8 + lane % 8, unit + lane / 8 % 2));
            b[t][0] = both[0]; b[t][1] = both[1]; b[t + 1][0] = both[2]; b[t + 1][1] = both[3];
        }
}
template <unsigned OWN, unsigned TILES>
__device__ inline void multiply_chunk(float (&sums)[OWN][TILES][4], const uint4* w, const uint4* x) {
    const unsigned lane = threadIdx.x % 32;
    unsigned b[TILES + TILES % 2][2];
    UNROLL
    for (unsigned unit = 0; unit < UNITS; unit += 2) {
        read_tiles<TILES>(b, x, unit, unit % 4 == 0);
        UNROLL
        for (unsigned g = 0; g < OWN; g++) {
            unsigned fragment[4];
            ldmatrix_x4(fragment, w + place_of(g * GROUP + lane % 16, unit + lane / 16));
            UNROLL
            for (unsigned t = 0; t < TILES; t++)
                mma_m16n8k16_bf16(sums[g][t], fragment, b[TILES == 1 ? unit / 2 % 2 : t]);
        }
    }
}
#else
__device__ inline void multiply_add(float& sum, const float4& a, const float4& b) {
    sum = __fmaf_rn(a.x, b.x, sum);
    sum = __fmaf_rn(a.y, b.y, sum);
    sum = __fmaf_rn(a.z, b.z, sum);
    sum = __fmaf_rn(a.w, b.w, sum);
}
// sums += weights · xᵀ over a unit of the rows `x` of all tiles.
template <unsigned OWN, unsigned TILES>
__device__ inline void multiply_tiles(float (&sums)[OWN][TILES][4], const float4 (&left)[OWN][2], const uint4* x, unsigned unit) {
    const unsigned lane = threadIdx.x % 32;
    UNROLL
    for (unsigned t = 0; t < TILES; t++) {
        float4 right[2];
        UNROLL
        for (unsigned odd = 0; odd < 2; odd++) right[odd] = *(const float4*)(x + place_of(t * TILE + lane % 4 * 2 + odd, unit));
        UNROLL
        for (unsigned g = 0; g < OWN; g++)
            UNROLL
            for (unsigned i = 0; i < 4; i++) multiply_add(sums[g][t][i], left[g][i / 2], right[i % 2]);
    }
}
template <unsigned OWN, unsigned TILES>
__device__ inline void multiply_chunk(float (&sums)[OWN][TILES][4], const uint4* w, const uint4* x) {
    const unsigned lane = threadIdx.x % 32;
    ROLLED
    for (unsigned unit = 0; unit < UNITS; unit++) {
        float4 left[OWN][2];
        UNROLL
        for (unsigned g = 0; g < OWN; g++)
            UNROLL
            for (unsigned half = 0; half < 2; half++) left[g][half] = *(const float4*)(w + place_of(g * GROUP + half * 8 + lane / 4, unit));
        multiply_tiles(sums, left, x, unit);
    }
}
#endif

// Writes what this lane has of the outputs from `first` on, a group of the warp
// after the other, to rows of `out`, each as `as` makes it.
template <unsigned OWN, unsigned TILES, class Out, class As>
__device__ inline void store_as(const Product& a, const float (&sums)[OWN][TILES][4], unsigned rows, unsigned first, Out* out, As as) {
    const unsigned lane = threadIdx.x % 32;
    UNROLL
    for (unsigned g = 0; g < OWN; g++)
        UNROLL
        for (unsigned half = 0; half < 2; half++) {
            const unsigned output = first + g * GROUP + half * 8 + lane / 4;
            if (output >= a.outputs) continue;
            const float bias = a.bias ? a.bias[output] : 0;
            UNROLL
            for (unsigned t = 0; t < TILES; t++)
                UNROLL
                for (unsigned odd = 0; odd < 2; odd++) {
                    const unsigned row = t * TILE + lane % 4 * 2 + odd;
                    const float sum = sums[g][t][2 * half + odd];
                    if (row < rows) out[(size_t)row * a.outputs + output] = as(a.bias ? __fadd_rn(sum, bias) : sum);
                }
        }
}
template <unsigned OWN, unsigned TILES>
__device__ inline void store(const Product& a, const float (&sums)[OWN][TILES][4], unsigned rows, unsigned first, float* out) {
    store_as(a, sums, rows, first, out, [](float sum) { return sum; });
}
template <unsigned OWN, unsigned TILES, class Gate>
__device__ inline void store_gated(const Product& a, const float (&sums)[OWN][TILES][4], unsigned rows, unsigned first, Gate gate_of) {
    const unsigned lane = threadIdx.x % 32;
    UNROLL
    for (unsigned g = 0; g < OWN; g++) {
        const unsigned output = first + g * GROUP / 2 + lane / 4;
        if (output >= a.outputs) continue;
        const float gate_bias = a.bias ? a.bias[output] : 0, up_bias = a.bias ? a.bias[a.outputs + output] : 0;
        UNROLL
        for (unsigned t = 0; t < TILES; t++)
            UNROLL
            for (unsigned odd = 0; odd < 2; odd++) {
                const unsigned row = t * TILE + lane % 4 * 2 + odd;
                float gate = sums[g][t][odd], up = sums[g][t][2 + odd];
                if (a.bias) { gate = __fadd_rn(gate, gate_bias); up = __fadd_rn(up, up_bias); }
                if (row < rows) ((OPERAND*)a.out)[(size_t)row * a.outputs + output] = from_f32<OPERAND>(gate_of(gate, up));
            }
    }
}

// The columns that a block multiplies, in chunks.
struct Slice { unsigned begin, end; };
constexpr unsigned NEVER = 0xffffffffu;     // no chunk
// A tile of TILES · 8 rows, of which `rows` are there, and of OWN groups of outputs for each warp;
// STAGES chunks are on their way or being multiplied.
template <unsigned TILES, unsigned OWN, unsigned STAGES>
struct TileOf {
    static constexpr unsigned GROUPS = WARPS * OWN, W_UNITS = GROUPS * GROUP * UNITS;
    static constexpr unsigned MOST = TILES * TILE, STAGE = W_UNITS + MOST * UNITS;

    float sums[OWN][TILES][4];

    // Where a chunk is staged.
    __device__ static uint4* stage_of(uint4* stages, const Slice& slice, unsigned chunk) {
        return stages + (chunk - slice.begin) % STAGES * STAGE;
    }
    // sums = weights · xᵀ over a slice. The weights of the first STAGES - 1 chunks may be on their way
    // already. At chunk `half` the launch behind this one may begin.
    template <class From>
    __device__ inline void multiply(const Product& a, const Weights& weights, const From& from, uint4* stages,
                                    unsigned rows, const Slice& slice, bool is_early, unsigned half) {
        const unsigned warp = threadIdx.x / 32;
        auto copy = [&](unsigned chunk, bool with_weights) {
            if (chunk < slice.end) {
                uint4* stage = stage_of(stages, slice, chunk);
                if (with_weights) copy_chunk_weights<GROUPS>(a, weights, chunk, stage);
                copy_chunk_rows<GROUPS, TILES>(a, from, rows, chunk, stage);
            }
            cp_async_commit_group();
        };
        UNROLL
        for (unsigned g = 0; g < OWN; g++)
            UNROLL
            for (unsigned t = 0; t < TILES; t++)
                UNROLL
                for (unsigned i = 0; i < 4; i++) sums[g][t][i] = 0;
        ROLLED      // a copy's code is long, and takes its time to compile
        for (unsigned chunk = slice.begin; chunk < slice.begin + STAGES - 1; chunk++) copy(chunk, !is_early);
        for (unsigned chunk = slice.begin; chunk < slice.end; chunk++) {
            cp_async_wait_group<STAGES - 2>();
            __syncthreads();        // the chunk is there, and the one before it done with
            copy(chunk + STAGES - 1, true);
            if (TRIGGERS_AT_HALF && chunk + STAGES - 1 == half) griddepcontrol_launch_dependents();
            const uint4* stage = stage_of(stages, slice, chunk);
            multiply_chunk(sums, stage + warp * OWN * GROUP * UNITS, stage + W_UNITS);
        }
    }
};
