// Trees of drafts, level by level: from a draft's logits to the nodes that the next
// level and the batch that verifies them read, so that no host comes between. The same
// trees that the host's `TreeGrower` grows.
#include "choices.cuh"
#include "weights.cuh"

constexpr unsigned THREADS = 1024, WARPS = THREADS / 32;
// Nodes that are generated of a tree at the most: one for each thread.
constexpr unsigned CANDIDATES = THREADS;
// What a token of a pass goes on from is its tree's root.
constexpr unsigned ROOT = 0x80000000u;

// How a tree grows.
struct Size {
    unsigned steps;         // levels
    unsigned branches;      // nodes expanded of each, and children of each
};
// What was generated of a tree: level behind level, of each the children of one node
// behind those of another, the likeliest first.
struct Tree {
    unsigned tokens[CANDIDATES];
    float scores[CANDIDATES];           // sums of log-probabilities from the root on
    unsigned parents[CANDIDATES];       // what they follow: 0 is the root, n the n-th expanded one
    unsigned expanded[CANDIDATES];      // their numbers; of each level the best first
    unsigned sources[CANDIDATES];       // of all trees together: what tokens of the next pass go on from
};
struct Grow {
    unsigned* verified;     // the batch that verifies the drafts
    unsigned* inputs;       // the batch of the draft's own pass
    const float* logits;    // [wanted, vocab]
    const unsigned* ids;    // the target's numbers of the draft's tokens, or null
    Tree* trees;            // [most]
    unsigned* rows;         // how many tokens the next level has, and wanted ones, for all of its operations
    unsigned level;         // of the drafts, from 0
    unsigned most;          // trees that the launch is for
    unsigned vocab, page_size;
    float units;            // in a weight of 1
    unsigned mask;          // 64-bit words between the masks of two rows of `inputs`
    // Where its lists begin: tokens, positions, cells, rows, pages, masks, wanted ones.
    unsigned at[7];
    unsigned pad;
};

__device__ inline unsigned trees_of(const Grow& a) { return min(a.verified[TREES], a.most); }
__device__ inline Size size_of(const Grow& a, unsigned tree) { return list_of<Size>(a.verified, TREES_AT)[tree]; }
// Candidates of the levels before `level`.
__device__ inline unsigned generated(const Size& size, unsigned level) {
    return level == 0 ? 0 : size.branches + (level - 1) * size.branches * size.branches;
}
// The level of a candidate: its depth less one.
__device__ inline unsigned level_of(const Size& size, unsigned candidate) {
    return candidate < size.branches ? 0 : 1 + (candidate - size.branches) / (size.branches * size.branches);
}
__device__ inline unsigned& source(const Grow& a, unsigned token) {
    return a.trees[token / CANDIDATES].sources[token % CANDIDATES];
}

__device__ inline u64 block_best(u64 best, u64 (&bests)[WARPS]) {
    for (unsigned d = 16; d > 0; d /= 2) best = max(best, __shfl_xor_sync(0xffffffffu, best, d));
    __syncthreads();        // the last ones were read
    if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
    __syncthreads();        // each warp's is there
    for (unsigned warp = 0; warp < WARPS; warp++) best = max(best, bests[warp]);
    return best;
}

// A thread's share of a row, every 1,024th: the best two of those that are less than
// some limit, if there is one.
struct Share {
    u64 first, second;
    __device__ void find(const float* row, unsigned vocab, u64 limit) {
        first = second = 0;
        for (unsigned id = threadIdx.x; id < vocab; id += THREADS) {
            const u64 key = (u64)ordered(row[id]) << 32 | ~id;
            if (limit && key >= limit) continue;
            second = max(second, min(first, key));
            first = max(first, key);
        }
    }
    // The best one was taken.
    __device__ void next(const float* row, unsigned vocab) {
        const u64 taken = first;
        if (second) first = second, second = 0;
        else find(row, vocab, taken);
    }
};

// The candidates behind a node: its likeliest tokens, in order, the lower one first
// among equals. Where logits are not finite, the first tokens, without any chance.
// Grid: (most rows of logits).
extern "C" __global__ void __launch_bounds__(THREADS) tree_branch(Grow a) {
    begin_after_predecessors();
    __shared__ u64 words[WARPS];
    unsigned place = blockIdx.x, number = 0;
    const unsigned trees = trees_of(a);
    for (; number < trees; number++) {
        const Size size = size_of(a, number);
        if (size.steps <= a.level) return;      // deeper ones come first
        const unsigned wanted = a.level == 0 ? 1 : size.branches;
        if (place < wanted) break;
        place -= wanted;
    }
    if (number == trees) return;
    const Size size = size_of(a, number);
    Tree& tree = a.trees[number];
    const float* row = a.logits + (size_t)blockIdx.x * a.vocab;
    Share share;
    share.find(row, a.vocab, 0);
    const u64 best = block_best(share.first, words);
    const unsigned order = (unsigned)(best >> 32);
    const bool finite = order != NOT_FINITE && order != NEGATIVE_INFINITY;
    const float largest = finite ? from_ordered(order) : 0.0f;
    u64 mass = 0;
    for (unsigned id = threadIdx.x; finite && id < a.vocab; id += THREADS)
        mass += mass_of(exp_nonpositive(__fadd_rn(row[id], -largest)), a.units);
    mass = warp_total(mass);
    __syncthreads();        // the best ones were read
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = mass;
    __syncthreads();        // masses are there
    mass = 0;
    for (unsigned warp = 0; warp < WARPS; warp++) mass += words[warp];
    const float log_sum = finite ? log_of_mass(mass, a.units) : 0.0f;

    const unsigned from = a.level == 0 ? 0 : (a.level - 1) * size.branches + place;
    const float score = a.level == 0 ? 0.0f : tree.scores[tree.expanded[from]];
    const unsigned first = generated(size, a.level) + place * size.branches;
    for (unsigned child = 0; child < size.branches; child++) {
        unsigned id = child;
        float chance = -INFINITY;
        if (finite) {
            const u64 key = block_best(share.first, words);
            if (share.first == key) share.next(row, a.vocab);
            id = ~(unsigned)key;
            chance = fminf(__fadd_rn(__fadd_rn(from_ordered((unsigned)(key >> 32)), -largest), -log_sum), 0.0f);
        }
        if (threadIdx.x > 0) continue;
        tree.tokens[first + child] = a.ids ? a.ids[id] : id;
        tree.scores[first + child] = __fadd_rn(score, chance);
        tree.parents[first + child] = a.level == 0 ? 0 : from + 1;
    }
}

// How many candidates are better than this thread's, of `count` ones from `first` on: the best scores come first, of equal ones the candidate that was
// generated earlier.
__device__ inline unsigned rank_of(const Tree& tree, u64 (&keys)[CANDIDATES], unsigned first, unsigned count) {
    const unsigned own = first + threadIdx.x;
    if (threadIdx.x < count) keys[threadIdx.x] = (u64)ordered(tree.scores[own]) << 32 | ~own;
    __syncthreads();        // keys are there
    unsigned rank = 0;
    for (unsigned other = 0; threadIdx.x < count && other < count; other++) rank += keys[other] > keys[threadIdx.x];
    return rank;
}

// The row of the first pass of tree `number`, and its page table, as the host laid it out.
__device__ inline const unsigned* first_pass(const Grow& a) { return a.verified + a.verified[CHAIN_AT]; }

enum ListOf : unsigned { OF_TOKENS, OF_POSITIONS, OF_CELLS, OF_ROWS, OF_PAGES, OF_MASKS, OF_WANTED };
__device__ inline unsigned* place_of(const Grow& a, ListOf list) { return a.inputs + a.at[list]; }

// Clears the mask of a token among `tokens` ones, and shows it `own`.
__device__ inline void begin_mask(unsigned* mask, unsigned tokens, unsigned own) {
    for (unsigned word = 0; word < 2 * ((tokens + 63) / 64); word++) mask[word] = 0;
    mask[own / 32] |= 1u << own % 32;
}

// Lays out the tokens of a tree in the pass behind this level: all nodes that are
// expanded, each of which sees its ancestors and itself.
__device__ inline void stage_tree(const Grow& a, const Size& size, unsigned number, const Tree& tree) {
    // Trees before this one are as deep, and so go on, too.
    unsigned start = 0, before = 0, wanted = 0;
    for (unsigned other = 0; other < number; other++) {
        const unsigned branches = size_of(a, other).branches;
        start += (a.level + 1) * branches, before += a.level * branches, wanted += branches;
    }
    const Row first = row_of(first_pass(a), number);
    const unsigned* pages = list(first_pass(a), PAGES_AT) + first.pages;
    const unsigned base = first.kv_len + first.q_len, count = (a.level + 1) * size.branches;
    if (threadIdx.x == 0) ((Row*)place_of(a, OF_ROWS))[number] = {start, count, base, first.pages, number * a.mask};
    const unsigned all = base + (size.steps - 1) * size.branches;
    for (unsigned page = threadIdx.x; page * a.page_size < all; page += THREADS) place_of(a, OF_PAGES)[first.pages + page] = pages[page];
    for (unsigned at = threadIdx.x; at < count; at += THREADS) {
        const unsigned candidate = tree.expanded[at], parent = tree.parents[candidate], cell = base + at;
        place_of(a, OF_TOKENS)[start + at] = tree.tokens[candidate];
        place_of(a, OF_POSITIONS)[start + at] = base + level_of(size, candidate);
        place_of(a, OF_CELLS)[start + at] = pages[cell / a.page_size] * a.page_size + cell % a.page_size;
        source(a, start + at) = parent == 0 ? ROOT | number : before + parent - 1;
        if (at >= a.level * size.branches) place_of(a, OF_WANTED)[wanted + at - a.level * size.branches] = start + at;
        unsigned* mask = place_of(a, OF_MASKS) + 2 * (number * a.mask + at * ((count + 63) / 64));
        begin_mask(mask, count, at);
        for (unsigned node = parent; node > 0; node = tree.parents[tree.expanded[node - 1]]) mask[(node - 1) / 32] |= 1u << (node - 1) % 32;
    }
}

// What a block finds out about the nodes that are kept.
struct Kept {
    u64 keys[CANDIDATES];
    unsigned numbers[CANDIDATES];       // of a candidate among them, from 1; 0: it is not
    unsigned warps[WARPS];
    unsigned mask;                      // of the row that verifies them, or CAUSAL
};

// Numbers the best candidates of a tree, in the order in which they were generated: a
// parent is no worse than its children and comes before them.
__device__ inline void number_kept(Kept& s, const Tree& tree, unsigned count, unsigned nodes) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool is_kept = rank_of(tree, s.keys, 0, count) < nodes && threadIdx.x < count;
    const unsigned votes = __ballot_sync(0xffffffffu, is_kept);
    if (lane == 0) s.warps[warp] = __popc(votes);
    __syncthreads();        // each warp's count is there
    unsigned number = __popc(votes & ((2u << lane) - 1));
    for (unsigned other = 0; other < warp; other++) number += s.warps[other];
    s.numbers[threadIdx.x] = is_kept ? number : 0;
    __syncthreads();        // numbers are there
}

// Writes the best nodes of a tree to the batch that verifies them.
__device__ inline void finish(Kept& s, const Grow& a, const Size& size, unsigned number, const Tree& tree) {
    const unsigned request = list(a.verified, CHAINS_AT)[number];
    const Drafted drafted = list_of<Drafted>(a.verified, DRAFTED_AT)[request];
    if (threadIdx.x == 0) s.mask = CAUSAL;      // unless a row says otherwise, behind the barriers of what follows
    number_kept(s, tree, generated(size, size.steps), drafted.nodes);
    for (unsigned row = threadIdx.x; row < a.verified[ROWS]; row += THREADS) {
        const Row own = row_of(a.verified, row);
        if (own.start == drafted.token) s.mask = own.mask;
    }
    __syncthreads();        // the row was found
    const unsigned tokens = drafted.nodes + 1, words = 2 * ((tokens + 63) / 64);
    unsigned* masks = s.mask == CAUSAL ? nullptr : a.verified + a.verified[MASKS_AT] + 2 * s.mask;
    if (masks && threadIdx.x == 0) begin_mask(masks, tokens, 0);
    const unsigned own = s.numbers[threadIdx.x];
    if (own == 0) return;
    const unsigned root = a.verified[a.verified[POSITIONS_AT] + drafted.token];
    const unsigned depth = level_of(size, threadIdx.x) + 1, parent = tree.parents[threadIdx.x];
    const unsigned follows = parent == 0 ? 0 : s.numbers[tree.expanded[parent - 1]];
    a.verified[a.verified[TOKENS_AT] + drafted.token + own] = tree.tokens[threadIdx.x];
    a.verified[a.verified[POSITIONS_AT] + drafted.token + own] = root + depth;
    if (drafted.parents != CHAIN) a.verified[a.verified[PARENTS_AT] + drafted.parents + own - 1] = follows;
    ((Use*)(a.verified + a.verified[USES_AT]))[drafted.logits + own].depth = depth;
    if (!masks) return;
    unsigned* mask = masks + own * words;
    begin_mask(mask, tokens, own);
    mask[0] |= 1;       // all see the root
    for (unsigned node = parent; node > 0; node = tree.parents[tree.expanded[node - 1]]) {
        const unsigned seen = s.numbers[tree.expanded[node - 1]];
        mask[seen / 32] |= 1u << seen % 32;
    }
}

// What the pass behind this level is: how much of it there is, and where its lists are.
__device__ inline void stage_header(const Grow& a) {
    unsigned rows = 0, wanted = 0;
    for (; rows < trees_of(a) && size_of(a, rows).steps > a.level + 1; rows++) wanted += size_of(a, rows).branches;
    a.rows[0] = a.inputs[TOKENS] = (a.level + 1) * wanted, a.inputs[ROWS] = rows, a.rows[1] = a.inputs[WANTED] = wanted;
    for (unsigned other = CHOICES; other <= CHAIN_WORDS; other++) a.inputs[other] = 0;
    for (unsigned list = 0; list < 7; list++) a.inputs[TOKENS_AT + list] = a.at[list];
}

// From the candidates of this level to the next pass, or to the tree that is kept. Of
// the pass before nothing is read, so that blocks write it in any order.
// Grid: (most trees).
extern "C" __global__ void __launch_bounds__(THREADS) tree_grow(Grow a) {
    begin_after_predecessors();
    __shared__ Kept s;
    const unsigned number = blockIdx.x;
    if (number == 0 && threadIdx.x == 0) stage_header(a);
    if (number >= trees_of(a)) return;
    const Size size = size_of(a, number);
    if (size.steps <= a.level) return;
    Tree& tree = a.trees[number];
    if (size.steps == a.level + 1) return finish(s, a, size, number, tree);
    const unsigned first = generated(size, a.level), count = generated(size, a.level + 1) - first;
    const unsigned rank = rank_of(tree, s.keys, first, count);
    if (threadIdx.x < count && rank < size.branches) tree.expanded[a.level * size.branches + rank] = first + threadIdx.x;
    __syncthreads();        // what is expanded is there
    stage_tree(a, size, number, tree);
}

struct Parents {
    const unsigned* inputs;     // the batch of the pass
    const Tree* trees;
    const float* roots;         // [roots_rows, width]
    const float* outputs;       // [outputs_rows, width]
    float* out;                 // [most, width]
    unsigned most, width, roots_rows, outputs_rows;
};
// What every token of a pass goes on from. Grid: (most tokens, columns / 256).
extern "C" __global__ void __launch_bounds__(256) tree_parents(Parents a) {
    begin_after_predecessors();
    const unsigned token = blockIdx.x, column = blockIdx.y * 256 + threadIdx.x;
    if (token >= min(a.inputs[TOKENS], a.most) || column >= a.width) return;
    const unsigned from = a.trees[token / CANDIDATES].sources[token % CANDIDATES], row = from & ~ROOT;
    const bool is_root = from & ROOT;
    if (row >= (is_root ? a.roots_rows : a.outputs_rows)) return;
    a.out[(size_t)token * a.width + column] = (is_root ? a.roots : a.outputs)[(size_t)row * a.width + column];
}
