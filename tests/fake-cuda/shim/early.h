// Blocks that begin before their launch's turn, while earlier work is not done.
#pragma once

#include "run_block.h"

namespace cuda_on_host {

// A block that has begun before earlier work was done, with threads of its own.
struct Early {
    size_t at = 0;                      // among the launch's blocks
    Kept* kept = nullptr;
    std::unique_ptr<Dynamic> room;
    Block b{};
    std::vector<unsigned char> shared;  // while other blocks run
};
struct Begun {
    std::vector<std::unique_ptr<Early>> blocks;
};

// Threads for early blocks, while no block has them. A module runs one launch at a time.
inline std::vector<Kept*> spare;

inline Kept* take_spare() {
    if (spare.empty()) return new Kept;
    Kept* kept = spare.back();
    spare.pop_back();
    return kept;
}

// Keeps threads for later. The sanitizer forgets them: it has room for some thousand, and what
// others of their number did before is no order.
inline void give_spare(Kept* kept) {
#ifdef CUDA_ON_HOST_TSAN
    Fiber host;
    host.tsan = __tsan_get_current_fiber();
    leaving.to = &host;
    for (size_t i = 0; i < kept->ready; i++) {
        leaving.from = &kept->threads[i].fiber;
        go_on(host, *leaving.from);
        __tsan_destroy_fiber(leaving.from->tsan);
    }
    leaving = {};
    kept->ready = 0;
#endif
    spare.push_back(kept);
}

CUDA_ON_HOST_UNCHECKED inline void copy_unchecked(unsigned char* to, const unsigned char* from, size_t bytes) {
    volatile unsigned char* out = to;
    for (; bytes >= 8; bytes -= 8, out += 8, from += 8) *(volatile uint64_t*)out = *(const volatile uint64_t*)from;
    for (; bytes > 0; bytes--) *out++ = *(const volatile unsigned char*)from++;
}
inline void save_shared(Early& e, size_t dynamic) {
    const size_t fixed = __stop_cuda_shared - __start_cuda_shared;
    e.shared.resize(fixed + dynamic);
    copy_unchecked(e.shared.data(), __start_cuda_shared, fixed);
    copy_unchecked(e.shared.data() + fixed, e.b.dynamic, dynamic);
}
inline void restore_shared(const Early& e, size_t dynamic) {
    const size_t fixed = __stop_cuda_shared - __start_cuda_shared;
    copy_unchecked(__start_cuda_shared, e.shared.data(), fixed);
    copy_unchecked(e.b.dynamic, e.shared.data() + fixed, dynamic);
}

void abandon(Begun* begun) {
    Own own;
    for (auto& e : begun->blocks) {
        if (e->b.held > 0) e->kept->ready = 0;  // its threads wait for ever
        give_spare(e->kept);
    }
    delete begun;
}

constexpr size_t MOST_EARLY = 3;        // blocks of a launch

// Runs some blocks up to their waits.
Begun* begin(const char* kernel, void (*body)(void**), const Asked& asked, Outcome* outcome) {
    Own own;
    Watch watch;
    Begun* begun = new Begun;
    acquire(asked.clock);
    const size_t count = std::min(blocks_of(asked), MOST_EARLY);
    for (size_t i = 0; i < count && outcome->code == SUCCESS; i++) {
        auto e = std::make_unique<Early>();
        e->kept = take_spare();
        e->room = std::make_unique<Dynamic>(asked.dynamic);
        e->b = block_of(kernel, body, asked, e->room->at, outcome);
        e->b.state += 2 * i;
        e->at = e->b.below(blocks_of(asked));
        const auto taken = [&](const auto& other) { return other->at == e->at; };
        if (std::any_of(begun->blocks.begin(), begun->blocks.end(), taken)) {
            give_spare(e->kept);
            continue;
        }
        take_threads(e->b, *e->kept);
        e->b.early = true;
        begin_block(e->b, index_of(asked, e->at), asked.dynamic);
        run_block(e->b);
        check_waited(e->b, asked);
        if (outcome->code != SUCCESS) e->kept->ready = 0;       // its threads wait for ever
        save_shared(*e, asked.dynamic);
        begun->blocks.push_back(std::move(e));
    }
    return begun;
}

// Ends a block that has begun early, if `at` is one.
inline bool go_on_with(Begun& begun, size_t at, const Asked& asked, Outcome* outcome) {
    for (auto& e : begun.blocks) {
        if (e->at != at) continue;
        e->b.outcome = outcome;
        end_waits(e->b);
        restore_shared(*e, asked.dynamic);
        run_block(e->b);
        if (outcome->code != SUCCESS) e->kept->ready = 0;
        return true;
    }
    return false;
}

} // namespace cuda_on_host
