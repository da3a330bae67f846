// Chains of drafts, level by level: from a draft's logits to the token that the next
// level and the batch that verifies it read, so that no host comes between.
#include "choices.cuh"
#include "weights.cuh"

constexpr unsigned THREADS = 1024, WARPS = THREADS / 32;

struct Chain {
    unsigned* verified;     // the batch that verifies the drafts
    unsigned* inputs;       // the batch of the draft's own pass
    const float* logits;    // [most, vocab]; to advance
    const unsigned* ids;    // the target's numbers of the draft's tokens, or null
    unsigned* rows;         // how many rows the next level has, for all of its operations
    unsigned level;         // of the drafts, from 0
    unsigned most;          // chains that the launch is for
    unsigned vocab, page_size;
};

// What the chain of row `row` drafts for.
__device__ inline Drafted drafted_by(const Chain& a, unsigned row) {
    return list_of<Drafted>(a.verified, DRAFTED_AT)[list(a.verified, CHAINS_AT)[row]];
}

// Takes the batch of the first pass to where passes read theirs. Grid: any.
extern "C" __global__ void __launch_bounds__(THREADS) chain_begin(Chain a) {
    begin_after_predecessors();
    const unsigned* from = a.verified + a.verified[CHAIN_AT];
    const unsigned words = a.verified[CHAIN_WORDS];
    // Without chains nothing counts the rows of levels behind the first one.
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.rows = 0;
    for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < words; i += gridDim.x * THREADS) a.inputs[i] = from[i];
}

// The most likely token of a row, the first among equals: what is no number is less
// likely than all, and where nothing is likelier than that, it is the first token.
__device__ inline unsigned likeliest(const float* row, unsigned vocab, u64 (&bests)[WARPS]) {
    u64 best = 0;
    for (unsigned id = threadIdx.x; id < vocab; id += THREADS) {
        const float x = row[id];
        if (x > -INFINITY) best = max(best, (u64)ordered(x) << 32 | ~id);
    }
    for (unsigned d = 16; d > 0; d /= 2) best = max(best, __shfl_xor_sync(0xffffffffu, best, d));
    if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
    __syncthreads();        // each warp's is there
    for (unsigned warp = 0; warp < WARPS; warp++) best = max(best, bests[warp]);
    return best ? ~(unsigned)best : 0;
}

// Stages the pass behind the drafts of this level: of `row`, whose draft is `token`.
// Chains are sorted by their depth, so that those that go on are the first ones.
__device__ inline void stage_next(const Chain& a, unsigned row, unsigned token) {
    Row& own = ((Row*)(a.inputs + a.inputs[ROWS_AT]))[row];
    const unsigned place = own.kv_len + own.q_len;
    const unsigned page = list(a.inputs, PAGES_AT)[own.pages + place / a.page_size];
    own = {row, 1, place, own.pages, CAUSAL};
    a.inputs[a.inputs[TOKENS_AT] + row] = token;
    a.inputs[a.inputs[POSITIONS_AT] + row] = place;
    a.inputs[a.inputs[CELLS_AT] + row] = page * a.page_size + place % a.page_size;
    a.inputs[a.inputs[WANTED_AT] + row] = row;
}

// Drafts a token for every chain that is not deep enough, from the logits of its row.
// Grid: (most chains).
extern "C" __global__ void __launch_bounds__(THREADS) chain_advance(Chain a) {
    begin_after_predecessors();
    __shared__ u64 bests[WARPS];
    const unsigned row = blockIdx.x, chains = min(a.verified[CHAINS], a.most);
    if (row >= chains) return;
    const Drafted drafted = drafted_by(a, row);
    if (drafted.nodes <= a.level) return;
    unsigned token = likeliest(a.logits + (size_t)row * a.vocab, a.vocab, bests);
    if (threadIdx.x > 0) return;
    if (a.ids) token = a.ids[token];
    a.verified[a.verified[TOKENS_AT] + drafted.token + 1 + a.level] = token;
    const bool goes_on = drafted.nodes > a.level + 1;
    if (goes_on) stage_next(a, row, token);
    // The last one that goes on, or the first one if none does, says how many do. Nobody
    // else reads it here.
    const bool next_does = row + 1 < chains && drafted_by(a, row + 1).nodes > a.level + 1;
    if (goes_on ? !next_does : row == 0)
        *a.rows = a.inputs[TOKENS] = a.inputs[ROWS] = a.inputs[WANTED] = goes_on ? row + 1 : 0;
}
