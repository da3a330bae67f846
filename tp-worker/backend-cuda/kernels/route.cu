// Routes of a mixture of experts: a router's scores, the experts that each row chooses by them, the
// order of all choices by experts, and the sum of what the experts make of a row.
#include "exp.cuh"
#include "routes.cuh"

constexpr unsigned WARPS = 4, THREADS = 32 * WARPS;
constexpr unsigned ALL = 0xffffffffu, NONE = 0xffffffffu;

struct Score {
    const OPERAND* x;           // [rows, inputs]
    const float* w;             // [outputs, inputs]
    const float* bias;          // [outputs], or null
    float* out;                 // [rows, outputs]
    Rows rows;
    unsigned outputs, inputs;
    unsigned aligned;           // rows have whole units of four values
    unsigned pad;
};
constexpr unsigned UNIT = 4;        // values of a row that a lane multiplies at a time

// Four values of a row from `column` on; those behind its end are zero.
__device__ inline float4 unit_of(const Score& a, const float* row, unsigned column) {
    if (a.aligned) return *(const float4*)(row + column);
    auto at = [&](unsigned i) { return column + i < a.inputs ? row[column + i] : 0.0f; };
    return make_float4(at(0), at(1), at(2), at(3));
}
__device__ inline float4 unit_of(const Score& a, const bf16* row, unsigned column) {
    if (a.aligned) {
        const uint2 both = *(const uint2*)(row + column);
        auto low = [](unsigned x) { return __uint_as_float(x << 16); };
        auto high = [](unsigned x) { return __uint_as_float(x & 0xffff0000u); };
        return make_float4(low(both.x), high(both.x), low(both.y), high(both.y));
    }
    auto at = [&](unsigned i) { return column + i < a.inputs ? to_f32(row[column + i]) : 0.0f; };
    return make_float4(at(0), at(1), at(2), at(3));
}
// out = x · wᵀ, with weights that are not rounded. A lane adds every 32nd unit of four columns; then
// lanes are added. Nothing of that depends on how many rows there are. A warp multiplies ROWS rows
// by one expert. Grid: (experts / WARPS, rows / ROWS).
template <unsigned ROWS>
__device__ inline void score(const Score& a) {
    begin_after_predecessors();
    const unsigned output = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned first = blockIdx.y * ROWS, rows = rows_of(a.rows);
    if (output >= a.outputs || first >= rows) return;
    const float* w = a.w + (size_t)output * a.inputs;
    const OPERAND* x[ROWS];
    float sums[ROWS];
    UNROLL
    for (unsigned i = 0; i < ROWS; i++) {
        x[i] = a.x + (size_t)min(first + i, rows - 1) * a.inputs;
        sums[i] = 0;
    }
    for (unsigned column = lane * UNIT; column < a.inputs; column += 32 * UNIT) {
        const float4 weights = unit_of(a, w, column);
        UNROLL
        for (unsigned i = 0; i < ROWS; i++) {
            const float4 values = unit_of(a, x[i], column);
            sums[i] = __fmaf_rn(weights.x, values.x, sums[i]);
            sums[i] = __fmaf_rn(weights.y, values.y, sums[i]);
            sums[i] = __fmaf_rn(weights.z, values.z, sums[i]);
            sums[i] = __fmaf_rn(weights.w, values.w, sums[i]);
        }
    }
    const float bias = a.bias ? a.bias[output] : 0.0f;
    UNROLL
    for (unsigned i = 0; i < ROWS; i++) {
        const float sum = warp_sum(sums[i]), score = a.bias ? __fadd_rn(sum, bias) : sum;
        if (lane == 0 && first + i < rows) a.out[(size_t)(first + i) * a.outputs + output] = score;
    }
}
extern "C" __global__ void __launch_bounds__(THREADS) score_1(Score a) { score<1>(a); }
extern "C" __global__ void __launch_bounds__(THREADS) score_4(Score a) { score<4>(a); }
extern "C" __global__ void __launch_bounds__(THREADS) score_16(Score a) { score<16>(a); }

struct Route {
    const float* scores;        // [rows, scored]
    const float* correction;    // [scored], or null
    const float* scales;        // [scored], or null: factors of the weights, after all else
    unsigned* experts;          // [rows, taken]: of each row, ascending; NONE for those elsewhere
    float* weights;             // [rows, taken]
    Rows rows;
    unsigned scored, active;    // experts that are chosen from, and that are chosen
    unsigned taken;             // with those behind them that each row goes through
    unsigned first, held;       // experts that are here, of those that are chosen from
    unsigned sigmoid;           // weights are those of a sigmoid, not of a softmax
    unsigned renormalized;      // weights of chosen experts are divided by their sum
    float factor;               // of the weights, then
    unsigned groups, chosen_groups;     // of neighbouring experts; experts of chosen ones are chosen
    unsigned two_largest;       // a group is worth the sum of its two largest, not its largest
    unsigned pad;
};

// A sum in the order of experts, the same in every lane.
__device__ inline float sum_in_order(const float* values, unsigned count) {
    float sum = 0;
    for (unsigned i = 0; i < count; i++) sum = __fadd_rn(sum, values[i]);
    return sum;
}
__device__ inline void softmax(const float* scores, unsigned count, unsigned lane, float* weights) {
    float largest = -INFINITY;
    for (unsigned e = lane; e < count; e += 32) largest = fmaxf(largest, scores[e]);
    for (unsigned d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, d));
    for (unsigned e = lane; e < count; e += 32) weights[e] = exp_of(__fadd_rn(scores[e], -largest));
    __syncwarp();
    const float sum = sum_in_order(weights, count);
    __syncwarp();
    for (unsigned e = lane; e < count; e += 32) weights[e] = fabsf(__fdiv_rn(weights[e], sum));
}
// No weight is below what published models add to the sums that they divide by.
__device__ inline void sigmoids(const float* scores, unsigned count, unsigned lane, float* weights) {
    bool finite = true;
    for (unsigned e = lane; e < count; e += 32) finite = finite && fabsf(scores[e]) < INFINITY;
    finite = __all_sync(ALL, finite);
    for (unsigned e = lane; e < count; e += 32) {
        const float weight = __fdiv_rn(1.0f, __fadd_rn(1.0f, exp_of(-scores[e])));
        weights[e] = finite ? fmaxf(weight, 1e-20f) : __uint_as_float(0x7fc00000u);
    }
}

// The largest worth that has an order, of equal ones that of the lowest expert.
struct Best { float worth; unsigned expert; };
__device__ inline void improve(Best& best, float worth, unsigned expert) {
    if (expert == NONE || worth != worth) return;
    const bool better = worth > best.worth || (worth == best.worth && expert < best.expert);
    if (best.expert == NONE || better) best = {worth, expert};
}
__device__ inline float worth_of_expert(const Route& a, const float* weights, unsigned e) {
    return __fadd_rn(weights[e], a.correction ? a.correction[e] : 0.0f);
}
// Takes the best of `count` experts, or groups, that are `free`: those 32 · i + lane of which bit i is
// set. Where the lowest free one is worth something without order, that is the one.
template <class Worth>
__device__ inline void take_best(Worth worth_of, unsigned count, unsigned lane, unsigned& free) {
    Best best = {0, NONE};
    unsigned lowest = NONE;
    for (unsigned i = 0; i * 32 < count; i++) {
        const unsigned e = 32 * i + lane;
        if (!(free >> i & 1)) continue;
        lowest = min(lowest, e);
        improve(best, worth_of(e), e);
    }
    for (unsigned d = 16; d > 0; d /= 2) {
        lowest = min(lowest, __shfl_xor_sync(ALL, lowest, d));
        const float worth = __shfl_xor_sync(ALL, best.worth, d);
        improve(best, worth, __shfl_xor_sync(ALL, best.expert, d));
    }
    if (lowest == NONE) return;
    const float first = worth_of(lowest);
    const unsigned taken = first != first ? lowest : best.expert;
    if (taken % 32 == lane) free &= ~(1u << taken / 32);
}
// Bits of the numbers 32 · i + lane below `count`.
__device__ inline unsigned bits_below(unsigned count, unsigned lane) {
    unsigned bits = 0;
    for (unsigned i = 0; 32 * i + lane < count; i++) bits |= 1u << i;
    return bits;
}
// What a group is worth. A worth without order counts if it comes first alone.
__device__ inline float worth_of_group(const Route& a, const float* weights, unsigned group) {
    const unsigned size = a.scored / a.groups, first = group * size;
    float largest = worth_of_expert(a, weights, first), second = -INFINITY;
    for (unsigned e = first + 1; e < first + size; e++) {
        const float worth = worth_of_expert(a, weights, e);
        if (worth > largest) second = largest, largest = worth;
        else if (worth > second) second = worth;
    }
    return a.two_largest ? __fadd_rn(largest, second) : largest;
}
// The experts among which a row chooses, as bits of those 32 · i + lane: all, or those of the groups
// that it chooses. `worths` is space for a value of each group.
__device__ inline unsigned open_experts(const Route& a, const float* weights, unsigned lane, float* worths) {
    const unsigned all = bits_below(a.scored, lane);
    if (a.groups == 1) return all;
    for (unsigned group = lane; group < a.groups; group += 32) worths[group] = worth_of_group(a, weights, group);
    __syncwarp();           // all worths are there
    const unsigned own = bits_below(a.groups, lane), size = a.scored / a.groups;
    unsigned free = own;
    for (unsigned i = 0; i < a.chosen_groups; i++)
        take_best([&](unsigned group) { return worths[group]; }, a.groups, lane, free);
    const unsigned taken = own & ~free;
    unsigned open = 0;
    for (unsigned i = 0; 32 * i < a.scored; i++) {
        const unsigned e = 32 * i + lane, group = min(e, a.scored - 1) / size;
        // The lane that has the group knows.
        const unsigned bits = __shfl_sync(ALL, taken, group % 32);
        if (e < a.scored && (bits >> group / 32 & 1)) open |= 1u << i;
    }
    return open;
}
// Lists chosen experts, ascending and as they are numbered here, and moves their weights to the front;
// `scales` are their factors, where there are some.
__device__ inline void list_chosen(const Route& a, unsigned lane, unsigned chosen, float* weights, float* scales, unsigned* experts) {
    unsigned listed = 0;
    for (unsigned i = 0; i * 32 < a.scored; i++) {
        const unsigned e = 32 * i + lane;
        const bool is_chosen = chosen >> i & 1;
        const float weight = is_chosen ? weights[e] : 0.0f;
        const unsigned all = __ballot_sync(ALL, is_chosen);
        __syncwarp();       // weights of this turn are read
        const unsigned at = listed + __popc(all & ((1u << lane) - 1));
        if (is_chosen) {
            weights[at] = weight;
            if (a.scales) scales[at] = a.scales[e];
            experts[at] = e - a.first < a.held ? e - a.first : NONE;
        }
        listed += __popc(all);
    }
}
// The experts of each row and their weights. A warp takes a row. Grid: (rows / WARPS).
extern "C" __global__ void __launch_bounds__(THREADS) route(Route a) {
    begin_after_predecessors();
    __shared__ float all[WARPS][MOST_EXPERTS], worths[WARPS][MOST_GROUPS];
    const unsigned lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows_of(a.rows)) return;
    float* weights = all[threadIdx.x / 32];
    const float* scores = a.scores + (size_t)row * a.scored;
    unsigned* experts = a.experts + (size_t)row * a.taken;
    float* out = a.weights + (size_t)row * a.taken;
    if (a.sigmoid) sigmoids(scores, a.scored, lane, weights);
    else softmax(scores, a.scored, lane, weights);
    __syncwarp();           // all weights are there
    const unsigned own = open_experts(a, weights, lane, worths[threadIdx.x / 32]);
    unsigned free = own;
    auto worth_of = [&](unsigned e) { return worth_of_expert(a, weights, e); };
    for (unsigned i = 0; i < a.active; i++) take_best(worth_of, a.scored, lane, free);
    __syncwarp();           // all weights are read
    list_chosen(a, lane, own & ~free, weights, out, experts);
    __syncwarp();           // the chosen are in front
    const float sum = a.renormalized ? sum_in_order(weights, a.active) : 1.0f;
    for (unsigned i = lane; i < a.taken; i += 32) {
        if (i >= a.active) {
            experts[i] = a.held + i - a.active;
            out[i] = 1.0f;
            continue;
        }
        const float weight = weights[i];
        const float scaled = __fmul_rn(a.renormalized ? __fdiv_rn(weight, sum) : weight, a.factor);
        out[i] = a.scales ? __fmul_rn(scaled, out[i]) : scaled;
    }
}

constexpr unsigned SORTERS = 512;
struct Sort {
    const unsigned* experts;    // [rows, taken]
    unsigned* places;           // [rows, taken]: of each choice, in the order by experts, or NONE
    unsigned* order;            // [rows · taken]: row of each place
    ExpertTile* tiles;
    unsigned* count;            // of tiles
    Rows rows;
    unsigned taken, all;        // all: the number of experts
    unsigned height;            // most rows of a tile
    unsigned pad;
};
// The sum of `x` over the threads before this one; `total` is that over all. A block may take
// several, one behind the other.
__device__ inline unsigned sum_before(unsigned x, unsigned& total) {
    __shared__ unsigned sums[SORTERS / 32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned upto = x;
    for (unsigned d = 1; d < 32; d *= 2) {
        const unsigned other = __shfl_up_sync(ALL, upto, d);
        if (lane >= d) upto += other;
    }
    __syncthreads();        // the last sums are read
    if (lane == 31) sums[warp] = upto;
    __syncthreads();
    unsigned before = 0;
    total = 0;
    for (unsigned i = 0; i < SORTERS / 32; i++) {
        if (i < warp) before += sums[i];
        total += sums[i];
    }
    return before + upto - x;
}
// Sorts choices by expert, those of one expert by row, and cuts each expert's into tiles. A block
// takes an expert: it counts all choices, and finds the places of its own. The first block also marks
// the choices whose expert is elsewhere. Grid: (experts).
extern "C" __global__ void __launch_bounds__(SORTERS) sort_choices(Sort a) {
    begin_after_predecessors();
    __shared__ unsigned counts[MOST_EXPERTS];
    const unsigned expert = blockIdx.x, choices = rows_of(a.rows) * a.taken;
    const unsigned each = (choices + SORTERS - 1) / SORTERS;
    const unsigned begin = min(threadIdx.x * each, choices), end = min(begin + each, choices);
    for (unsigned e = threadIdx.x; e < a.all; e += SORTERS) counts[e] = 0;
    __syncthreads();        // counts are zero
    unsigned own = 0;
    for (unsigned choice = begin; choice < end; choice++) {
        const unsigned chosen = a.experts[choice];
        if (chosen != NONE) atomicAdd(&counts[chosen], 1u);
        else if (expert == 0) a.places[choice] = NONE;
        own += chosen == expert;
    }
    __syncthreads();        // all are counted
    auto tiles_of = [&](unsigned e) { return (counts[e] + a.height - 1) / a.height; };
    unsigned lower = 0, lower_tiles = 0, tiles = 0, first, first_tile, all_tiles, total;
    for (unsigned e = threadIdx.x; e < a.all; e += SORTERS) {
        if (e < expert) lower += counts[e], lower_tiles += tiles_of(e);
        tiles += tiles_of(e);
    }
    sum_before(lower, first);
    sum_before(lower_tiles, first_tile);
    sum_before(tiles, all_tiles);
    unsigned place = first + sum_before(own, total);
    for (unsigned choice = begin; choice < end; choice++)
        if (a.experts[choice] == expert) {
            a.places[choice] = place;
            a.order[place++] = choice / a.taken;
        }
    for (unsigned tile = threadIdx.x; tile < tiles_of(expert); tile += SORTERS) {
        const unsigned before = tile * a.height;
        a.tiles[first_tile + tile] = {expert, first + before, min(a.height, total - before), 0};
    }
    if (expert == 0 && threadIdx.x == 0) *a.count = all_tiles;
}

struct Weigh {
    const float* products;      // [places, width]
    const float* weights;       // [rows, taken]
    const unsigned* places;     // [rows, taken]; NONE: nothing is here
    float* out;                 // [rows, width]
    Rows rows;
    unsigned width, taken;
};
constexpr unsigned AT_ONCE = 8;
// out = Σ weight · product over a row's choices, by ascending expert. Grid: (most rows, columns / THREADS).
extern "C" __global__ void __launch_bounds__(THREADS) weigh_choices(Weigh a) {
    begin_after_predecessors();
    const unsigned row = blockIdx.x, column = blockIdx.y * THREADS + threadIdx.x;
    if (row >= rows_of(a.rows) || column >= a.width) return;
    const unsigned* places = a.places + (size_t)row * a.taken;
    const float* weights = a.weights + (size_t)row * a.taken;
    float sum = 0;
    bool any = false;
    ROLLED
    for (unsigned first = 0; first < a.taken; first += AT_ONCE) {
        float x[AT_ONCE];
        bool here[AT_ONCE];
        UNROLL
        for (unsigned i = 0; i < AT_ONCE; i++) {
            const unsigned place = first + i < a.taken ? places[first + i] : NONE;
            here[i] = place != NONE;
            if (here[i]) x[i] = a.products[(size_t)place * a.width + column];
        }
        UNROLL
        for (unsigned i = 0; i < AT_ONCE; i++)
            if (here[i]) {
                const float weighed = __fmul_rn(weights[first + i], x[i]);
                sum = any ? __fadd_rn(sum, weighed) : weighed;
                any = true;
            }
    }
    a.out[(size_t)row * a.width + column] = sum;
}
