// A batch as it lies in device memory: one block of words. Its header says how
// many tokens and rows there are and where each list begins, so that nothing of
// a batch is an argument of a launch.
#pragma once
#include "device.cuh"

// Words of the header; `Inputs` in Rust writes them.
enum Header : unsigned {
    TOKENS, ROWS, WANTED, CHOICES, CHAINS, TREES,       // how many
    PAGES,                      // of the page tables of one group of layers
    CHAIN_AT, CHAIN_WORDS,      // the first pass of its chains, a batch like this one
    TOKENS_AT, POSITIONS_AT, CELLS_AT, ROWS_AT, PAGES_AT, MASKS_AT, WANTED_AT,      // where lists begin
    CHOICES_AT, USES_AT, DRAFTED_AT, PARENTS_AT, CHAINS_AT, SOURCES_AT, TREES_AT,
    STATES_AT, REPLAYS_AT, KEEPS_AT,        // of recurrent layers
    HEADER_WORDS,
};

// One request's part.
struct Row {
    unsigned start;     // its first token in the batch
    unsigned q_len;     // new tokens
    unsigned kv_len;    // cached ones before them
    unsigned pages;     // where its page table begins in each group
    unsigned mask;      // 64-bit words before its mask, or CAUSAL
};
constexpr unsigned CAUSAL = 0xffffffffu;

__device__ inline const unsigned* list(const unsigned* batch, Header at) { return batch + batch[at]; }
// The cells of all tokens, and the page tables, in a group of layers.
__device__ inline const unsigned* cells_of(const unsigned* batch, unsigned group) { return list(batch, CELLS_AT) + (size_t)group * batch[TOKENS]; }
__device__ inline const unsigned* pages_of(const unsigned* batch, unsigned group) { return list(batch, PAGES_AT) + (size_t)group * batch[PAGES]; }
__device__ inline Row row_of(const unsigned* batch, unsigned row) { return ((const Row*)list(batch, ROWS_AT))[row]; }

// The words of what new token `token` of a masked row sees among the new ones.
__device__ inline const unsigned* mask_of(const unsigned* batch, const Row& row, unsigned token) {
    return list(batch, MASKS_AT) + 2 * (row.mask + token * ((row.q_len + 63) / 64));
}
// The 32 bits at `word`, without those past the last token.
__device__ inline unsigned seen_bits(const unsigned* mask, const Row& row, unsigned word) {
    const unsigned left = row.q_len - 32 * word;
    return left >= 32 ? mask[word] : mask[word] & ((1u << left) - 1);
}
// How many positions there are up to new token `token`: all cached ones, and the new ones
// that come before it or that its mask shows.
__device__ inline unsigned up_to(const unsigned* batch, const Row& row, unsigned token) {
    if (row.mask == CAUSAL) return row.kv_len + token + 1;
    const unsigned* mask = mask_of(batch, row, token);
    unsigned count = row.kv_len;
    for (unsigned word = 0; 32 * word < row.q_len; word++) count += __popc(seen_bits(mask, row, word));
    return count;
}
// The positions that a query sees of the `count` ones up to its own: the last ones that fit in
// the window. Without windows, that is larger than any count.
struct Visible { unsigned begin, end; };
__device__ inline Visible visible(unsigned count, unsigned window) { return {count - min(count, window), count}; }
// The new token that comes `nth` among those that a mask shows.
__device__ inline unsigned seen_token(const unsigned* mask, const Row& row, unsigned nth) {
    for (unsigned word = 0; 32 * word < row.q_len; word++) {
        unsigned bits = seen_bits(mask, row, word);
        const unsigned here = __popc(bits);
        if (nth < here) {
            for (; nth > 0; nth--) bits &= bits - 1;
            return 32 * word + __ffs(bits) - 1;
        }
        nth -= here;
    }
    return row.q_len;       // there are fewer
}
