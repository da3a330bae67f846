// Which thread of a block goes on, and how a launch fails.
#pragma once

#include "programmatic.h"
#include "warp.h"

namespace cuda_on_host {

// A lane that returns comes to no meeting: see meetings.h.
void leave_warp(Warp& warp, unsigned lane);

void note(Code code, const char* format, ...) {
    Outcome& outcome = *block->outcome;
    if (outcome.code != SUCCESS) return;
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

void give_up() {
    pause();
    __builtin_trap();       // nobody goes on with a thread of a failed launch
}

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

void wait_for_block(Place place) {
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

void wait_for_earlier_work(Place place) {
    Own own;
    Block& b = *block;
    b.waited = true;
    if (b.early) {
        Thread& thread = here();
        thread.wait = Wait::GRID;
        thread.place = place;
        b.warp->ready &= ~(1u << lane_of(thread));
        b.held++;
        pause();
        thread.wait = Wait::NOTHING;
    }
    acquire(&b.done_before);
}

// Lets those go on who wait for earlier work.
inline void end_waits(Block& b) {
    b.early = false;
    b.held = 0;
    for (const Thread& thread : b.threads)
        if (thread.wait == Wait::GRID) b.warps[thread.number / 32].ready |= 1u << lane_of(thread);
}

} // namespace cuda_on_host
