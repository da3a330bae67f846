// Products of a mixture's experts with matrices of floats.
#include "experts.cuh"

template <unsigned TILES, unsigned OWN, unsigned STAGES>
__device__ inline void multiply(const ExpertProduct& p) {
    using Found = TileOf<TILES, OWN, STAGES>;
    multiply_expert<Found, TILES, OWN>(p, [&](Found& found, const Product& a, const auto& from, uint4* stages) {
        const Slice slice = {0, (a.inputs + CHUNK - 1) / CHUNK};
        found.multiply(a, weights_of(a, blockIdx.x, Found::GROUPS), from, stages, a.rows.most, slice, false, NEVER);
    });
}
extern "C" __global__ void __launch_bounds__(THREADS, 4) experts_8(ExpertProduct p) { multiply<1, 1, 6>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 4) experts_16(ExpertProduct p) { multiply<2, 1, 5>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) experts_32(ExpertProduct p) { multiply<4, 2, 4>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) experts_64(ExpertProduct p) { multiply<8, 2, 4>(p); }
