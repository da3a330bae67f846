// What warps do on matrices: mma.sync and ldmatrix, by PTX's layouts.
#pragma once

#include "warp.h"

namespace cuda_on_host {

constexpr unsigned WHOLE_WARP = 0xffffffffu;

// A lane's parts of the matrices of a product.
struct Fragments { unsigned a[4], b[2]; float d[4]; };

// Of eight columns of a row, side by side: sums, and pairs of bf16 that follow each other in
// the direction that is summed.
typedef float Columns __attribute__((vector_size(32)));
typedef unsigned Pairs __attribute__((vector_size(32)));

// Of each pair, the one and the other.
inline Columns even(Pairs two) { return (Columns)(two << 16); }
inline Columns odd(Pairs two) { return (Columns)(two & 0xffff0000u); }

// d += a · b for all lanes: `a` 16x16, `b` 16x8. Every element of `d` is summed by k, each
// product and each sum rounded.
inline void multiply(Meeting& meeting) {
    Pairs a[16], b[8];
    Columns d[16];
    unsigned char *const left = (unsigned char*)a, *const right = (unsigned char*)b, *const sums = (unsigned char*)d;
    for (unsigned lane = 0; lane < 32; lane++) {
        const Fragments& its = meeting.of<Fragments>(lane);
        const unsigned row = lane / 4, pair = lane % 4;
        for (unsigned i = 0; i < 4; i++)
            memcpy(left + (row + i % 2 * 8) * 32 + (pair + i / 2 * 4) * 4, &its.a[i], 4);
        for (unsigned i = 0; i < 2; i++) {
            memcpy(right + (pair + i * 4) * 32 + row * 4, &its.b[i], 4);
            memcpy(sums + (row + i * 8) * 32 + pair * 8, &its.d[i * 2], 8);
        }
    }
    Columns even_right[8], odd_right[8];
    for (unsigned k = 0; k < 8; k++) even_right[k] = even(b[k]), odd_right[k] = odd(b[k]);
    // Four rows at a time, since each has to wait for its own sums.
    for (unsigned row = 0; row < 16; row += 4) {
        Columns even_left[4], odd_left[4], *const of = d + row;
        for (unsigned i = 0; i < 4; i++) even_left[i] = even(a[row + i]), odd_left[i] = odd(a[row + i]);
        Columns first = of[0], second = of[1], third = of[2], fourth = of[3];
        for (unsigned k = 0; k < 8; k++) {
            first += even_left[0][k] * even_right[k];
            second += even_left[1][k] * even_right[k];
            third += even_left[2][k] * even_right[k];
            fourth += even_left[3][k] * even_right[k];
            first += odd_left[0][k] * odd_right[k];
            second += odd_left[1][k] * odd_right[k];
            third += odd_left[2][k] * odd_right[k];
            fourth += odd_left[3][k] * odd_right[k];
        }
        of[0] = first, of[1] = second, of[2] = third, of[3] = fourth;
    }
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 2; i++)
            memcpy(&meeting.of<Fragments>(lane).d[i * 2], sums + (lane / 4 + i * 8) * 32 + lane % 4 * 8, 8);
#ifdef __AVX__
    __builtin_ia32_vzeroupper();        // what is left of wide registers slows the library's narrow ones down
#endif
}

} // namespace cuda_on_host

// d += a · b: `a` 16x16 row by row, `b` 16x8 column by column, both bf16, sums
// in f32. A lane holds parts of each as PTX ISA says, "Matrix Fragments for
// mma.m16n8k16 with floating point type".
inline void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                              CUDA_ON_HOST_CALL) {
    using namespace cuda_on_host;
    const unsigned lane = lane_of(here());
    const Fragments mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
    meet({file, line}, WHOLE_WARP, mine, [&](auto of) {
        memcpy(d, of(lane).d, sizeof d);
        return 0;
    }, multiply);
}

// Four 8x8 matrices of 16-bit values; lanes 8i to 8i + 7 name the rows of
// matrix i, 16 bytes each.
inline void ldmatrix_x4(unsigned (&r)[4], const void* row, CUDA_ON_HOST_CALL) {
    using namespace cuda_on_host;
    struct Rows { const unsigned short* of[4]; };
    const unsigned lane = lane_of(here());
    const Rows rows = meet({file, line}, WHOLE_WARP, row, [&](auto of) {
        Rows mine{};
        for (unsigned i = 0; i < 4; i++) mine.of[i] = (const unsigned short*)of(i * 8 + lane / 4);
        return mine;
    });
    for (unsigned i = 0; i < 4; i++) memcpy(&r[i], rows.of[i] + lane % 4 * 2, sizeof r[i]);
}

// The same, every matrix transposed on its way.
inline void ldmatrix_x4_trans(unsigned (&r)[4], const void* row, CUDA_ON_HOST_CALL) {
    using namespace cuda_on_host;
    struct Rows { const unsigned short* of[4][2]; };
    const unsigned lane = lane_of(here());
    const Rows rows = meet({file, line}, WHOLE_WARP, row, [&](auto of) {
        Rows mine{};
        for (unsigned i = 0; i < 4; i++)
            for (unsigned half = 0; half < 2; half++)
                mine.of[i][half] = (const unsigned short*)of(i * 8 + lane % 4 * 2 + half);
        return mine;
    });
    for (unsigned i = 0; i < 4; i++) r[i] = rows.of[i][0][lane / 4] | unsigned(rows.of[i][1][lane / 4]) << 16;
}
