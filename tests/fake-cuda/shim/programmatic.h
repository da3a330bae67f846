// Programmatic dependent launch: what a kernel does before earlier work is done.
//
// A launch that asks for it may begin while its predecessors run. Here some of its
// blocks do, before the predecessors' first block: each of them runs up to its
// griddepcontrol.wait and stays there until its launch has its turn. So what it reads
// too early is stale, and what it writes too early is seen by those it should wait
// for. CUDA begins a launch early only when its predecessors have said so, by
// launch_dependents or by their end; whoever relies on that alone relies on nothing.
#pragma once

#include "block.h"

inline void griddepcontrol_launch_dependents() {}

// Behind it, all work before this launch is done and seen.
inline void griddepcontrol_wait(CUDA_ON_HOST_CALL) {
    using namespace cuda_on_host;
    Own own;
    Block& b = *block;
    b.waited = true;
    if (b.early) {
        Thread& thread = here();
        thread.wait = Wait::GRID;
        thread.place = {file, line};
        b.warp->ready &= ~(1u << lane_of(thread));
        b.held++;
        cuda_on_host::pause();
        thread.wait = Wait::NOTHING;
    }
    acquire(&b.done_before);
}

namespace cuda_on_host {

// Lets those go on who wait for earlier work.
inline void end_waits(Block& b) {
    b.early = false;
    b.held = 0;
    for (const Thread& thread : b.threads)
        if (thread.wait == Wait::GRID) b.warps[thread.number / 32].ready |= 1u << lane_of(thread);
}

} // namespace cuda_on_host
