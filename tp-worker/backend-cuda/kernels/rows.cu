// Whole rows, looked up and moved.
#include "batch.cuh"

struct Embed {
    const OPERAND* table;       // [table_rows, width]
    const unsigned* batch;
    float* out;                 // [tokens, width]
    unsigned first, table_rows, width, most;
};
// out[i] = table[tokens[i] - first], zero where the token lies outside.
// Grid: (most tokens, columns / 256).
extern "C" __global__ void __launch_bounds__(256) embed(Embed a) {
    const unsigned row = blockIdx.x, column = blockIdx.y * 256 + threadIdx.x;
    if (row >= min(a.batch[TOKENS], a.most) || column >= a.width) return;
    // A token before `first` wraps around and lies outside, too.
    const unsigned index = list(a.batch, TOKENS_AT)[row] - a.first;
    const bool inside = index < a.table_rows;
    a.out[(size_t)row * a.width + column] = inside ? to_f32(a.table[(size_t)index * a.width + column]) : 0.0f;
}

// Indices: those of a list, all in turn (null), or a list of a batch.
struct Indices {
    const unsigned* at;
    unsigned header;            // of the batch at `at`; 0: `at` is the list
    unsigned pad;
};
__device__ inline unsigned index_of(const Indices& indices, unsigned i) {
    if (!indices.at) return i;
    return indices.header ? list(indices.at, (Header)indices.header)[i] : indices.at[i];
}

struct CopyRows {
    const unsigned char* x;
    unsigned char* out;
    Indices from, to;
    Rows rows;
    // Units of 16, 4 or 2 bytes: copied, and from one row to the next; and the
    // rows that there are.
    unsigned units, x_stride, out_stride, x_rows, out_rows, pad;
};
// out[to[i]] = x[from[i]]. Grid: (most rows, units / 256).
template <class Unit> __device__ inline void copy_units(const CopyRows& a) {
    const unsigned unit = blockIdx.y * 256 + threadIdx.x;
    if (blockIdx.x >= rows_of(a.rows) || unit >= a.units) return;
    const unsigned from = index_of(a.from, blockIdx.x), to = index_of(a.to, blockIdx.x);
    if (from >= a.x_rows || to >= a.out_rows) return;
    ((Unit*)a.out)[(size_t)to * a.out_stride + unit] = ((const Unit*)a.x)[(size_t)from * a.x_stride + unit];
}
extern "C" __global__ void __launch_bounds__(256) copy_rows_16(CopyRows a) { copy_units<uint4>(a); }
extern "C" __global__ void __launch_bounds__(256) copy_rows_4(CopyRows a) { copy_units<unsigned>(a); }
extern "C" __global__ void __launch_bounds__(256) copy_rows_2(CopyRows a) { copy_units<unsigned short>(a); }
