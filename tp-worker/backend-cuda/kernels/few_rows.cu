// Products of few rows, which take as long as it takes to read the weights, and none
// where there is no row.
//
// A block multiplies a tile of outputs by all rows, or, of a launch for more rows than
// its kernel takes, by a share of them. Weights and rows come to
// shared memory in chunks of columns, several of which are on their way at a
// time.
//
// The order of a sum: the columns are cut into slices, one for each block in y;
// in a slice they are added one behind the other, as multiply-adds in f32, or 16
// at a time by mma.m16n8k16; slices are parts of a sum (`sums.cuh`), added in
// their order. Nothing of it depends on how many rows there are, or on which of
// them a row is.
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
    unsigned gated;             // out = silu(gate) · up, of one slice
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
template <bool ALIGNED, unsigned MOST>
__device__ inline void copy_rows(const Product& a, unsigned rows, unsigned group, unsigned column, uint4* to) {
    const unsigned row = group * GROUP + threadIdx.x / UNITS;
    if (row < MOST) copy_unit<ALIGNED>(a, to + group * GROUP * UNITS, a.x + (size_t)row * a.inputs, column, row < rows);
}
// Begins to copy a chunk: the tile's weights, and behind them the rows of x.
template <unsigned GROUPS, unsigned TILES>
__device__ inline void copy_chunk(const Product& a, const Weights& weights, unsigned rows, unsigned chunk, uint4* stage) {
    constexpr unsigned MOST = TILE * TILES, ROW_GROUPS = (MOST + GROUP - 1) / GROUP;
    const unsigned within = threadIdx.x / UNITS, unit = threadIdx.x % UNITS;
    const unsigned column = chunk * CHUNK + unit * EACH;
    uint4 *w = stage + place_of(within, unit), *x = w + GROUPS * GROUP * UNITS;
    if (a.aligned) {
        UNROLL
        for (unsigned group = 0; group < GROUPS; group++) copy_weights<true>(a, weights, group, column, w);
        UNROLL
        for (unsigned group = 0; group < ROW_GROUPS; group++) copy_rows<true, MOST>(a, rows, group, column, x);
    } else {
        ROLLED
        for (unsigned group = 0; group < GROUPS; group++) copy_weights<false>(a, weights, group, column, w);
        ROLLED
        for (unsigned group = 0; group < ROW_GROUPS; group++) copy_rows<false, MOST>(a, rows, group, column, x);
    }
}

// sums += weights · xᵀ over a chunk, for this warp's groups and all tiles of rows.
// They lie where mma.m16n8k16 has them: `sums[g][t][i]` of a lane is output
// lane / 4 + i / 2 · 8 of group g, row lane % 4 · 2 + i % 2 of tile t.
#if OPERAND_IS_BF16
template <unsigned OWN, unsigned TILES>
__device__ inline void multiply_chunk(float (&sums)[OWN][TILES][4], const uint4* w, const uint4* x) {
    const unsigned lane = threadIdx.x % 32;
    unsigned b[TILES + TILES % 2][2];
    UNROLL
    for (unsigned unit = 0; unit < UNITS; unit += 2) {
        // Four matrices: of one tile over 32 columns, or of two over 16.
        if (TILES == 1 && unit % 4 == 0) {
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
template <unsigned OWN, unsigned TILES>
__device__ inline void multiply_chunk(float (&sums)[OWN][TILES][4], const uint4* w, const uint4* x) {
    const unsigned lane = threadIdx.x % 32;
    auto at = [](const uint4* from, unsigned row, unsigned unit) { return *(const float4*)(from + place_of(row, unit)); };
    ROLLED
    for (unsigned unit = 0; unit < UNITS; unit++) {
        float4 left[OWN][2];
        UNROLL
        for (unsigned g = 0; g < OWN; g++)
            UNROLL
            for (unsigned half = 0; half < 2; half++) left[g][half] = at(w, g * GROUP + half * 8 + lane / 4, unit);
        UNROLL
        for (unsigned t = 0; t < TILES; t++) {
            float4 right[2];
            UNROLL
            for (unsigned odd = 0; odd < 2; odd++) right[odd] = at(x, t * TILE + lane % 4 * 2 + odd, unit);
            UNROLL
            for (unsigned g = 0; g < OWN; g++)
                UNROLL
                for (unsigned i = 0; i < 4; i++) multiply_add(sums[g][t][i], left[g][i / 2], right[i % 2]);
        }
    }
}
#endif

// Writes what this lane has of the outputs from `first` on, a group of the warp
// after the other.
template <unsigned OWN, unsigned TILES>
__device__ inline void store(const Product& a, const float (&sums)[OWN][TILES][4], unsigned rows, unsigned first) {
    const unsigned lane = threadIdx.x % 32;
    float* out = (float*)a.out + (size_t)blockIdx.y * a.rows.most * a.outputs;
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
                    if (row < rows) out[(size_t)row * a.outputs + output] = a.bias ? __fadd_rn(sum, bias) : sum;
                }
        }
}
template <unsigned OWN, unsigned TILES>
__device__ inline void store_gated(const Product& a, const float (&sums)[OWN][TILES][4], unsigned rows, unsigned first) {
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
                if (row < rows) ((OPERAND*)a.out)[(size_t)row * a.outputs + output] = from_f32<OPERAND>(gated(gate, up));
            }
    }
}

// From now on the product's first row is its row `first`.
__device__ inline void skip_rows(Product& a, unsigned first) {
    const size_t skipped = (size_t)first * a.outputs;
    a.x += (size_t)first * a.inputs;
    a.out = a.gated ? (void*)((OPERAND*)a.out + skipped) : (void*)((float*)a.out + skipped);
}

// For TILES · 8 rows: OWN groups for each warp, STAGES chunks on their way or being
// multiplied. Grid: (tiles of outputs, slices), and where rows are shared out, all
// shares of a tile one behind the other, which read the same weights at about the
// same time.
template <unsigned TILES, unsigned OWN, unsigned STAGES, bool SHARED_OUT = false>
__device__ inline void multiply(Product a) {
    constexpr unsigned GROUPS = WARPS * OWN, W_UNITS = GROUPS * GROUP * UNITS;
    constexpr unsigned MOST = TILES * TILE, STAGE = W_UNITS + MOST * UNITS;
    DYNAMIC_SHARED(uint4, stages);
    const unsigned shares = SHARED_OUT ? (a.rows.most + MOST - 1) / MOST : 1;
    const unsigned tile = blockIdx.x / shares, before = blockIdx.x % shares * MOST;
    const unsigned all = rows_of(a.rows), chunks = (a.inputs + CHUNK - 1) / CHUNK, warp = threadIdx.x / 32;
    if (all <= before) return;
    const unsigned rows = min(all - before, MOST);
    if (SHARED_OUT) skip_rows(a, before);
    const unsigned begin = chunks * blockIdx.y / gridDim.y, end = chunks * (blockIdx.y + 1) / gridDim.y;
    const Weights weights = weights_of(a, tile, GROUPS);
    auto copy = [&](unsigned chunk) {
        if (chunk < end) copy_chunk<GROUPS, TILES>(a, weights, rows, chunk, stages + (chunk - begin) % STAGES * STAGE);
        cp_async_commit_group();
    };
    float sums[OWN][TILES][4];
    UNROLL
    for (unsigned g = 0; g < OWN; g++)
        UNROLL
        for (unsigned t = 0; t < TILES; t++)
            UNROLL
            for (unsigned i = 0; i < 4; i++) sums[g][t][i] = 0;
    ROLLED      // a copy's code is long, and takes its time to compile
    for (unsigned chunk = begin; chunk < begin + STAGES - 1; chunk++) copy(chunk);
    for (unsigned chunk = begin; chunk < end; chunk++) {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();        // the chunk is there, and the one before it done with
        copy(chunk + STAGES - 1);
        const uint4* stage = stages + (chunk - begin) % STAGES * STAGE;
        multiply_chunk(sums, stage + warp * OWN * GROUP * UNITS, stage + W_UNITS);
    }
    const unsigned first = (tile * GROUPS + warp * OWN) * weights.step;
    if (a.gated) store_gated(a, sums, rows, first);
    else store(a, sums, rows, first);
}
// Of more rows larger tiles, so that rows are not read as often as weights are. The
// stages leave room for as many blocks on a multiprocessor as the bounds say, and
// that is how many registers they may have.
extern "C" __global__ void __launch_bounds__(THREADS, 4) product_8(Product a) { multiply<1, 1, 6>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 3) product_16(Product a) { multiply<2, 1, 6>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) product_32(Product a) { multiply<4, 2, 4>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) product_64(Product a) { multiply<8, 2, 4, true>(a); }

struct SumUp {
    Sums sums;                  // [rows, width]
    float* out;                 // [rows, width]; may be the only part
    Rows rows;
    unsigned width, pad;
};
// out = all parts, and the bias. Grid: (most rows, columns / 256).
extern "C" __global__ void __launch_bounds__(256) sum_up(SumUp a) {
    const unsigned row = blockIdx.x, column = blockIdx.y * 256 + threadIdx.x;
    if (row >= rows_of(a.rows) || column >= a.width) return;
    const size_t at = (size_t)row * a.width + column;
    a.out[at] = sum_of(a.sums, at, column);
}
