// From logits to weights and their masses, with the bits of the host's sampler:
// every rounding is spelled out, and what is summed is whole numbers.
#pragma once
#include "device.cuh"

typedef unsigned long long u64;

// Floats as numbers of the same order; what no token can be chosen from is the
// largest. Both zeros are one.
constexpr unsigned NOT_FINITE = 0xffffffffu, NEGATIVE_INFINITY = 0x007fffffu;
__device__ inline unsigned ordered(float x) {
    if (!(x < INFINITY)) return NOT_FINITE;
    const unsigned bits = __float_as_uint(__fadd_rn(x, 0.0f));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ inline float from_ordered(unsigned order) {
    return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
}

// e^x of x <= 0, as `exp_nonpositive` of the host computes it.
__device__ inline float exp_nonpositive(float x) {
    constexpr float ROUND = 12582912.0f;
    const float clamped = fmaxf(x, -87.3f);
    const float shifted = __fadd_rn(__fmul_rn(clamped, 1.44269504f), ROUND);
    const float k = __fadd_rn(shifted, -ROUND);
    const float high = __fadd_rn(clamped, -__fmul_rn(k, 0.6933594f));
    const float r = __fadd_rn(high, -__fmul_rn(k, -2.1219444e-4f));
    float p = 1.9875691e-4f;
    p = __fadd_rn(__fmul_rn(p, r), 1.3981999e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 8.333452e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 4.1665796e-2f);
    p = __fadd_rn(__fmul_rn(p, r), 1.6666665e-1f);
    p = __fadd_rn(__fmul_rn(p, r), 0.5f);
    const float y = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
    const unsigned exponent = __float_as_uint(shifted) - __float_as_uint(ROUND);
    const float scale = __uint_as_float((exponent + 127) << 23);
    return x < -87.3f ? 0.0f : __fmul_rn(y, scale);
}

// A weight in units, of which 1 has `units`: to nearest, ties to even.
__device__ inline u64 mass_of(float weight, float units) { return (u64)__float2ll_rn(__fmul_rn(weight, units)); }

// ln of a mass of at least `units`, as `log_mass` of the host computes it: each rounding
// is spelled out here, too.
__device__ inline float log_of_mass(u64 mass, float units) {
    constexpr double SQRT_2 = 1.41421356237309504880, LN_2 = 0.693147180559945309417;
    const u64 bits = (u64)__double_as_longlong(__ddiv_rn(__ull2double_rn(mass), (double)units));
    double exponent = (double)(int)(bits >> 52) - 1023.0;
    double mantissa = __longlong_as_double((long long)((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull));
    if (mantissa > SQRT_2) mantissa = __dmul_rn(mantissa, 0.5), exponent += 1.0;
    const double z = __ddiv_rn(__dadd_rn(mantissa, -1.0), __dadd_rn(mantissa, 1.0));
    const double square = __dmul_rn(z, z);
    double series = 1.0 / 15.0;
    for (int divisor = 13; divisor > 0; divisor -= 2) series = __dadd_rn(__dmul_rn(series, square), __ddiv_rn(1.0, (double)divisor));
    return __double2float_rn(__dadd_rn(__dmul_rn(exponent, LN_2), __dmul_rn(__dmul_rn(z, series), 2.0)));
}

// The least mass that is `part` of `total`, and at least 1.
__device__ inline u64 share(float part, u64 total) {
    const u64 mass = (u64)ceil((double)part * (double)total);
    return max(min(mass, total), (u64)1);
}

// The place in 0..total of an output position's uniform number, which is 53 bits
// of Philox-4x32-10 (Salmon et al., SC'11): key = seed, counter = (position, 0, 0).
__device__ inline u64 place(const unsigned (&seed)[2], u64 position, u64 total) {
    unsigned c[4] = {(unsigned)position, (unsigned)(position >> 32), 0, 0};
    unsigned k[2] = {seed[0], seed[1]};
    for (unsigned round = 0; round < 10; round++) {
        const u64 a = (u64)0xD2511F53u * c[0], b = (u64)0xCD9E8D57u * c[2];
        const unsigned first = (unsigned)(b >> 32) ^ c[1] ^ k[0], third = (unsigned)(a >> 32) ^ c[3] ^ k[1];
        c[0] = first, c[1] = (unsigned)b, c[2] = third, c[3] = (unsigned)a;
        k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u;
    }
    const u64 bits = ((u64)c[0] << 32 | c[1]) >> 11;
    return __umul64hi(bits << 11, total);
}

// A histogram in shared memory, over weights from 1 down. Masses are kept in
// halves, as shared memory adds no more than 32 bits at a time by itself.
constexpr unsigned ONE = 0x3f800000u;       // the bits of 1
template <unsigned N> struct Cells {
    unsigned counts[N], lows[N], highs[N];
    __device__ u64 mass(unsigned cell) const { return (u64)highs[cell] << 32 | lows[cell]; }
    __device__ void clear() {
        for (unsigned cell = threadIdx.x; cell < N; cell += blockDim.x) counts[cell] = lows[cell] = highs[cell] = 0;
    }
    __device__ void add(unsigned cell, u64 mass) {
        const unsigned low = (unsigned)mass, before = atomicAdd(&lows[cell], low);
        const unsigned high = (unsigned)(mass >> 32) + (before + low < before);
        atomicAdd(&counts[cell], 1u);
        if (high) atomicAdd(&highs[cell], high);
    }
};

__device__ inline u64 warp_total(u64 x) {
    for (unsigned d = 16; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}
// The sum up to and including a lane's own.
template <class T> __device__ inline T sum_to_lane(T x) {
    for (unsigned d = 1; d < 32; d *= 2) {
        const T other = __shfl_up_sync(0xffffffffu, x, d);
        if (threadIdx.x % 32 >= d) x += other;
    }
    return x;
}
