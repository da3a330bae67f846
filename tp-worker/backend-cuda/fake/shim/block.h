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
    uint64_t fetched;       // bytes that were copied to shared memory asynchronously
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

enum class Wait : uint8_t { NOTHING, BLOCK, WARP, DONE };

struct Meeting;             // of lanes: see warp.h
struct Copies;              // asynchronous ones: see async_copy.h

struct Thread {
    Fiber fiber;
    uint3 index{};
    unsigned number = 0;                // in the block, x first
    unsigned barriers = 0;              // that it came to
    Wait wait = Wait::NOTHING;
    Place place{"", 0};                 // where it waits
    Meeting* meeting = nullptr;         // that it waits for
    std::shared_ptr<Copies> copies;
};

struct Warp {
    unsigned live = 0;                  // lanes that have not returned
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
    template <class T> void shuffle(std::vector<T>& all) {
        for (size_t left = all.size(); left > 1; left--) std::swap(all[left - 1], all[below(left)]);
    }
    Warp& warp_of(const Thread& thread) { return warps[thread.number / 32]; }
};

// The block that runs. Launches of a module never overlap.
inline Block* block = nullptr;

inline Thread& here() { return *block->current; }
inline unsigned lane_of(const Thread& thread) { return thread.number % 32; }

__attribute__((format(printf, 2, 3))) inline void note(Code code, const char* format, ...) {
    Outcome& outcome = *block->outcome;
    if (outcome.code != SUCCESS) return;    // the first failure is the cause
    const uint3 at = block->index;
    snprintf(outcome.text, sizeof outcome.text, "%s, block (%u,%u,%u): ", block->kernel, at.x, at.y, at.z);
    const size_t used = strlen(outcome.text);
    va_list more;
    va_start(more, format);
    vsnprintf(outcome.text + used, sizeof outcome.text - used, format, more);
    va_end(more);
    outcome.code = code;
}

// Adds to the outcome's text.
__attribute__((format(printf, 1, 2))) inline void add(const char* format, ...) {
    Outcome& outcome = *block->outcome;
    const size_t used = strlen(outcome.text);
    va_list more;
    va_start(more, format);
    vsnprintf(outcome.text + used, sizeof outcome.text - used, format, more);
    va_end(more);
}

// From a CUDA thread: back to whoever chooses the next one.
inline void pause() { go_on(here().fiber, block->scheduler); }

// From a CUDA thread: the launch has failed and goes on no more.
[[noreturn]] inline void give_up() {
    pause();
    __builtin_trap();       // nobody goes on with a thread of a failed launch
}

// A fiber's whole life: the same thread of one block after the other, of all
// launches.
inline void begin_thread() {
    arrived(block->scheduler);
    for (;;) {
        acquire(&block->began);
        block->body(block->arguments);
        Thread& thread = here();
        {
            Own own;
            thread.wait = Wait::DONE;
            block->warp_of(thread).live &= ~(1u << lane_of(thread));
            release(&block->ended);
        }
        go_on(thread.fiber, block->scheduler);
    }
}

inline void wait_for_block(Place place) {
    Own own;
    Thread& thread = here();
    thread.wait = Wait::BLOCK;
    thread.place = place;
    // Two addresses in turn: who leaves one barrier late must not seem to know
    // what others did on their way to the next.
    uint64_t* met = &block->met[thread.barriers++ % 2];
    release(met);
    pause();
    acquire(met);
}

inline bool complete(const Meeting& meeting, const Warp& warp);

// Whether a thread can go on by itself.
inline bool ready(Thread& thread) {
    if (thread.wait == Wait::WARP && complete(*thread.meeting, block->warp_of(thread)))
        thread.wait = Wait::NOTHING;
    return thread.wait == Wait::NOTHING;
}

// Names one thread of each place where threads wait.
inline void tell_who_waits() {
    std::vector<Place> told;
    for (const Thread& thread : block->threads) {
        if (thread.wait == Wait::DONE || told.size() == 4) continue;
        if (std::find(told.begin(), told.end(), thread.place) != told.end()) continue;
        told.push_back(thread.place);
        add("; thread (%u,%u,%u) waits for its %s at %s:%d", thread.index.x, thread.index.y, thread.index.z,
            thread.wait == Wait::BLOCK ? "block" : "warp", thread.place.file, thread.place.line);
    }
}

// All that can't go on wait for the block, or for ever. Returns whether the
// barrier opened.
inline bool open_barrier() {
    const Place* at = nullptr;
    for (const Thread& thread : block->threads) {
        if (thread.wait == Wait::DONE) continue;
        const bool alike = thread.wait == Wait::BLOCK && (!at || *at == thread.place);
        if (!alike) {
            note(LAUNCH_FAILED, thread.wait == Wait::BLOCK ? "threads wait at different barriers"
                                                            : "threads wait for others that never come");
            tell_who_waits();
            return false;
        }
        at = &thread.place;
    }
    for (Thread& thread : block->threads)
        if (thread.wait == Wait::BLOCK) thread.wait = Wait::NOTHING;
    return at != nullptr;
}

// Lets the lanes of a warp that can go on do so, in the order of `lanes`. Whether any
// could; a launch that failed is seen by its outcome.
inline bool run_lanes(const std::vector<unsigned>& lanes, size_t first) {
    Block& b = *block;
    bool moved = false;
    for (unsigned lane : lanes) {
        if (first + lane >= b.threads.size()) continue;
        Thread& thread = b.threads[first + lane];
        if (!ready(thread)) continue;
        moved = true;
        b.current = &thread;
        go_on(b.scheduler, thread.fiber);
        if (b.outcome->code != SUCCESS) return true;
        // The far ends of the stacks are no cache's, so not at every meeting.
        if (thread.wait != Wait::WARP && overflowed(thread.fiber)) {
            note(LAUNCH_FAILED, "a thread's variables need more than its stack of %zu bytes", thread.fiber.size);
            return true;
        }
    }
    return moved;
}

// Lets every thread run to its end, or the launch fail. Warps go on one after the other,
// each as far as a few meetings of its lanes: those know what caches still have.
inline void run_threads() {
    Block& b = *block;
    std::vector<unsigned> order(b.warps.size()), lanes(32);
    for (size_t i = 0; i < order.size(); i++) order[i] = unsigned(i);
    for (size_t i = 0; i < lanes.size(); i++) lanes[i] = unsigned(i);
    uint64_t lag = 0;       // warps that stay behind for a while
    for (;;) {
        b.shuffle(order);
        if (b.draw() % 8 == 0) lag = b.draw();
        bool moved = false, held = false;
        for (unsigned warp : order) {
            if (lag >> (warp % 64) & 1) {
                held = true;
                continue;
            }
            b.shuffle(lanes);
            for (size_t meetings = 1 + b.below(16); meetings > 0 && run_lanes(lanes, 32 * warp); meetings--) {
                moved = true;
                if (b.outcome->code != SUCCESS) return;
            }
        }
        if (moved) continue;
        if (held) lag = 0;
        else if (!open_barrier()) return;
    }
}

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
