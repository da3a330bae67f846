// cp.async: copies to shared memory that land when they are waited for, or, some
// of them, at once: who still reads what was there must not have begun them.
#pragma once

#include "block.h"

namespace cuda_on_host {

struct Copy {
    unsigned char* to;
    const unsigned char* from;
    unsigned bytes;         // of 16; the rest becomes zero
    void land() const {
        memcpy(to, from, bytes);
        memset(to + bytes, 0, 16 - bytes);
    }
};

// A thread's copies under way, by the group that they were committed in.
struct Copies {
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> groups;
    void clear() {
        open.clear();
        groups.clear();
    }
};

inline Copies& copies() {
    Own own;
    std::shared_ptr<Copies>& mine = here().copies;
    if (!mine) mine = std::make_shared<Copies>();
    return *mine;
}

// The oldest group, where more than `allowed` are under way.
inline bool take_group(unsigned allowed, std::vector<Copy>& group) {
    Own own;
    Copies& mine = copies();
    if (mine.groups.size() <= allowed) return false;
    group.swap(mine.groups.front());
    mine.groups.pop_front();
    return true;
}

} // namespace cuda_on_host

inline void cp_async_16(void* shared, const void* global, unsigned bytes = 16,
                        CUDA_ON_HOST_CALL) {
    using namespace cuda_on_host;
    if (((uintptr_t)shared | (uintptr_t)global) % 16 || bytes > 16) {
        note(MISALIGNED_ADDRESS, "cp.async of %u bytes from %p to %p at %s:%d", bytes, global, shared, file, line);
        give_up();
    }
    const Copy copy = {(unsigned char*)shared, (const unsigned char*)global, bytes};
    {
        Own own;
        block->outcome->fetched += bytes;
        if (block->draw() % 4) {
            copies().open.push_back(copy);
            return;
        }
    }
    copy.land();
}

inline void cp_async_commit_group() {
    cuda_on_host::Own own;
    cuda_on_host::Copies& mine = cuda_on_host::copies();
    mine.groups.push_back(std::move(mine.open));
    mine.open.clear();
}

// Until no more than the newest N groups are under way.
template <unsigned N> inline void cp_async_wait_group() {
    std::vector<cuda_on_host::Copy> group;
    while (cuda_on_host::take_group(N, group))
        for (const cuda_on_host::Copy& copy : group) copy.land();
}
