// The product of tensor cores.
#pragma once

#include "tensor_core.h"

namespace cuda_on_host {

// Of eight columns of a row, side by side: sums, and pairs of bf16 that follow each other in
// the direction that is summed.
typedef float Columns __attribute__((vector_size(32)));
typedef unsigned Pairs __attribute__((vector_size(32)));

// Of each pair, the one and the other.
inline Columns even(Pairs two) { return (Columns)(two << 16); }
inline Columns odd(Pairs two) { return (Columns)(two & 0xffff0000u); }

void multiply(Meeting& meeting) {
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
