// What kernels need beyond CUDA C++ itself. No header of the toolkit is used:
// what CUDA leaves to PTX stands here, and where kernels run on a host for
// tests, in the header that runs them.
#pragma once

#ifdef CUDA_ON_HOST
#define UNROLL
#define ROLLED
#else
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define INFINITY __int_as_float(0x7f800000)
#define DYNAMIC_SHARED(type, name)                              \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    type* name = (type*)name##_bytes

// The products of two pairs of bf16, each to nearest. As a multiply-add, since a product alone needs
// 9.0; numbers below the normal ones stay.
__device__ inline unsigned mul_bf16x2(unsigned a, unsigned b) {
    unsigned bits;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(bits) : "r"(a), "r"(b), "r"(0x80008000u));
    return bits;
}
// To nearest, ties to even.
__device__ inline unsigned short cvt_rn_bf16(float x) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
// Two at once, `low` in the lower half.
__device__ inline unsigned cvt_rn_bf16x2(float low, float high) {
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
// d += a · b: `a` 16x16 row by row, `b` 16x8 column by column; PTX ISA, "Matrix
// Fragments for mma.m16n8k16 with floating point type".
__device__ inline void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Four 8x8 matrices of 16-bit values; lanes 8i to 8i + 7 name the rows of matrix i.
__device__ inline void ldmatrix_x4(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}
__device__ inline void ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}
// Copies `bytes` to shared memory, which gets zeros for the rest of 16.
__device__ inline void cp_async_16(void* shared, const void* global, unsigned bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global), "r"(bytes) : "memory");
}
// Copies four bytes to shared memory, or zeros where `bytes` is 0.
__device__ inline void cp_async_4(void* shared, const void* global, unsigned bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
        :: "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global), "r"(bytes) : "memory");
}
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ inline void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
// Programmatic dependent launch, which devices before 9.0 do not have: there a kernel begins
// when the one before it has ended. PTX ISA, "griddepcontrol".
//
// Once all blocks have called it, the launch behind this one may begin.
__device__ inline void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until all work before this launch is done and seen.
__device__ inline void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Begins to fetch `bytes` bytes to the L2 cache, where the device does that: from 9.0 on. Address
// and number are multiples of 16. PTX ISA, "cp.async.bulk.prefetch".
__device__ inline void cp_async_bulk_prefetch_L2(const void* global, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(global), "r"(bytes) : "memory");
#endif
}
#endif
// The begin of a kernel that has nothing to do before earlier work is done. Before the wait a
// kernel reads only what no pass writes, such as weights, and writes nothing. Every block
// waits, also one that has nothing to do: who waits for this launch relies on that.
__device__ inline void begin_after_predecessors() {
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
}

struct __align__(2) bf16 { unsigned short bits; };

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
template <class T> __device__ inline T from_f32(float x);
template <> __device__ inline float from_f32<float>(float x) { return x; }
template <> __device__ inline bf16 from_f32<bf16>(float x) { return bf16{cvt_rn_bf16(x)}; }

// How many rows there are: what a graph replays reads it from device memory.
struct Rows {
    const unsigned* count;      // null: `most`
    unsigned most;              // for which the launch has blocks
    unsigned pad;
};
__device__ inline unsigned rows_of(const Rows& rows) {
    return rows.count ? min(*rows.count, rows.most) : rows.most;
}

// The sum over a warp, the same in every lane.
__device__ inline float warp_sum(float x) {
    for (unsigned d = 16; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}
