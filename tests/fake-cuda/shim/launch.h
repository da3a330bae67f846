// From a kernel's name and parameters to its blocks.
#pragma once

#include "early.h"

namespace cuda_on_host {

// What a module offers under "cuda_on_host_NAME". Shared with the fake driver.
struct Kernel {
    Begun* (*begin)(const Asked*, Outcome*);            // before earlier work is done
    void (*abandon)(Begun*);                            // in place of its launch
    void (*launch)(const Asked*, Begun*, Outcome*);     // null where nothing has begun
    unsigned parameters;
    unsigned most_threads;          // of a block, by __launch_bounds__
    const unsigned* sizes;          // of the parameters, in bytes
};

inline void launch(const char* kernel, void (*body)(void**), const Asked& asked, Begun* begun, Outcome* outcome) {
    Own own;
    Watch watch;
    Dynamic room(asked.dynamic);
    Block b = block_of(kernel, body, asked, room.at, outcome);
    acquire(asked.clock);
    static Kept& kept = *new Kept;
    take_threads(b, kept);
    std::vector<size_t> order(blocks_of(asked));
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    b.shuffle(order);
    for (size_t at : order) {
        if (begun && go_on_with(*begun, at, asked, outcome)) {
            if (outcome->code != SUCCESS) break;
            continue;
        }
        begin_block(b, index_of(asked, at), asked.dynamic);
        run_block(b);
        check_waited(b, asked);
        if (outcome->code != SUCCESS) break;
    }
    // Threads of a launch that failed wait for ever.
    if (outcome->code != SUCCESS) kept.ready = 0;
    if (begun) abandon(begun);
    release(asked.clock);
}

// A kernel's parameters, by its type.
template <class> struct Parameters;
template <class... A> struct Parameters<void (*)(A...)> {
    static constexpr unsigned count = sizeof...(A);
    static constexpr unsigned sizes[sizeof...(A) + 1] = {sizeof(A)..., 0};
    template <size_t... I> static void call(void (*kernel)(A...), void** at, std::index_sequence<I...>) {
        kernel(*(std::remove_const_t<A>*)at[I]...);
    }
    static void call(void (*kernel)(A...), void** at) { call(kernel, at, std::index_sequence_for<A...>{}); }
};

template <class... More> constexpr unsigned first_of(unsigned threads, More...) { return threads; }

} // namespace cuda_on_host

// Makes `name` launchable; behind it what its __launch_bounds__ says.
#define CUDA_ON_HOST_KERNEL(name, ...)                                                                              \
    extern "C" __attribute__((visibility("default"))) cuda_on_host::Kernel cuda_on_host_##name;                     \
    static void cuda_on_host_call_##name(void** at) {                                                               \
        cuda_on_host::Parameters<decltype(&::name)>::call(&::name, at);                                             \
    }                                                                                                               \
    cuda_on_host::Kernel cuda_on_host_##name = {                                                                    \
        [](const cuda_on_host::Asked* asked, cuda_on_host::Outcome* outcome) {                                      \
            return cuda_on_host::begin(#name, cuda_on_host_call_##name, *asked, outcome);                           \
        },                                                                                                          \
        cuda_on_host::abandon,                                                                                      \
        [](const cuda_on_host::Asked* asked, cuda_on_host::Begun* begun, cuda_on_host::Outcome* outcome) {          \
            cuda_on_host::launch(#name, cuda_on_host_call_##name, *asked, begun, outcome);                          \
        },                                                                                                          \
        cuda_on_host::Parameters<decltype(&::name)>::count, cuda_on_host::first_of(__VA_ARGS__),                      \
        cuda_on_host::Parameters<decltype(&::name)>::sizes};

#define DYNAMIC_SHARED(type, name) type* name = (type*)::cuda_on_host::block->dynamic
