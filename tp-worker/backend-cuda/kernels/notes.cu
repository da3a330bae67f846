// Whether ranks agree in what they have noted as a pass began.
#include "device.cuh"

struct Notes {
    const unsigned* all;        // [ranks, words]
    unsigned* differs;          // 0, or 1 + the first rank whose note is another
    unsigned ranks, words;
    unsigned shared;            // leading words that all ranks have in common
    unsigned of_dp_rank;        // words behind them that ranks of a DP rank have
    unsigned dp_rank_size;
    unsigned pad;
};

// One warp. Each rank is compared with rank 0, and with the first of its DP rank: all
// ranks find the same one.
extern "C" __global__ void __launch_bounds__(32) compare_notes(Notes a) {
    begin_after_predecessors();
    const unsigned lane = threadIdx.x;
    unsigned found = 0;
    for (unsigned rank = 1; rank < a.ranks && found == 0; rank++) {
        const unsigned* own = a.all + rank * a.words;
        const unsigned* lead = a.all + (rank - rank % a.dp_rank_size) * a.words;
        bool differs = false;
        for (unsigned i = lane; i < a.shared + a.of_dp_rank; i += 32)
            differs |= own[i] != (i < a.shared ? a.all : lead)[i];
        if (__ballot_sync(0xffffffffu, differs)) found = 1 + rank;
    }
    if (lane == 0) *a.differs = found;
}
