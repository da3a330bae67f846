// How the tokens of a pass are chosen, as it lies in device memory: one block of
// words. Its header says how many rows of logits and requests there are and where
// each list begins, so that nothing of it is an argument of a launch.
#pragma once
#include "device.cuh"

// Words of the header; `Choices` in Rust writes them.
enum ChoiceHeader : unsigned { CHOICE_ROWS, CHOICE_REQUESTS, HOWS_AT, USES_AT, DRAFTED_AT, PARENTS_AT };

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

template <class T> __device__ inline const T* choice_list(const unsigned* choices, ChoiceHeader at) {
    return (const T*)(choices + choices[at]);
}
// How row `row` of the wanted logits is chosen from; a host's where nothing says.
__device__ inline Choice choice_of(const unsigned* choices, unsigned row, unsigned& depth) {
    const Use use = choice_list<Use>(choices, USES_AT)[row];
    depth = use.depth;
    if (use.request < choices[CHOICE_REQUESTS]) return choice_list<Choice>(choices, HOWS_AT)[use.request];
    Choice none = {};
    none.how = HOST;
    return none;
}
