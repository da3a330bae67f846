// One block: its threads, who waits for what, and how a launch fails.
#pragma once

#include "fiber.h"

namespace cuda_on_host {

// Numbers of the driver's errors.
enum Code { SUCCESS = 0, ILLEGAL_ADDRESS = 700, MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719 };

// How a launch ended. Shared with the one who launches.
struct Outcome {
    int code;
    uint64_t address;       // that was touched, where it is an illegal one
    uint64_t fetched;       // bytes whose copies to shared memory, or to a cache, were asynchronous
    char text[1000];
};

// Somewhere in a kernel's source.
struct Place {
    const char* file;
    int line;
    bool operator==(const Place& other) const {
        return line == other.line && (file == other.file || strcmp(file, other.file) == 0);
    }
};
// As a function's last parameters: where its call stands.
#define CUDA_ON_HOST_CALL const char *file = __builtin_FILE(), int line = __builtin_LINE()

enum class Wait : uint8_t { NOTHING, BLOCK, WARP, GRID, DONE };

struct Meeting;             // of lanes: see warp.h
struct Copies;              // asynchronous ones: see async_copy.h

// Of one thread, touched where it is used. No power of two: the ends in use lie
// in different sets of the cache.
constexpr size_t STACK = 256 * 1024 + 33 * 64;

// Without sanitizers, in one line of a cache.
struct alignas(64) Thread {
    Fiber fiber;
    std::shared_ptr<Copies> copies;
    Place place{"", 0};                 // where it waits
    uint3 index{};
    unsigned number : 11;               // in the block, x first
    unsigned barriers : 1;              // that it came to, by twos
    Wait wait : 8;
};

struct Warp {
    unsigned live = 0;                  // lanes that have not returned
    unsigned ready = 0;                 // of which, those that can go on
    unsigned blocked = 0;               // and those that wait for the block
    std::vector<std::unique_ptr<Meeting>> meetings;
};

// All of a block, of those that there are.
template <class T> struct Some {
    T* first = nullptr;
    size_t count = 0;
    T* begin() const { return first; }
    T* end() const { return first + count; }
    size_t size() const { return count; }
    T& operator[](size_t at) const { return first[at]; }
};

struct Block {
    const char* kernel;
    dim3 grid, size;
    uint3 index{};
    void (*body)(void**);
    void** arguments;
    Outcome* outcome;
    uint64_t state;                     // of the generator of orders
    pthread_t owner = pthread_self();
    Fiber scheduler{};
    Thread* current = nullptr;
    unsigned char* dynamic = nullptr;   // shared memory whose size the launch says
    Some<Thread> threads{};
    Some<Warp> warps{};
    uint64_t began = 0, met[2] = {0, 0}, ended = 0;     // addresses for release and acquire
    Fiber* before = nullptr;            // that ran before the one that runs
    Warp* warp = nullptr;               // that runs
    uint8_t lanes[32];                  // its lanes, in their order
    unsigned turns = 32;                // that have been taken of those
    unsigned blocked = 0;               // threads at the barrier
    Place barrier{"", 0};               // where the first of them came to it
    bool apart = false;                 // some are at another place
    bool early = false;                 // work before this launch is not done: see programmatic.h
    bool waited = false;                // a thread asked for that
    unsigned held = 0;                  // threads that wait for it
    uint64_t done_before = 0;           // address for release and acquire of all that work

    // xorshift64
    uint64_t draw() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }
    // One of `count`, which is below 2^32 and not zero; no division, as this is
    // drawn for every thread that goes on.
    size_t below(size_t count) { return (draw() >> 32) * count >> 32; }
    template <class T> void shuffle(T& all) {
        for (size_t left = std::size(all); left > 1; left--) std::swap(all[left - 1], all[below(left)]);
    }
};

// The block that runs. Launches of a module never overlap.
inline Block* block = nullptr;

inline Thread& here() { return *block->current; }
inline unsigned lane_of(const Thread& thread) { return thread.number % 32; }

// Of the runtime, in schedule.h.

// Fails the launch, unless it has failed: the first failure is the cause.
__attribute__((format(printf, 2, 3))) void note(Code code, const char* format, ...);
// From a CUDA thread: the launch has failed and goes on no more.
[[noreturn]] void give_up();
void wait_for_block(Place place);

} // namespace cuda_on_host

#define threadIdx (::cuda_on_host::block->current->index)
#define blockIdx (::cuda_on_host::block->index)
#define blockDim (::cuda_on_host::block->size)
#define gridDim (::cuda_on_host::block->grid)

inline void __syncthreads(CUDA_ON_HOST_CALL) { cuda_on_host::wait_for_block({file, line}); }
inline void __threadfence_block() {}
inline void __threadfence() {}

[[noreturn]] inline void __trap(CUDA_ON_HOST_CALL) {
    cuda_on_host::note(cuda_on_host::LAUNCH_FAILED, "__trap() at %s:%d", file, line);
    cuda_on_host::give_up();
}
