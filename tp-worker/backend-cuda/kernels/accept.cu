// Which drafts stand, once every node's token is chosen: those on the path that
// the chosen tokens take. Chains are trees whose nodes follow one another.
#include "choices.cuh"

constexpr unsigned WARPS = 4;       // of a block; each has one request

struct Accept {
    const unsigned* batch;
    const unsigned* tokens;     // chosen, of all wanted rows
    unsigned* words;            // [requests, 2 · most]: how many tokens; the tokens; the accepted nodes; and
                                // behind them, of a batch with chains, [requests, nodes]: the drafts; and
                                // of one with trees as many: their parents
    uint2* moves;               // [most_requests, most]: (from, to), tokens whose cells move
    unsigned* counts;           // [most_requests]: of moves
    unsigned most_requests, most;   // requests that the launch has blocks for; tokens of one
    unsigned nodes, pad;            // drafts of one
};

// The first child of `node` that has `token`, 0 where there is none; asked by a
// whole warp.
__device__ inline unsigned child_of(const Accept& a, const Drafted& drafted, const unsigned* parents, unsigned node, unsigned token) {
    const unsigned* tokens = list(a.batch, TOKENS_AT) + drafted.token;
    for (unsigned before = 0; before < drafted.nodes; before += 32) {
        const unsigned number = before + threadIdx.x % 32 + 1;
        bool is_child = number <= drafted.nodes && drafted.token + number < a.batch[TOKENS];
        if (is_child) is_child = (parents ? parents[number - 1] : number - 1) == node && tokens[number] == token;
        const unsigned found = __ballot_sync(0xffffffffu, is_child);
        if (found) return before + __ffs(found);
    }
    return 0;
}

// Tells the host the drafts that the device has made; asked by a whole warp.
__device__ inline void tell_drafts(const Accept& a, const Drafted& drafted, const unsigned* parents, unsigned request) {
    const unsigned* tokens = list(a.batch, TOKENS_AT) + drafted.token + 1;
    const unsigned requests = a.batch[CHOICES];
    unsigned* to = a.words + (size_t)requests * 2 * a.most + (size_t)request * a.nodes;
    unsigned* follows = a.batch[TREES] > 0 ? to + (size_t)requests * a.nodes : nullptr;
    for (unsigned i = threadIdx.x % 32; i < a.nodes; i += 32) {
        const bool there = i < drafted.nodes;
        to[i] = there ? tokens[i] : 0;
        if (follows) follows[i] = there && parents ? parents[i] : there ? i : 0;
    }
}

struct Follow {
    const unsigned* batch;
    unsigned* words;            // as above
    uint2* moves;
    unsigned* counts;
    const unsigned* differs;    // not zero where ranks' notes differ; null: they have none
    unsigned most_requests, most;
};

// Follows what the rank that chooses has told: which cells move. Where ranks differ,
// nothing of it may be taken, and every request has failed. Grid: (requests / 4).
extern "C" __global__ void __launch_bounds__(32 * WARPS) follow(Follow a) {
    begin_after_predecessors();
    const unsigned request = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (request >= min(a.batch[CHOICES], a.most_requests)) return;
    unsigned* words = a.words + (size_t)request * 2 * a.most;
    unsigned moved = 0;
    if (a.differs && *a.differs) {
        for (unsigned i = lane; i < 2 * a.most; i += 32) words[i] = i == 0 ? 1 : i == 1 ? FAILED : 0;
    } else if (lane == 0) {
        const Drafted drafted = list_of<Drafted>(a.batch, DRAFTED_AT)[request];
        const unsigned count = min(words[0], a.most);
        for (unsigned i = 1; i < count; i++) {
            const unsigned node = words[a.most + i];
            if (node != i && node <= drafted.nodes) a.moves[(size_t)request * a.most + moved++] = make_uint2(drafted.token + node, drafted.token + i);
        }
    }
    if (lane == 0) a.counts[request] = moved;
}

// Walks every request's drafts. A node whose logits were not finite ends the path
// before it; so a request whose own token's were has failed. One block alone has all
// registers: some compilers keep to 32 of them otherwise, and spill. Grid: (requests / 4).
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) accept(Accept a) {
    begin_after_predecessors();
    const unsigned request = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (request >= min(a.batch[CHOICES], a.most_requests)) return;
    const Drafted drafted = list_of<Drafted>(a.batch, DRAFTED_AT)[request];
    const unsigned* parents = drafted.parents == CHAIN ? nullptr : list(a.batch, PARENTS_AT) + drafted.parents;
    unsigned* words = a.words + (size_t)request * 2 * a.most;
    uint2* moves = a.moves + (size_t)request * a.most;
    for (unsigned i = lane; i < 2 * a.most; i += 32) words[i] = 0;
    if (a.batch[CHAINS] > 0) tell_drafts(a, drafted, parents, request);
    __syncwarp();       // the first lane writes what others cleared

    unsigned node = 0, count = 0, moved = 0;
    while (count < a.most) {
        const unsigned token = is_chosen(a.batch, drafted.logits + node) ? a.tokens[drafted.logits + node] : LEFT_TO_HOST;
        if (token == FAILED || token == LEFT_TO_HOST) {
            const bool failed = count == 0 && token == FAILED;
            if (lane == 0 && failed) words[1] = FAILED;
            if (failed) count = 1;
            break;
        }
        if (lane == 0) {
            words[1 + count] = token;
            // The token that led here was drafted, so its node stands.
            if (count > 0) words[a.most + count] = node;
            // Node n lies in cell n behind the row's end, and the i-th accepted one
            // belongs into the i-th, which was moved itself by now.
            if (node != count) moves[moved] = make_uint2(drafted.token + node, drafted.token + count);
        }
        moved += node != count;
        count++;
        node = child_of(a, drafted, parents, node, token);
        if (node == 0) break;
    }
    if (lane == 0) words[0] = count, a.counts[request] = moved;
}
