// Products of a mixture's experts: each multiplies the rows that chose it (`route.cu`).
//
// A launch has blocks for the most tiles that there can be; those without a tile end at once. So
// the same launch serves every way in which rows choose, and a chosen expert's weights are read
// once for each tile of its rows, those of other experts never.
//
// A sum has one slice, so its bits depend neither on the tile's size nor on the number of rows.
#pragma once
#include "few_rows.cuh"
#include "routes.cuh"

struct ExpertProduct {
    const OPERAND* x;           // [rows, inputs]
    const OPERAND* const* w;    // of each expert: [outputs, inputs]; gated: [2 · outputs, inputs], the gates first
    const float* biases;        // of all experts' outputs, one expert behind the other, or null
    const unsigned* order;      // row of x of each place; null: row and place are one
    const ExpertTile* tiles;
    const unsigned* count;      // of tiles
    void* out;                  // [places, outputs]: f32; gated or activated: OPERAND
    unsigned outputs, inputs;
    unsigned gated;             // 0, or the activation f of out = f(gate) · up; CLAMPED: see `gate_of`
    unsigned aligned;           // rows begin at multiples of 16 bytes
    float limit, alpha;         // where gates are CLAMPED
    unsigned activated;         // 0, or the activation f of out = f(x · wᵀ) without gates
    unsigned pad;
};
constexpr unsigned CLAMPED = 1u << 31;     // no `Activation`

// What an expert's gate lets through. Clamped, both are bounded, and the gate goes through
// x · σ(alpha · x) and times one more than the other.
__device__ inline float gate_of(const ExpertProduct& p, float gate, float up) {
    if (p.gated != CLAMPED) return gated(p.gated, gate, up);
    if (gate > p.limit) gate = p.limit;         // what is no number stays none
    if (up > p.limit) up = p.limit;
    if (up < -p.limit) up = -p.limit;
    return gate / (1.0f + expf(-p.alpha * gate)) * (up + 1.0f);
}

// Multiplies a tile of TILES · 8 rows, of which OWN groups of outputs are a warp's, as
// `run(found, product, from, stages)` does, where `from` says which row each thread copies. Grid:
// (tiles of outputs, most tiles of rows), the outputs first, so that blocks of one expert run at
// about the same time.
template <class Found, unsigned TILES, unsigned OWN, class Run>
__device__ inline void multiply_expert(const ExpertProduct& p, Run run) {
    DYNAMIC_SHARED(uint4, stages);
    begin_after_predecessors();
    if (blockIdx.y >= *p.count) return;
    const ExpertTile of = p.tiles[blockIdx.y];
    Product a;
    a.x = p.x;
    a.w = p.w[of.expert];
    a.bias = p.biases ? p.biases + (size_t)of.expert * p.outputs * (p.gated ? 2 : 1) : nullptr;
    a.rows = {nullptr, of.rows, 0};
    a.outputs = p.outputs;
    a.inputs = p.inputs;
    a.gated = p.gated;
    a.aligned = p.aligned;
    const size_t before = (size_t)of.first * p.outputs;
    a.out = p.gated || p.activated ? (void*)((OPERAND*)p.out + before) : (void*)((float*)p.out + before);
    Listed<row_groups(TILES)> from;
    UNROLL
    for (unsigned group = 0; group < row_groups(TILES); group++) {
        const unsigned row = group * GROUP + threadIdx.x / UNITS;
        from.rows[group] = row >= of.rows ? 0 : p.order ? p.order[of.first + row] : of.first + row;
    }
    Found found;
    run(found, a, from, stages);
    const unsigned first = (blockIdx.x * Found::GROUPS + threadIdx.x / 32 * OWN) * (a.gated ? GROUP / 2 : GROUP);
    if (a.gated) store_gated(a, found.sums, of.rows, first, [&](float gate, float up) { return gate_of(p, gate, up); });
    else if (p.activated) store_as(a, found.sums, of.rows, first, (OPERAND*)a.out, [&](float up) { return from_f32<OPERAND>(activated(p.activated, up)); });
    else store(a, found.sums, of.rows, first, (float*)a.out);
}
