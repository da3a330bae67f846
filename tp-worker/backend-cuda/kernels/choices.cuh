// How the tokens of a pass are chosen: lists of its batch. Where there is no choice,
// there are no uses either; otherwise each wanted row has one.
#pragma once
#include "batch.cuh"

enum How : unsigned { HOST, GREEDY, SAMPLE };
// In place of a token: the logits were not finite; the host chooses.
constexpr unsigned FAILED = 0xffffffffu, LEFT_TO_HOST = 0xfffffffeu;

// How one request's tokens are chosen.
struct Choice {
    unsigned how;
    unsigned seed[2], position[2];      // low words first
    float temperature, top_p, min_p;
    unsigned top_k;                     // 0: all
};
// What a row of logits is for.
struct Use {
    unsigned request;
    unsigned depth;     // output positions behind the request's own
};
// What was drafted for a request.
struct Drafted {
    unsigned logits;    // the row of its last known token, node 0; its nodes' follow
    unsigned token;     // of the batch: node 0, whose nodes follow
    unsigned nodes;     // drafted ones
    unsigned parents;   // where theirs begin in the list, or CHAIN
};
constexpr unsigned CHAIN = 0xffffffffu;

template <class T> __device__ inline const T* list_of(const unsigned* batch, Header at) { return (const T*)list(batch, at); }
__device__ inline bool is_chosen(const unsigned* batch, unsigned row) { return batch[CHOICES] > 0 && row < batch[WANTED]; }
// How row `row` of the wanted logits is chosen from; a host's where nothing says.
__device__ inline Choice choice_of(const unsigned* batch, unsigned row, unsigned& depth) {
    const Use use = list_of<Use>(batch, USES_AT)[row];
    depth = use.depth;
    if (use.request < batch[CHOICES]) return list_of<Choice>(batch, CHOICES_AT)[use.request];
    Choice none = {};
    none.how = HOST;
    return none;
}
