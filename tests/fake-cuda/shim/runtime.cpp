// What kernels of all modules have in common. It is compiled once, and linked to each module,
// which has threads and shared memory of its own.
#define CUDA_ON_HOST_RUNTIME 1

#include "cuda_on_host.h"

#include "schedule.h"
#include "meetings.h"
#include "multiply.h"
#include "copies.h"
#include "run_block.h"
#include "early.h"

namespace cuda_on_host {

void launch(const char* kernel, void (*body)(void**), const Asked& asked, Begun* begun, Outcome* outcome) {
    Own own;
    Watch watch;
    Dynamic room(asked.dynamic);
    Block b = block_of(kernel, body, asked, room.at, outcome);
    acquire(asked.clock);
    static Kept& kept = *new Kept;
    take_threads(b, kept);
    std::vector<size_t> order(blocks_of(asked));
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    b.shuffle(order);
    for (size_t at : order) {
        if (begun && go_on_with(*begun, at, asked, outcome)) {
            if (outcome->code != SUCCESS) break;
            continue;
        }
        begin_block(b, index_of(asked, at), asked.dynamic);
        run_block(b);
        check_waited(b, asked);
        if (outcome->code != SUCCESS) break;
    }
    // Threads of a launch that failed wait for ever.
    if (outcome->code != SUCCESS) kept.ready = 0;
    if (begun) abandon(begun);
    release(asked.clock);
}

} // namespace cuda_on_host
