// RMS norms over groups of columns, of which a rank may have a part: the squares of each group, which
// ranks add, and the norm. Every number has the order and the roundings that processors have.
#include "device.cuh"

constexpr unsigned THREADS = 256, STAGED = 8 * THREADS;

// Columns of a rank, and groups of all ranks.
struct Groups {
    unsigned columns, first;    // the rank's columns, and the number of the first among all
    unsigned count, width;      // groups, and columns of one
};
struct GroupSquares {
    const float* x;             // [rows, columns]
    float* sums;                // [rows, groups]
    Rows rows;
    Groups groups;
};
// sums = Σ x² of the rank's columns of a group: column `i` of them goes to partial sum i mod 32, one
// of each lane of a warp. The other warps bring it squares. Grid: (most rows, groups).
extern "C" __global__ void __launch_bounds__(THREADS) group_squares(GroupSquares a) {
    begin_after_predecessors();
    if (blockIdx.x >= rows_of(a.rows)) return;
    __shared__ float squares[STAGED];
    const Groups& of = a.groups;
    const unsigned group = blockIdx.y, last = of.first + of.columns;
    const unsigned begin = min(max(group * of.width, of.first), last), end = max(begin, min((group + 1) * of.width, last));
    const float* x = a.x + (size_t)blockIdx.x * of.columns + (begin - of.first);
    float sum = 0;
    for (unsigned first = 0; first < end - begin; first += STAGED) {
        const unsigned count = min(STAGED, end - begin - first);
        for (unsigned i = threadIdx.x; i < count; i += THREADS) squares[i] = __fmul_rn(x[first + i], x[first + i]);
        __syncthreads();        // squares are there
        if (threadIdx.x < 32)
            for (unsigned i = threadIdx.x; i < count; i += 32) sum = __fadd_rn(sum, squares[i]);
        __syncthreads();        // squares are summed
    }
    if (threadIdx.x >= 32) return;
    sum = warp_sum(sum);
    if (threadIdx.x == 0) a.sums[blockIdx.x * of.count + group] = sum;
}

struct GroupNorm {
    const float* x;             // [rows, columns]
    const float* sums;          // [rows, groups]: of the squares of all ranks
    const float* weight;        // [columns]
    OPERAND* out;               // [rows, columns]
    Rows rows;
    Groups groups;
    float eps;
    unsigned pad;
};
// out = x / rms(x) · weight. Grid: (most rows, columns / THREADS).
extern "C" __global__ void __launch_bounds__(THREADS) group_norm(GroupNorm a) {
    begin_after_predecessors();
    const Groups& of = a.groups;
    const unsigned column = blockIdx.y * THREADS + threadIdx.x;
    if (blockIdx.x >= rows_of(a.rows) || column >= of.columns) return;
    const float sum = a.sums[blockIdx.x * of.count + (of.first + column) / of.width];
    const float scale = __fdiv_rn(1.0f, sqrtf(__fadd_rn(__fdiv_rn(sum, (float)of.width), a.eps)));
    const size_t at = (size_t)blockIdx.x * of.columns + column;
    a.out[at] = from_f32<OPERAND>(__fmul_rn(__fmul_rn(a.x[at], scale), a.weight[column]));
}
