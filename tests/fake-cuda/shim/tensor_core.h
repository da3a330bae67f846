// What warps do on matrices: mma.sync and ldmatrix, by PTX's layouts.
#pragma once

#include "warp.h"

namespace cuda_on_host {

constexpr unsigned WHOLE_WARP = 0xffffffffu;

// A lane's parts of the matrices of a product.
struct Fragments { unsigned a[4], b[2]; float d[4]; };

// d += a · b for all lanes: `a` 16x16, `b` 16x8. Every element of `d` is summed by k, each
// product and each sum rounded. Of the runtime, in multiply.h.
void multiply(Meeting& meeting);

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
