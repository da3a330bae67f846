// Products of a mixture's experts with matrices of 4-bit floats and exponents.
#include "experts.cuh"
#include "mxfp4.cuh"

// Rows of 32-bit floats take twice the memory.
constexpr unsigned stages_of(unsigned bf16) { return OPERAND_IS_BF16 ? bf16 : 2; }

template <unsigned TILES, unsigned OWN, unsigned STAGES>
__device__ inline void multiply(const ExpertProduct& p) {
    using Found = PackedTileOf<TILES, OWN, stages_of(STAGES)>;
    multiply_expert<Found, TILES, OWN>(p, [&](Found& found, const Product& a, const auto& from, uint4* stages) {
        const Packed weights = packed_at(a.w, a.outputs * (a.gated ? 2 : 1), a.inputs);
        found.multiply(a, weights, from, stages, a.rows.most, blockIdx.x);
    });
}
extern "C" __global__ void __launch_bounds__(THREADS, 4) experts_mxfp4_8(ExpertProduct p) { multiply<1, 1, 5>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 4) experts_mxfp4_16(ExpertProduct p) { multiply<2, 1, 4>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) experts_mxfp4_32(ExpertProduct p) { multiply<4, 2, 3>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) experts_mxfp4_64(ExpertProduct p) { multiply<8, 2, 3>(p); }
