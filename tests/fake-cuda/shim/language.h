// CUDA's words, vector types and small functions, as far as kernels use them.
#pragma once

// Whatever the other headers include comes before the words are defined: the
// library's own headers may use some of them.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sys/mman.h>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict

// All shared arrays of a module lie in one section, which every block finds
// filled with NaN. 16 bytes of alignment are what kernels' vectors need.
#define __shared__ static __attribute__((section("cuda_shared"), aligned(16)))

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace cuda_on_host {
template <class To, class From> inline To bits_of(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
} // namespace cuda_on_host

inline float __uint_as_float(unsigned x) { return cuda_on_host::bits_of<float>(x); }
inline float __int_as_float(int x) { return cuda_on_host::bits_of<float>(x); }
inline unsigned __float_as_uint(float x) { return cuda_on_host::bits_of<unsigned>(x); }
inline int __float_as_int(float x) { return cuda_on_host::bits_of<int>(x); }

template <class A, class B> inline std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B> inline std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(a) < T(b) ? T(b) : T(a);
}

// C libraries have some of these names for themselves.
#define rsqrtf(x) (1.0f / std::sqrt(float(x)))
#define __expf(x) std::exp(float(x))
#define __logf(x) std::log(float(x))
inline float __fdividef(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __ull2double_rn(unsigned long long x) { return double(x); }
inline float __double2float_rn(double x) { return float(x); }
inline long long __double_as_longlong(double x) { return cuda_on_host::bits_of<long long>(x); }
inline double __longlong_as_double(long long x) { return cuda_on_host::bits_of<double>(x); }
inline long long __float2ll_rn(float x) { return (long long)std::nearbyint(x); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T> inline T __ldg(const T* at) { return *at; }

// To nearest, ties to even; every NaN becomes one.
inline unsigned short cvt_rn_bf16(float x) {
    const unsigned bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline unsigned cvt_rn_bf16x2(float low, float high) { return cvt_rn_bf16(low) | unsigned(cvt_rn_bf16(high)) << 16; }
inline unsigned mul_bf16x2(unsigned a, unsigned b) {
    auto low = [](unsigned x) { return __uint_as_float(x << 16); };
    auto high = [](unsigned x) { return __uint_as_float(x & 0xffff0000u); };
    return cvt_rn_bf16x2(low(a) * low(b), high(a) * high(b));
}
