// One block of a launch: its memory, its threads, and its way from begin to end.
#pragma once

#include "copies.h"
#include "launch.h"
#include "meetings.h"

// Where all `__shared__` arrays lie, if there are any.
extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __start_cuda_shared[];
extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __stop_cuda_shared[];

namespace cuda_on_host {

// A launch as the fake driver asks for it, and shares it.
struct Asked {
    const unsigned *grid, *block;
    size_t dynamic;
    uint64_t seed;
    void** parameters;
    uint64_t* clock;                // for the sanitizers: of all launches of all modules
    bool programmatic;              // may begin before earlier work is done
};

constexpr size_t MOST_DYNAMIC = 256 * 1024;
constexpr size_t MOST_THREADS = 1024;   // of a block

inline unsigned char* map(size_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    return (unsigned char*)at;
}

// Dynamic shared memory: `bytes` that end where touching more is an error. For the thread
// sanitizer, blocks that begin early have their own: nothing orders what they do before their
// wait with the blocks that run meanwhile.
struct Dynamic {
    unsigned char* at;
#if defined(CUDA_ON_HOST_ASAN) || defined(CUDA_ON_HOST_TSAN)
    explicit Dynamic(size_t bytes) : at((unsigned char*)aligned_alloc(16, (bytes + 15) / 16 * 16)) {}
    ~Dynamic() { free(at); }
#else
    explicit Dynamic(size_t bytes) {
        static unsigned char* const room = [] {
            unsigned char* mapped = map(MOST_DYNAMIC + 65536);      // a page of any size behind it
            mprotect(mapped + MOST_DYNAMIC, 65536, PROT_NONE);
            return mapped;
        }();
        at = room + MOST_DYNAMIC - (bytes + 15) / 16 * 16;
    }
#endif
    Dynamic(const Dynamic&) = delete;
    Dynamic& operator=(const Dynamic&) = delete;
};

// NaN in every format of floats. Shared memory holds what the last block left.
CUDA_ON_HOST_UNCHECKED inline void poison(unsigned char* from, unsigned char* to) {
    volatile unsigned char* at = from;
    for (; at < to && (uintptr_t)at % 8; at++) *at = 0xff;
    for (; at + 8 <= to; at += 8) *(volatile uint64_t*)at = ~uint64_t(0);
    for (; at < to; at++) *at = 0xff;
}

#if !defined(CUDA_ON_HOST_ASAN) && !defined(CUDA_ON_HOST_TSAN)
inline struct sigaction before_segv, before_bus;

inline void touched(int signal, siginfo_t* info, void*) {
    if (!block || !block->current || !pthread_equal(block->owner, pthread_self())) {
        sigaction(signal, signal == SIGBUS ? &before_bus : &before_segv, nullptr);
        return;             // to happen again, and be somebody else's
    }
    const Thread& thread = here();
    // The processor does not tell where, if a vector was not where vectors are.
    if (info->si_code == SI_KERNEL && !info->si_addr) {
        note(MISALIGNED_ADDRESS, "thread (%u,%u,%u) touched a misaligned address", thread.index.x, thread.index.y,
             thread.index.z);
        give_up();
    }
    block->outcome->address = (uint64_t)info->si_addr;
    note(ILLEGAL_ADDRESS, "thread (%u,%u,%u) touched %p", thread.index.x, thread.index.y, thread.index.z, info->si_addr);
    give_up();
}
#endif

// While one lives, touching nobody's memory fails the launch and not the process.
struct Watch {
#if !defined(CUDA_ON_HOST_ASAN) && !defined(CUDA_ON_HOST_TSAN)
    Watch() {
        struct sigaction action{};
        action.sa_sigaction = touched;
        action.sa_flags = SA_SIGINFO | SA_NODEFER;
        sigaction(SIGSEGV, &action, &before_segv);
        sigaction(SIGBUS, &action, &before_bus);
    }
    ~Watch() {
        sigaction(SIGSEGV, &before_segv, nullptr);
        sigaction(SIGBUS, &before_bus, nullptr);
    }
#else
    Watch() {}
    ~Watch() {}
#endif
};

// What a module keeps between launches. Fibers wait for the next one where they
// ended the last, which is much less work than to make them, for sanitizers above
// all.
struct Kept {
    Thread threads[MOST_THREADS];
    Warp warps[MOST_THREADS / 32];
    unsigned char* stacks = map(MOST_THREADS * STACK);
    size_t ready = 0;               // threads whose fibers wait
};

// Threads for a block, in the launch's shape.
inline void take_threads(Block& b, Kept& kept) {
    const size_t n = (size_t)b.size.x * b.size.y * b.size.z;
    for (size_t i = 0; i < n; i++) {
        Thread& thread = kept.threads[i];
        thread.number = unsigned(i);
        thread.index = {unsigned(i % b.size.x), unsigned(i / b.size.x % b.size.y), unsigned(i / b.size.x / b.size.y)};
    }
    for (; kept.ready < n; kept.ready++)
        prepare(kept.threads[kept.ready].fiber, kept.stacks + kept.ready * STACK, STACK, begin_thread);
    b.threads = {kept.threads, n};
    b.warps = {kept.warps, (n + 31) / 32};
}

// A block of threads that have done nothing, and poisoned shared memory.
inline void begin_block(Block& b, uint3 index, size_t dynamic) {
    b.index = index;
    for (Warp& warp : b.warps) {
        const size_t first = 32 * (&warp - b.warps.first), count = b.threads.size() - first;
        warp.live = warp.ready = count < 32 ? (1u << count) - 1 : ~0u;
        warp.blocked = 0;
        for (auto& meeting : warp.meetings) meeting->mask = meeting->waiting = 0;
    }
    b.blocked = 0;
    b.waited = false;
    for (Thread& thread : b.threads) {
        thread.barriers = 0;
        thread.wait = Wait::NOTHING;
        if (thread.copies) thread.copies->clear();
    }
    poison(__start_cuda_shared, __stop_cuda_shared);
    poison(b.dynamic, b.dynamic + dynamic);
    release(&b.began);
}

// As far as its threads come.
inline void run_block(Block& b) {
    block = &b;
    b.owner = pthread_self();
#ifdef CUDA_ON_HOST_TSAN
    b.scheduler.tsan = __tsan_get_current_fiber();
#endif
    if (!b.early) release(&b.done_before);
    run_threads();
    b.current = nullptr;
    if (b.held == 0) acquire(&b.ended);
    block = nullptr;
}

inline Block block_of(const char* kernel, void (*body)(void**), const Asked& asked, unsigned char* dynamic, Outcome* outcome) {
    const unsigned *grid = asked.grid, *size = asked.block;
    Block b{kernel, {grid[0], grid[1], grid[2]}, {size[0], size[1], size[2]}, {}, body, asked.parameters, outcome,
            asked.seed * 0x9e3779b97f4a7c15 | 1};
    b.dynamic = dynamic;
    return b;
}
inline uint3 index_of(const Asked& asked, size_t at) {
    return {unsigned(at % asked.grid[0]), unsigned(at / asked.grid[0] % asked.grid[1]), unsigned(at / asked.grid[0] / asked.grid[1])};
}
inline size_t blocks_of(const Asked& asked) { return (size_t)asked.grid[0] * asked.grid[1] * asked.grid[2]; }

// A launch's dependents know of all that was done before it only if it has waited for it.
inline void check_waited(Block& b, const Asked& asked) {
    if (!asked.programmatic || b.waited || b.outcome->code != SUCCESS) return;
    block = &b;
    note(LAUNCH_FAILED, "it ends without griddepcontrol.wait, in a launch that may begin before earlier work is done");
    block = nullptr;
}

} // namespace cuda_on_host
