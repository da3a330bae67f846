// Functions that devices compute alike, bit for bit, in plain arithmetic.
#pragma once
#include "device.cuh"

// eˣ as processors compute it, bit for bit: Cody and Waite's reduction with the polynomial of
// Cephes' expf (Moshier), in plain multiplications and additions.
__device__ inline float exp_of(float x) {
    constexpr float LOWEST = -87.33654f, HIGHEST = 88.72283f, ROUND = 12582912.0f;
    const float clamped = fminf(fmaxf(x, LOWEST), HIGHEST);
    const float shifted = __fadd_rn(__fmul_rn(clamped, 1.4426950408889634f), ROUND);
    const float n = __fadd_rn(shifted, -ROUND);
    float r = __fadd_rn(clamped, -__fmul_rn(n, 0.6933594f));
    r = __fadd_rn(r, __fmul_rn(n, 2.1219444e-4f));
    auto next = [&](float p, float power) { return __fadd_rn(__fmul_rn(p, r), power); };
    float p = next(1.9875691e-4f, 1.3981999e-3f);
    p = next(next(next(next(p, 8.333452e-3f), 4.1665796e-2f), 1.6666665e-1f), 0.5f);
    const float y = __fadd_rn(__fadd_rn(__fmul_rn(p, __fmul_rn(r, r)), r), 1.0f);
    // 2ⁿ in two factors, as n may be 128. The low bits of `shifted` hold n.
    const int whole = (int)(__float_as_uint(shifted) - __float_as_uint(ROUND)), half = whole >> 1;
    auto power = [](int n) { return __uint_as_float((unsigned)(n + 127) << 23); };
    const float found = __fmul_rn(__fmul_rn(y, power(half)), power(whole - half));
    if (x != x) return x;
    return x < LOWEST ? 0.0f : x > HIGHEST ? INFINITY : found;
}

// σ(x), and x · σ(x).
__device__ inline float sigmoid_of(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, exp_of(-x))); }
__device__ inline float silu_of(float x) { return __fdiv_rn(x, __fadd_rn(1.0f, exp_of(-x))); }

// ln(1 + eˣ) = max(x, 0) + ln(1 + e^−|x|), with the series of the inverse hyperbolic tangent:
// ln(1 + t) = 2 · artanh(t / (2 + t)).
__device__ inline float softplus_of(float x) {
    const float t = exp_of(-fabsf(x)), s = __fdiv_rn(t, __fadd_rn(2.0f, t)), square = __fmul_rn(s, s);
    auto next = [&](float series, float of) { return __fadd_rn(__fmul_rn(series, square), of); };
    float series = next(1.0f / 17.0f, 1.0f / 15.0f);
    series = next(next(next(series, 1.0f / 13.0f), 1.0f / 11.0f), 1.0f / 9.0f);
    series = next(next(next(next(series, 1.0f / 7.0f), 1.0f / 5.0f), 1.0f / 3.0f), 1.0f);
    return __fadd_rn(fmaxf(x, 0.0f), __fmul_rn(__fmul_rn(2.0f, s), series));
}
