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

// The next lane of the warp that runs which can go on and has not had its turn.
inline Thread* next_lane() {
    Block& b = *block;
    while (b.turns < 32) {
        const unsigned lane = b.lanes[b.turns++];
        Thread* threads = &b.threads[32 * (b.warp - b.warps.first)];
        if (!(b.warp->ready >> lane & 1)) continue;
        // Whoever may come behind it is in no near cache.
        if (b.turns < 32) __builtin_prefetch(threads[b.lanes[b.turns]].fiber.stack_pointer);
        return &threads[lane];
    }
    return nullptr;
}

// Whether a thread wrote behind its stack. The far ends of stacks are no cache's, so this
// is not looked at in every meeting.
inline bool broke_its_stack(const Thread& thread) {
    return thread.wait != Wait::WARP && overflowed(thread.fiber);
}

// From a CUDA thread: to the warp's next lane, or back to whoever chooses the next warp.
// Lanes mostly wait where the others do: a processor that foresees where calls return
// to is right when they go on with each other, and wrong at each turn of a scheduler.
inline void pause() {
    Own own;
    Block& b = *block;
    Thread& thread = here();
    Thread* next = b.outcome->code == SUCCESS && !broke_its_stack(thread) ? next_lane() : nullptr;
    if (next) b.current = next;
    b.before = &thread.fiber;
    go_on(thread.fiber, next ? next->fiber : b.scheduler);
}

// From a CUDA thread: the launch has failed and goes on no more.
[[noreturn]] inline void give_up() {
    pause();
    __builtin_trap();       // nobody goes on with a thread of a failed launch
}

inline void leave_warp(Warp& warp, unsigned lane);

#ifdef CUDA_ON_HOST_TSAN
// A fiber at its end, and who ends it.
struct Leaving { Fiber *from = nullptr, *to = nullptr; };
inline Leaving leaving;
#endif

// A fiber's whole life: the same thread of one block after the other, of all
// launches.
inline void begin_thread() {
    arrived(*block->before);
    for (;;) {
        acquire(&block->began);
        block->body(block->arguments);
        Thread& thread = here();
        {
            Own own;
            thread.wait = Wait::DONE;
            leave_warp(*block->warp, lane_of(thread));
            release(&block->ended);
        }
        pause();
#ifdef CUDA_ON_HOST_TSAN
        // Behind the shim's own business: the sanitizer ends no thread within.
        if (leaving.from) go_on(*leaving.from, *leaving.to);
#endif
    }
}

inline void wait_for_block(Place place) {
    Own own;
    Block& b = *block;
    Thread& thread = here();
    thread.wait = Wait::BLOCK;
    thread.place = place;
    if (b.blocked++ == 0) {
        b.barrier = place;
        b.apart = false;
    } else if (!(place == b.barrier)) {
        b.apart = true;
    }
    const unsigned lane = 1u << lane_of(thread);
    b.warp->ready &= ~lane;
    b.warp->blocked |= lane;
    // Two addresses in turn: who leaves one barrier late must not seem to know
    // what others did on their way to the next.
    uint64_t* met = &b.met[thread.barriers++];
    release(met);
    pause();
    thread.wait = Wait::NOTHING;
    acquire(met);
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

// Why threads wait for ever.
inline void tell_why() {
    const Place* at = nullptr;
    for (const Thread& thread : block->threads) {
        if (thread.wait == Wait::DONE) continue;
        if (thread.wait == Wait::BLOCK && (!at || *at == thread.place)) {
            at = &thread.place;
            continue;
        }
        note(LAUNCH_FAILED, thread.wait == Wait::BLOCK ? "threads wait at different barriers"
                                                        : "threads wait for others that never come");
        tell_who_waits();
        return;
    }
}

// All that can't go on wait for the block, or for ever. Returns whether the
// barrier opened.
inline bool open_barrier() {
    Block& b = *block;
    bool alike = !b.apart;
    for (const Warp& warp : b.warps) alike &= warp.blocked == warp.live;
    if (b.blocked == 0 || !alike) {
        tell_why();
        return false;
    }
    for (Warp& warp : b.warps) {
        warp.ready = warp.blocked;
        warp.blocked = 0;
    }
    b.blocked = 0;
    return true;
}

// Lets the lanes of the warp that can go on do so. Whether any could; a launch that
// failed is seen by its outcome.
inline bool run_lanes() {
    Block& b = *block;
    if (b.warp->ready == 0) return false;
    b.turns = 0;
    b.current = next_lane();
    b.before = &b.scheduler;
    go_on(b.scheduler, b.current->fiber);
    if (b.outcome->code == SUCCESS && broke_its_stack(*b.current))
        note(LAUNCH_FAILED, "a thread's variables need more than its stack of %zu bytes", STACK);
    return true;
}

// Lets every thread run to its end, or to its wait for earlier work, or the launch fail. Warps go on one after the other,
// each as far as a few meetings of its lanes: those know what caches still have.
inline void run_threads() {
    Block& b = *block;
    std::vector<unsigned> order(b.warps.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = unsigned(i);
    for (unsigned i = 0; i < 32; i++) b.lanes[i] = uint8_t(i);
    uint64_t lag = 0;       // warps that stay behind for a while
    for (;;) {
        b.shuffle(order);
        if (b.draw() % 8 == 0) lag = b.draw();
        bool moved = false, stay = false;
        for (unsigned warp : order) {
            if (lag >> (warp % 64) & 1) {
                stay = true;
                continue;
            }
            b.warp = &b.warps[warp];
            b.shuffle(b.lanes);
            for (size_t meetings = 1 + b.below(16); meetings > 0 && run_lanes(); meetings--) {
                moved = true;
                if (b.outcome->code != SUCCESS) return;
            }
        }
        if (moved) continue;
        if (stay) lag = 0;
        else if (b.held > 0 || !open_barrier()) return;
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
