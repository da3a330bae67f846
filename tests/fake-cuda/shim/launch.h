// From a kernel's name and parameters to its blocks.
#pragma once

#include "block.h"

namespace cuda_on_host {

struct Asked;           // a launch: see run_block.h
struct Begun;           // blocks that have begun before its turn: see early.h

// What a module offers under "cuda_on_host_NAME". Shared with the fake driver.
struct Kernel {
    Begun* (*begin)(const Asked*, Outcome*);            // before earlier work is done
    void (*abandon)(Begun*);                            // in place of its launch
    void (*launch)(const Asked*, Begun*, Outcome*);     // null where nothing has begun
    unsigned parameters;
    unsigned most_threads;          // of a block, by __launch_bounds__
    const unsigned* sizes;          // of the parameters, in bytes
};

// Of the runtime: early.h and runtime.cpp.
Begun* begin(const char* kernel, void (*body)(void**), const Asked& asked, Outcome* outcome);
void abandon(Begun* begun);
void launch(const char* kernel, void (*body)(void**), const Asked& asked, Begun* begun, Outcome* outcome);

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
