// What warps do on matrices: mma.sync and ldmatrix, by PTX's layouts.
#pragma once

#include "warp.h"

namespace cuda_on_host {

constexpr unsigned WHOLE_WARP = 0xffffffffu;

// The 16 bits at `half` of a register, as bf16.
inline float bf16_of(unsigned two, unsigned half) { return __uint_as_float((two >> (16 * half) & 0xffffu) << 16); }

} // namespace cuda_on_host

// d += a · b: `a` 16x16 row by row, `b` 16x8 column by column, both bf16, sums
// in f32. A lane holds parts of each as PTX ISA says, "Matrix Fragments for
// mma.m16n8k16 with floating point type".
inline void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                              CUDA_ON_HOST_CALL) {
    using namespace cuda_on_host;
    struct Fragments { unsigned a[4], b[2]; };
    struct Sums { float of[4]; };
    const unsigned lane = lane_of(here());
    const Fragments mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    const Sums sums = meet({file, line}, WHOLE_WARP, mine, [&](auto of) {
        Sums result = {{d[0], d[1], d[2], d[3]}};
        for (unsigned lower = 0; lower < 2; lower++)
            for (unsigned k = 0; k < 16; k++) {
                // Rows `lane / 4` and 8 further; pairs of k in lanes of a group.
                const unsigned pair = k % 8 / 2, far = k / 8, half = k % 2;
                const float left = bf16_of(of(lane / 4 * 4 + pair).a[far * 2 + lower], half);
                for (unsigned right = 0; right < 2; right++) {
                    const unsigned column = lane % 4 * 2 + right;
                    result.of[lower * 2 + right] += left * bf16_of(of(column * 4 + pair).b[far], half);
                }
            }
        return result;
    });
    for (unsigned i = 0; i < 4; i++) d[i] = sums.of[i];
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
