// A thread's asynchronous copies.
#pragma once

#include "async_copy.h"
#include "schedule.h"

namespace cuda_on_host {

struct Copy {
    unsigned char* to;
    const unsigned char* from;
    unsigned bytes;         // of `all`; the rest becomes zero
    unsigned all;
    bool early;             // begun before earlier work was done
    Place place;            // where it began
    unsigned char seen[16]; // its source at that time, if it is early
    void land() const {
        if (early && memcmp(seen, from, bytes) != 0) {
            note(LAUNCH_FAILED, "cp.async at %s:%d began before griddepcontrol.wait, and its source at %p changed behind that",
                 place.file, place.line, from);
            give_up();
        }
        memcpy(to, from, bytes);
        memset(to + bytes, 0, all - bytes);
    }
};

// A thread's copies under way, in order.
struct Copies {
    std::vector<Copy> all;
    std::vector<size_t> ends;       // of groups that were committed, in `all`
    size_t taken = 0;               // groups that have landed
    void clear() {
        all.clear();
        ends.clear();
        taken = 0;
    }
};

inline Copies& copies() {
    Own own;
    std::shared_ptr<Copies>& mine = here().copies;
    if (!mine) mine = std::make_shared<Copies>();
    return *mine;
}

// The oldest group, where more than `allowed` are under way.
inline bool take_group(unsigned allowed, Some<const Copy>& group) {
    Own own;
    Copies& mine = copies();
    if (mine.ends.size() - mine.taken <= allowed) return false;
    const size_t from = mine.taken ? mine.ends[mine.taken - 1] : 0;
    group = {mine.all.data() + from, mine.ends[mine.taken++] - from};
    return true;
}
// What has landed is forgotten, where nothing is under way.
inline void forget_landed() {
    Own own;
    Copies& mine = copies();
    if (mine.taken == mine.ends.size() && (mine.ends.empty() || mine.ends.back() == mine.all.size())) mine.clear();
}

void begin_copy(void* shared, const void* global, unsigned bytes, unsigned all, Place place) {
    if (((uintptr_t)shared | (uintptr_t)global) % all || bytes > all) {
        note(MISALIGNED_ADDRESS, "cp.async of %u bytes from %p to %p at %s:%d", bytes, global, shared, place.file, place.line);
        give_up();
    }
    Copy copy = {(unsigned char*)shared, (const unsigned char*)global, bytes, all, block->early, place, {}};
    // A copy may read its source at once. Sanitizers see that it does: they look into no memcpy.
    for (unsigned i = 0; copy.early && i < bytes; i++) copy.seen[i] = copy.from[i];
    {
        Own own;
        block->outcome->fetched += bytes;
        if (block->draw() % 4) {
            copies().all.push_back(copy);
            return;
        }
    }
    copy.land();
}

void commit_copies() {
    Own own;
    Copies& mine = copies();
    mine.ends.push_back(mine.all.size());
}

void land_copies(unsigned allowed) {
    Some<const Copy> group;
    while (take_group(allowed, group))
        for (const Copy& copy : group) copy.land();
    forget_landed();
}

void prefetch(const void* global, unsigned bytes, Place place) {
    if (((uintptr_t)global | bytes) % 16) {
        note(MISALIGNED_ADDRESS, "cp.async.bulk.prefetch of %u bytes from %p at %s:%d", bytes, global, place.file, place.line);
        give_up();
    }
    const volatile unsigned char* from = (const volatile unsigned char*)global;
    for (unsigned at = 0; at < bytes; at += 16) (void)from[at], (void)from[at + 15];
    Own own;
    block->outcome->fetched += bytes;
}

} // namespace cuda_on_host
