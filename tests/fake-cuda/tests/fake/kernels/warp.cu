// What lanes exchange. One warp each.

// Rows of 32: xor by 5, down by 3, up by 3, from lane 7, inside groups of 8 down
// by 2, and down by 2 in the two halves of the warp apart.
extern "C" __global__ void shuffles(unsigned* out) {
    const unsigned lane = threadIdx.x, all = 0xffffffffu, mine = lane * 10;
    out[lane] = __shfl_xor_sync(all, mine, 5);
    out[32 + lane] = __shfl_down_sync(all, mine, 3);
    out[64 + lane] = __shfl_up_sync(all, mine, 3);
    out[96 + lane] = __shfl_sync(all, mine, 7);
    out[128 + lane] = __shfl_down_sync(all, mine, 2, 8);
    if (lane < 16) {
        out[160 + lane] = __shfl_down_sync(0x0000ffffu, mine, 2, 16);
    } else {
        __syncwarp(0xffff0000u);
        out[160 + lane] = __shfl_down_sync(0xffff0000u, mine, 2, 16);
    }
}

extern "C" __global__ void votes(unsigned* out) {
    const unsigned lane = threadIdx.x, all = 0xffffffffu;
    out[lane] = __ballot_sync(all, lane % 3 == 0);
    out[32 + lane] = __any_sync(all, lane == 9);
    out[64 + lane] = __all_sync(all, lane < 31);
    if (lane >= 20) return;     // who has returned is not waited for
    out[96 + lane] = __ballot_sync(all, 1);
}

// d = a · b twice: 16x16 by 16x8, with b given column by column, and row by row.
extern "C" __global__ void tile_product(const unsigned short* a, const unsigned short* columns,
                                        const unsigned short* rows, float* d) {
    __shared__ unsigned short left[16 * 16], across[8 * 16], down[16 * 8];
    const unsigned lane = threadIdx.x;
    for (unsigned i = lane; i < 16 * 16; i += 32) left[i] = a[i];
    for (unsigned i = lane; i < 8 * 16; i += 32) {
        across[i] = columns[i];
        down[i] = rows[i];
    }
    __syncwarp();
    unsigned fa[4], fb[4], ft[4];
    ldmatrix_x4(fa, &left[lane % 16 * 16 + lane / 16 * 8]);
    ldmatrix_x4(fb, &across[lane % 8 * 16 + lane / 8 % 2 * 8]);
    ldmatrix_x4_trans(ft, &down[lane % 16 * 8]);
    const unsigned first[2] = {fb[0], fb[1]}, second[2] = {ft[0], ft[1]};
    float sum[2][4] = {};
    mma_m16n8k16_bf16(sum[0], fa, first);
    mma_m16n8k16_bf16(sum[1], fa, second);
    for (unsigned way = 0; way < 2; way++)
        for (unsigned i = 0; i < 4; i++)
            d[way * 128 + (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[way][i];
}

// out[i] = 2 · in[i] for i < n, and zeros up to whole tiles of 128, which come
// through two stages of asynchronous copies.
extern "C" __global__ void staged(const float* in, float* out, unsigned n, unsigned tiles) {
    __shared__ float stage[2][128];
    const unsigned at = threadIdx.x * 4;
    auto fetch = [&](unsigned tile) {
        const unsigned first = tile * 128 + at, left = first < n ? n - first : 0;
        cp_async_16(&stage[tile % 2][at], in + (left ? first : 0), min(16u, left * 4));
    };
    fetch(0);
    cp_async_commit_group();
    for (unsigned tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) fetch(tile + 1);
        cp_async_commit_group();
#ifndef NO_WAIT
        cp_async_wait_group<1>();
#endif
        __syncthreads();
        for (unsigned i = threadIdx.x; i < 128; i += 32) out[tile * 128 + i] = 2 * stage[tile % 2][i];
        __syncthreads();
    }
}
