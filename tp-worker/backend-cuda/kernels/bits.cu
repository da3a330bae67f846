// The same product on both kinds of tensor-core instructions that Hopper has, mma.sync and
// wgmma, to see if they round alike. A block of four warps computes a tile of 64 rows and 64
// columns over all of K, 16 at a time and ascending, as the kernels of models do. Grid: (tiles).
// PTX ISA, "Asynchronous warpgroup level matrix instructions".
#include "device.cuh"

#ifdef CUDA_ON_HOST
#error "wgmma has no imitation on the host"
#else
constexpr unsigned TILE = 64, CHUNK = 64, WARPS = 4;
// A core matrix is 8 rows of 8 values in 128 consecutive bytes. From one to the next along K it
// is LEADING bytes, and along rows STRIDE bytes; nothing is swizzled.
constexpr unsigned LEADING = 128, STRIDE = CHUNK / 8 * 128;

struct Bits {
    const bf16* x;              // [tiles, TILE, k]
    const bf16* w;              // [tiles, TILE, k]
    float* by_mma;              // [tiles, TILE, TILE]
    float* by_wgmma;            // [tiles, TILE, TILE]
    unsigned k, pad;
};

__device__ inline unsigned long long descriptor(const void* at) {
    const unsigned long long address = (unsigned)__cvta_generic_to_shared(at);
    return (address & 0x3ffff) >> 4 | (unsigned long long)(LEADING >> 4) << 16 | (unsigned long long)(STRIDE >> 4) << 32;
}
// d += a · bᵀ over 16 columns of both.
__device__ inline void wgmma_m64n64k16(float (&d)[32], unsigned long long a, unsigned long long b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b) : "memory");
}
__device__ inline unsigned pair(const bf16* at) { return *(const unsigned*)at; }

// Puts 64 rows of a chunk where descriptors find them.
__device__ inline void stage(bf16* to, const bf16* from, unsigned k) {
    for (unsigned i = threadIdx.x; i < TILE * CHUNK; i += 32 * WARPS) {
        const unsigned row = i / CHUNK, column = i % CHUNK;
        const unsigned at = row / 8 * (STRIDE / 2) + column / 8 * (LEADING / 2) + row % 8 * 8 + column % 8;
        to[at] = from[(size_t)row * k + column];
    }
}
__device__ inline void by_wgmma(const Bits& a, const bf16* x, const bf16* w, float (&d)[32]) {
    __shared__ __align__(128) bf16 rows[TILE * CHUNK], columns[TILE * CHUNK];
    for (unsigned at = 0; at < a.k; at += CHUNK) {
        __syncthreads();        // the chunk before is done with
        stage(rows, x + at, a.k);
        stage(columns, w + at, a.k);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        UNROLL
        for (unsigned step = 0; step < CHUNK / 16; step++) {
            const unsigned from = step * 2 * (LEADING / 2);
            wgmma_m64n64k16(d, descriptor(rows + from), descriptor(columns + from));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
}
// Each warp has 16 rows; sums lie in a lane as wgmma leaves them.
__device__ inline void by_mma(const Bits& a, const bf16* x, const bf16* w, float (&d)[32]) {
    const unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
    for (unsigned at = column; at < a.k; at += 16) {
        const bf16* upper = x + (size_t)row * a.k + at;
        const bf16* lower = upper + (size_t)8 * a.k;
        const unsigned left[4] = {pair(upper), pair(lower), pair(upper + 8), pair(lower + 8)};
        UNROLL
        for (unsigned tile = 0; tile < TILE / 8; tile++) {
            const bf16* of = w + (size_t)(tile * 8 + lane / 4) * a.k + at;
            const unsigned right[2] = {pair(of), pair(of + 8)};
            float sums[4] = {d[4 * tile], d[4 * tile + 1], d[4 * tile + 2], d[4 * tile + 3]};
            mma_m16n8k16_bf16(sums, left, right);
            UNROLL
            for (unsigned i = 0; i < 4; i++) d[4 * tile + i] = sums[i];
        }
    }
}
__device__ inline void leave(float* out, const float (&d)[32]) {
    const unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    UNROLL
    for (unsigned i = 0; i < 32; i++)
        out[(row + i / 2 % 2 * 8) * TILE + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
}
extern "C" __global__ void __launch_bounds__(32 * WARPS) compare_bits(Bits a) {
    const size_t tile = blockIdx.x, operand = tile * TILE * a.k, out = tile * TILE * TILE;
    float d[32] = {};
    by_mma(a, a.x + operand, a.w + operand, d);
    leave(a.by_mma + out, d);
    UNROLL
    for (unsigned i = 0; i < 32; i++) d[i] = 0;
    by_wgmma(a, a.x + operand, a.w + operand, d);
    leave(a.by_wgmma + out, d);
}
#endif
