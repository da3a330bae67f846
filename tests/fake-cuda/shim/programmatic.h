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

namespace cuda_on_host {

// Of the runtime, in schedule.h.
void wait_for_earlier_work(Place place);

} // namespace cuda_on_host

inline void griddepcontrol_launch_dependents() {}

// Behind it, all work before this launch is done and seen.
inline void griddepcontrol_wait(CUDA_ON_HOST_CALL) { cuda_on_host::wait_for_earlier_work({file, line}); }
