// Tiles of products of few rows by matrices of 4-bit floats with an exponent for every 32 columns
// (MXFP4), which stay packed until a warp multiplies them.
//
// A float times its power of two is exact in bf16. So the sums, which have the order of
// `few_rows.cuh`, have the bits that they have with the same weights as floats.
//
// Four words hold 32 columns of a row, one for each lane of four that multiplies them. Pair `j` of
// word `q` is columns 8 · j + 2 · q and the next, one in each half of the word. In a half the
// magnitudes of pairs 0 to 3 begin at bits 6, 3, 0 and 9, their signs are bits 15, 12, 14 and 13:
// two pairs need no more than a shift and a mask to lie where bf16 has them.
#pragma once
#include "few_rows.cuh"

constexpr unsigned SHARING = 32;                    // columns that share an exponent
constexpr unsigned PARTS = 4;                       // such parts of a row in a chunk of weights
constexpr unsigned TURNS = PARTS * SHARING / CHUNK; // chunks of rows in one of weights
constexpr unsigned MAGNITUDES = 0x01c001c0u, SIGNS = 0x80008000u;

// A matrix [rows, columns]: for each row the words of its parts, as units of 16 bytes, and behind
// all of them the exponents of each row, whose number is a multiple of four.
struct Packed {
    const uint4* parts;
    const unsigned char* exponents;
    unsigned each;              // parts of a row
};
__device__ inline unsigned exponents_each(const Packed& w) { return (w.each + 3) / 4 * 4; }
__device__ inline Packed packed_at(const void* at, unsigned rows, unsigned columns) {
    Packed w;
    w.each = (columns + SHARING - 1) / SHARING;
    w.parts = (const uint4*)at;
    w.exponents = (const unsigned char*)(w.parts + (size_t)rows * w.each);
    return w;
}

// A pair's two floats times 2^-126, as bf16.
__device__ inline unsigned pair_of(unsigned word, unsigned j) {
    constexpr unsigned TO_SIGN = 0x2130;            // shifts of pairs 0 to 3, a digit each
    const unsigned magnitudes = j < 3 ? word << 3 * j : word >> 3;
    return (magnitudes & MAGNITUDES) | (word << (TO_SIGN >> 4 * j & 3) & SIGNS);
}
// Both floats of a pair times 2^(exponent - 127). All of it is exact; an exponent of 255 is no number.
__device__ inline unsigned scaled(unsigned pair, unsigned exponent) {
    const unsigned both = 0x00010001u;
    const unsigned found = mul_bf16x2(pair, ((min(exponent, 128u) + 126) << 7) * both);
    if (exponent <= 128) return found;              // as in every model that was seen
    return mul_bf16x2(found, (exponent == 255 ? 0x7fc0 : (exponent - 1) << 7) * both);
}

// A tile as `TileOf` has it.
template <unsigned TILES, unsigned OWN, unsigned STAGES>
struct PackedTileOf {
    static constexpr unsigned GROUPS = WARPS * OWN, OUTPUTS = GROUPS * GROUP;
    static constexpr unsigned MOST = TILES * TILE, X_UNITS = MOST * UNITS;
    static constexpr unsigned W_UNITS = OUTPUTS * PARTS, EXPONENTS = OUTPUTS / 4;     // units of 16 bytes
    static constexpr unsigned STAGE = W_UNITS + EXPONENTS + TURNS * X_UNITS;

    float sums[OWN][TILES][4];

    // Where a stage has a part of an output: parts change places, so that one part of eight outputs
    // lies in different banks.
    __device__ static unsigned part_at(unsigned output, unsigned part) { return output * PARTS + (part ^ output / 2 % PARTS); }

    // The matrix's row of an output of the tile: see `Weights`.
    struct Source { unsigned row; bool there; };
    __device__ static Source source_of(const Product& a, unsigned tile, unsigned output) {
        const unsigned within = output % GROUP, step = a.gated ? GROUP / 2 : GROUP;
        const bool up = a.gated && within >= GROUP / 2;
        const unsigned number = (tile * GROUPS + output / GROUP) * step + (up ? within - GROUP / 2 : within);
        return {up ? number + a.outputs : number, number < a.outputs};
    }
    // Begins to copy the tile's weights of a chunk.
    __device__ static void copy_weights(const Product& a, const Packed& w, unsigned tile, unsigned chunk, uint4* stage) {
        UNROLL
        for (unsigned turn = 0; turn < W_UNITS / THREADS; turn++) {
            const unsigned output = (threadIdx.x + turn * THREADS) / PARTS, part = threadIdx.x % PARTS;
            const Source from = source_of(a, tile, output);
            const unsigned number = chunk * PARTS + part;
            const bool inside = from.there && number < w.each;
            cp_async_16(stage + part_at(output, part), w.parts + (inside ? (size_t)from.row * w.each + number : 0), inside ? 16 : 0);
        }
        if (threadIdx.x >= OUTPUTS) return;
        const Source from = source_of(a, tile, threadIdx.x);
        const unsigned char* exponents = w.exponents + (from.there ? (size_t)from.row * exponents_each(w) + chunk * PARTS : 0);
        cp_async_4((unsigned*)(stage + W_UNITS) + threadIdx.x, exponents, from.there ? 4 : 0);
    }

    // sums = weights · xᵀ.
    template <class From>
    __device__ inline void multiply(const Product& a, const Packed& w, const From& from, uint4* stages, unsigned rows, unsigned tile) {
        const unsigned chunks = (w.each + PARTS - 1) / PARTS;
        auto stage_of = [&](unsigned chunk) { return stages + chunk % STAGES * STAGE; };
        auto copy = [&](unsigned chunk) {
            if (chunk < chunks) {
                uint4* stage = stage_of(chunk);
                copy_weights(a, w, tile, chunk, stage);
                // Rows lie behind a part that `copy_chunk_rows` skips.
                ROLLED
                for (unsigned turn = 0; turn < TURNS; turn++)
                    copy_chunk_rows<0, TILES>(a, from, rows, chunk * TURNS + turn, stage + W_UNITS + EXPONENTS + turn * X_UNITS);
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
        for (unsigned chunk = 0; chunk < STAGES - 1; chunk++) copy(chunk);
        for (unsigned chunk = 0; chunk < chunks; chunk++) {
            cp_async_wait_group<STAGES - 2>();
            __syncthreads();        // the chunk of packed weights is there, and the one before it done with
            copy(chunk + STAGES - 1);
            multiply_chunk(stage_of(chunk));
        }
    }

    // The word of this lane of a part, in row `half` of group `g` of its warp's outputs.
    __device__ static unsigned output_of(unsigned g, unsigned half) {
        return (threadIdx.x / 32 * OWN + g) * GROUP + half * 8 + threadIdx.x % 32 / 4;
    }
    __device__ static unsigned word_of(const uint4* stage, unsigned output, unsigned part, unsigned q) {
        return ((const unsigned*)(stage + part_at(output, part)))[q];
    }
    __device__ static unsigned exponent_of(const uint4* stage, unsigned output, unsigned part) {
        return ((const unsigned*)(stage + W_UNITS))[output] >> 8 * part & 0xff;
    }

#if OPERAND_IS_BF16
    __device__ inline void multiply_chunk(const uint4* stage) {
        UNROLL
        for (unsigned part = 0; part < PARTS; part++) multiply_part(stage, part);
    }
    __device__ inline void multiply_part(const uint4* stage, unsigned part) {
        const unsigned lane = threadIdx.x % 32;
        constexpr unsigned EACH_CHUNK = CHUNK / SHARING;
        const uint4* x = stage + W_UNITS + EXPONENTS + part / EACH_CHUNK * X_UNITS;
        const unsigned first = part % EACH_CHUNK * (SHARING / EACH);
        unsigned pairs[OWN][2][4];
        UNROLL
        for (unsigned g = 0; g < OWN; g++)
            UNROLL
            for (unsigned half = 0; half < 2; half++) {
                const unsigned output = output_of(g, half), exponent = exponent_of(stage, output, part);
                const unsigned word = word_of(stage, output, part, lane % 4);
                UNROLL
                for (unsigned j = 0; j < 4; j++) pairs[g][half][j] = scaled(pair_of(word, j), exponent);
            }
        unsigned b[TILES + TILES % 2][2];
        UNROLL
        for (unsigned step = 0; step < 2; step++) {
            read_tiles<TILES>(b, x, first + 2 * step, step == 0);
            UNROLL
            for (unsigned g = 0; g < OWN; g++) {
                const unsigned (&own)[2][4] = pairs[g];
                const unsigned fragment[4] = {own[0][2 * step], own[1][2 * step], own[0][2 * step + 1], own[1][2 * step + 1]};
                UNROLL
                for (unsigned t = 0; t < TILES; t++) mma_m16n8k16_bf16(sums[g][t], fragment, b[TILES == 1 ? step : t]);
            }
        }
    }
#else
    __device__ inline void multiply_chunk(const uint4* stage) {
        ROLLED
        for (unsigned unit = 0; unit < TURNS * UNITS; unit++) multiply_unit(stage, unit);
    }
    // Four columns: of each half of them a pair.
    __device__ inline void multiply_unit(const uint4* stage, unsigned unit) {
        const unsigned part = unit / (SHARING / EACH), within = unit % (SHARING / EACH);
        const uint4* x = stage + W_UNITS + EXPONENTS + unit / UNITS * X_UNITS;
        float4 left[OWN][2];
        UNROLL
        for (unsigned g = 0; g < OWN; g++)
            UNROLL
            for (unsigned half = 0; half < 2; half++) {
                const unsigned output = output_of(g, half), exponent = exponent_of(stage, output, part);
                auto two = [&](unsigned q) { return scaled(pair_of(word_of(stage, output, part, q), within / 2), exponent); };
                const unsigned front = two(within % 2 * 2), back = two(within % 2 * 2 + 1);
                auto low = [](unsigned x) { return __uint_as_float(x << 16); };
                auto high = [](unsigned x) { return __uint_as_float(x & 0xffff0000u); };
                left[g][half] = make_float4(low(front), high(front), low(back), high(back));
            }
        multiply_tiles(sums, left, x, unit % UNITS);
    }
#endif
};
