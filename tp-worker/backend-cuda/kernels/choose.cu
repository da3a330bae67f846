// A token for every wanted row of logits: greedy, or sampled after temperature,
// top-k, top-p and min-p. No row is sorted. A histogram of weights, refined where
// a border lies, finds the weight at which the most likely tokens hold so many
// tokens or so much mass, and the token that the random number falls on. Counts
// and masses are whole numbers, so that neither blocks nor atomic operations have
// an order to keep.
#include "choices.cuh"
#include "weights.cuh"

constexpr unsigned PART_THREADS = 512, PART = 16384;     // of a row, per block
constexpr unsigned THREADS = 1024, WARPS = THREADS / 32;
// The first histogram has cells of 1/32 of a power of two, down to the least
// weight that has a mass; the second and third each cut a cell into 512.
constexpr unsigned COARSE = 45 * 32 + 32, COARSE_SHIFT = 18;
constexpr unsigned FINE = 512, FINE_SHIFT = 9;

// What blocks find out about a row. All zero between two passes.
struct State {
    u64 best;               // the largest logit, `ordered`, then ~ its first token
    u64 mass;               // of all weights
    u64 masses[COARSE];
    unsigned counts[COARSE];
    unsigned candidates;    // tokens that have a mass
    unsigned pad;
};
struct Choose {
    float* logits;          // [most, vocab]; of rows that sample, weights afterwards
    const unsigned* batch;
    State* states;          // [most]
    unsigned* tokens;       // of all wanted rows
    unsigned first, most;   // of these rows, among the wanted ones
    unsigned vocab;
    float units;            // in a weight of 1
};
__device__ inline bool has_row(const Choose& a, unsigned row) { return row < a.most && is_chosen(a.batch, a.first + row); }
__device__ inline bool is_finite(u64 best) {
    const unsigned order = (unsigned)(best >> 32);
    return order != NOT_FINITE && order != NEGATIVE_INFINITY;
}
__device__ inline bool draws_in_order_of_ids(const Choose& a, const Choice& choice) {
    return choice.top_p >= 1.0f && (choice.top_k == 0 || choice.top_k >= a.vocab);
}

// take(id, x) of all in begin..end, by the block's threads; several loads are on
// their way at once.
template <unsigned COUNT, class Take>
__device__ inline void each(const float* row, unsigned begin, unsigned end, Take take) {
    constexpr unsigned BATCH = 8;
    for (unsigned at = begin + threadIdx.x; at < end; at += BATCH * COUNT) {
        float x[BATCH];
        UNROLL
        for (unsigned i = 0; i < BATCH; i++) x[i] = at + i * COUNT < end ? row[at + i * COUNT] : 0.0f;
        UNROLL
        for (unsigned i = 0; i < BATCH; i++)
            if (at + i * COUNT < end) take(at + i * COUNT, x[i]);
    }
}

// Masks of some rows of logits, which the host has made while the layers ran.
struct Mask {
    float* logits;          // [rows, vocab]
    const unsigned* rows;   // of the logits, that have a mask
    const unsigned* masks;  // of each of them: a bit for each token
    unsigned words;         // of a mask
    unsigned vocab;
};

// Forbidden tokens get a logit of -inf, before anything else is done to the row. What makes a
// row not finite stays, as the host looks for it in all tokens. Grid: (parts of a row, masks).
extern "C" __global__ void __launch_bounds__(PART_THREADS) choose_mask(Mask a) {
    begin_after_predecessors();
    const unsigned begin = blockIdx.x * PART, end = min(begin + PART, a.vocab);
    const unsigned* mask = a.masks + (size_t)blockIdx.y * a.words;
    float* row = a.logits + (size_t)a.rows[blockIdx.y] * a.vocab;
    for (unsigned id = begin + threadIdx.x; id < end; id += PART_THREADS)
        if (!(mask[id / 32] >> id % 32 & 1) && row[id] < INFINITY) row[id] = -INFINITY;
}

// The largest logit of a row and its first token. Grid: (parts of a row, most rows).
extern "C" __global__ void __launch_bounds__(PART_THREADS) choose_best(Choose a) {
    begin_after_predecessors();
    const unsigned row = blockIdx.y, begin = blockIdx.x * PART;
    unsigned depth;
    if (!has_row(a, row) || choice_of(a.batch, a.first + row, depth).how == HOST) return;
    u64 best = 0;
    each<PART_THREADS>(a.logits + (size_t)row * a.vocab, begin, min(begin + PART, a.vocab), [&](unsigned id, float x) {
        best = max(best, (u64)ordered(x) << 32 | ~id);
    });
    for (unsigned d = 16; d > 0; d /= 2) best = max(best, __shfl_xor_sync(0xffffffffu, best, d));
    if (threadIdx.x % 32 == 0) atomicMax(&a.states[row].best, best);
}

// Weights in place of logits, and their histogram. Grid: (parts of a row, most rows).
extern "C" __global__ void __launch_bounds__(PART_THREADS) choose_weigh(Choose a) {
    begin_after_predecessors();
    __shared__ Cells<COARSE> cells;
    const unsigned row = blockIdx.y, begin = blockIdx.x * PART;
    if (!has_row(a, row)) return;
    unsigned depth;
    const Choice choice = choice_of(a.batch, a.first + row, depth);
    State& state = a.states[row];
    const u64 best = state.best;
    if (choice.how != SAMPLE || !is_finite(best)) return;
    const float largest = from_ordered((unsigned)(best >> 32));
    const bool plain = draws_in_order_of_ids(a, choice);
    cells.clear();
    __syncthreads();        // cells are empty
    float* weights = a.logits + (size_t)row * a.vocab;
    u64 mass = 0, candidates = 0;
    each<PART_THREADS>(weights, begin, min(begin + PART, a.vocab), [&](unsigned id, float x) {
        float weight = exp_nonpositive(__fdiv_rn(__fadd_rn(x, -largest), choice.temperature));
        // Where nothing else cuts, min-p does it here.
        if (plain && weight < choice.min_p) weight = 0.0f;
        const u64 own = mass_of(weight, a.units);
        weights[id] = own ? weight : 0.0f;
        mass += own;
        candidates += own != 0;
        if (own && !plain) cells.add((ONE - __float_as_uint(weight)) >> COARSE_SHIFT, own);
    });
    mass = warp_total(mass), candidates = warp_total(candidates);
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&state.mass, mass);
        atomicAdd(&state.candidates, (unsigned)candidates);
    }
    __syncthreads();        // all weights are in their cells
    for (unsigned cell = threadIdx.x; cell < COARSE; cell += PART_THREADS)
        if (cells.counts[cell]) {
            atomicAdd(&state.counts[cell], cells.counts[cell]);
            atomicAdd(&state.masses[cell], cells.mass(cell));
        }
}

// The tokens among which all borders of a row lie, if they are so few that a list in shared
// memory holds them: whatever looks for a border then reads no other weights.
constexpr unsigned LISTED = 1024;
struct Likely { float weight; unsigned id; };

// Where some border lies among the weights, the largest first.
struct Border {
    u64 mass;           // of larger weights
    unsigned count;     // of them
    unsigned cell;      // then the weight's bits
};
struct Shared {
    Cells<COARSE> coarse;
    Cells<FINE> fine;
    Border border;
    u64 sums[WARPS];
    Likely list[LISTED];
    unsigned listed;    // how many there are
    unsigned token;
};

// The first cell with which the count, or the mass, exceeds `place`; `border` is
// what lies before all cells. A block's threads all ask alike.
template <unsigned N>
__device__ inline void find_cell(Shared& s, const Cells<N>& cells, bool by_mass, u64 place, Border& border) {
    constexpr unsigned EACH = (N + 31) / 32;
    __syncthreads();        // cells are full, and the last border was read
    if (threadIdx.x < 32) {
        const unsigned first = threadIdx.x * EACH, end = min(first + EACH, N);
        u64 mass = 0;
        unsigned count = 0;
        for (unsigned cell = first; cell < end; cell++) mass += cells.mass(cell), count += cells.counts[cell];
        Border before = {border.mass + sum_to_lane(mass) - mass, border.count + sum_to_lane(count) - count, first};
        const u64 from = by_mass ? before.mass : before.count;
        if (from <= place && place - from < (by_mass ? mass : count)) {
            for (;; before.cell++) {
                const u64 own = cells.mass(before.cell);
                const unsigned tokens = cells.counts[before.cell];
                if (by_mass ? place - before.mass < own : place - before.count < tokens) break;
                before.mass += own, before.count += tokens;
            }
            s.border = before;
        }
    }
    __syncthreads();        // the border is there
    border = s.border;
}

// take(weight) of all tokens, or of those that are listed.
template <class Take>
__device__ inline void each_weight(const Shared& s, const Choose& a, const float* weights, bool listed, Take take) {
    if (!listed) {
        each<THREADS>(weights, 0, a.vocab, [&](unsigned, float weight) { take(weight); });
        return;
    }
    for (unsigned i = threadIdx.x; i < s.listed; i += THREADS) take(s.list[i].weight);
}
// Lists the tokens down to and including a coarse cell. Whether there is room.
__device__ inline bool list_down_to(Shared& s, const Choose& a, const float* weights, const Border& border) {
    if (border.count + s.coarse.counts[border.cell] > LISTED) return false;
    if (threadIdx.x == 0) s.listed = 0;
    __syncthreads();        // the list is empty
    each<THREADS>(weights, 0, a.vocab, [&](unsigned id, float weight) {
        if (weight > 0.0f && (ONE - __float_as_uint(weight)) >> COARSE_SHIFT <= border.cell)
            s.list[atomicAdd(&s.listed, 1u)] = {weight, id};
    });
    __syncthreads();        // the list is full
    return true;
}
// The listed token that comes `nth`, by id, among those of a weight.
__device__ inline unsigned search_list(Shared& s, unsigned bits, u64 nth) {
    for (unsigned i = threadIdx.x; i < s.listed; i += THREADS) {
        if (__float_as_uint(s.list[i].weight) != bits) continue;
        unsigned before = 0;
        for (unsigned other = 0; other < s.listed; other++)
            before += __float_as_uint(s.list[other].weight) == bits && s.list[other].id < s.list[i].id;
        if (before == nth) s.token = s.list[i].id;
    }
    __syncthreads();        // the token is there
    return s.token;
}

// The weight with which the count, or the mass, exceeds `place`: less than that of
// all candidates.
__device__ inline Border find(Shared& s, const Choose& a, const float* weights, bool listed, bool by_mass, u64 place) {
    Border border = {0, 0, 0};
    find_cell(s, s.coarse, by_mass, place, border);
    unsigned below = border.cell;
    ROLLED
    for (unsigned shift = COARSE_SHIFT; shift > 0; shift -= FINE_SHIFT) {
        s.fine.clear();
        __syncthreads();    // fine cells are empty
        each_weight(s, a, weights, listed, [&](float weight) {
            const unsigned distance = ONE - __float_as_uint(weight);
            if (weight > 0.0f && distance >> shift == below)
                s.fine.add(distance >> (shift - FINE_SHIFT) & (FINE - 1), mass_of(weight, a.units));
        });
        find_cell(s, s.fine, by_mass, place, border);
        below = below << FINE_SHIFT | border.cell;
    }
    border.cell = ONE - below;
    return border;
}

// The first token at which the sum of value(weight) exceeds `place`: less than
// that of all.
template <class Value>
__device__ inline unsigned search(Shared& s, const Choose& a, const float* weights, u64 place, Value value) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned begin = 0, end = a.vocab;
    while (end - begin > 32) {
        // Each warp sums a piece, and the piece is cut again.
        const unsigned piece = (end - begin + THREADS - 1) / THREADS * 32;
        const unsigned from = min(begin + warp * piece, end), to = min(from + piece, end);
        u64 sum = 0;
        for (unsigned id = from + lane; id < to; id += 32) sum += value(weights[id]);
        sum = warp_total(sum);
        __syncthreads();    // the last sums were read
        if (lane == 0) s.sums[warp] = sum;
        __syncthreads();    // sums are there
        unsigned found = 0;
        while (found < WARPS - 1 && place >= s.sums[found]) place -= s.sums[found++];
        begin = min(begin + found * piece, end), end = min(begin + piece, end);
    }
    const u64 own = begin + lane < end ? value(weights[begin + lane]) : 0;
    const unsigned beyond = __ballot_sync(0xffffffffu, sum_to_lane(own) > place);
    return beyond ? begin + __ffs(beyond) - 1 : 0;
}

// The mass of weights that are at least `least`.
__device__ inline u64 likely_mass(Shared& s, const Choose& a, const float* weights, bool listed, float least) {
    u64 mass = 0;
    each_weight(s, a, weights, listed, [&](float weight) {
        if (weight >= least) mass += mass_of(weight, a.units);
    });
    mass = warp_total(mass);
    if (threadIdx.x % 32 == 0) s.sums[threadIdx.x / 32] = mass;
    __syncthreads();        // likely sums are there
    mass = 0;
    for (unsigned warp = 0; warp < WARPS; warp++) mass += s.sums[warp];
    return mass;
}

// The token of a row whose weights are there. What top-k, then top-p, then min-p
// leave is drawn from most likely first, lowest id first among equals; where
// nothing was cut away but by min-p, in order of ids.
__device__ inline unsigned drawn(Shared& s, const Choose& a, const Choice& choice, unsigned depth, const State& state,
                                 const float* weights) {
    const u64 position = ((u64)choice.position[1] << 32 | choice.position[0]) + depth;
    const float units = a.units;
    u64 mass = state.mass;          // of what is kept
    if (draws_in_order_of_ids(a, choice))
        return search(s, a, weights, place(choice.seed, position, mass), [=](float weight) { return mass_of(weight, units); });
    for (unsigned cell = threadIdx.x; cell < COARSE; cell += THREADS) {
        const u64 own = state.masses[cell];
        s.coarse.counts[cell] = state.counts[cell];
        s.coarse.lows[cell] = (unsigned)own, s.coarse.highs[cell] = (unsigned)(own >> 32);
    }
    const bool cuts_count = choice.top_k != 0 && choice.top_k < state.candidates, cuts_mass = choice.top_p < 1.0f;
    // No border lies behind the first one.
    Border first = {0, 0, 0};
    const u64 last = cuts_count ? choice.top_k - 1 : (cuts_mass ? share(choice.top_p, mass) : mass) - 1;
    find_cell(s, s.coarse, !cuts_count, last, first);
    const bool listed = list_down_to(s, a, weights, first);
    // Each border is a weight, and which of those that have it is the last one kept
    // or the one drawn.
    enum Step { TOP_K, TOP_P, DRAW, DONE };
    unsigned bits = 0;
    u64 nth = 0;
    ROLLED
    for (int step = TOP_K; step < DONE; step++) {
        u64 at = choice.top_k - 1;
        if (step == TOP_K && !cuts_count) continue;
        if (step == TOP_P) {
            if (!cuts_mass) continue;
            at = share(choice.top_p, mass) - 1;
        }
        if (step == DRAW) {
            if (__uint_as_float(bits) < choice.min_p) mass = likely_mass(s, a, weights, listed, choice.min_p);
            at = place(choice.seed, position, mass);
        }
        const Border border = find(s, a, weights, listed, step != TOP_K, at);
        bits = border.cell;
        const u64 own = mass_of(__uint_as_float(bits), units);
        nth = step == TOP_K ? at - border.count : (at - border.mass) / own;
        mass = border.mass + (nth + 1) * own;
    }
    if (listed) return search_list(s, bits, nth);
    return search(s, a, weights, nth, [=](float weight) { return (u64)(__float_as_uint(weight) == bits); });
}

// The token of a row. Grid: (most rows).
extern "C" __global__ void __launch_bounds__(THREADS, 1) choose_token(Choose a) {
    begin_after_predecessors();
    __shared__ Shared s;
    const unsigned row = blockIdx.x;
    if (!has_row(a, row)) return;
    unsigned depth, token = LEFT_TO_HOST;
    const Choice choice = choice_of(a.batch, a.first + row, depth);
    State& state = a.states[row];
    if (choice.how != HOST) {
        const u64 best = state.best;
        if (!is_finite(best)) token = FAILED;
        else if (choice.how == GREEDY) token = ~(unsigned)best;
        else token = drawn(s, a, choice, depth, state, a.logits + (size_t)row * a.vocab);
        __syncthreads();    // the state was read
        unsigned* words = (unsigned*)&state;
        for (unsigned i = threadIdx.x; i < sizeof(State) / 4; i += THREADS) words[i] = 0;
    }
    if (threadIdx.x == 0) a.tokens[a.first + row] = token;
}
