// Whole rows, looked up and moved.
#include "batch.cuh"

struct Embed {
    const OPERAND* table;       // [table_rows, width]
    const unsigned* batch;
    float* out;                 // [tokens, width]
    unsigned first, table_rows, width, most;
    float scale;
    unsigned pad;
};
// out[i] = table[tokens[i] - first] · scale, zero where the token lies outside.
// Grid: (most tokens, columns / 256).
extern "C" __global__ void __launch_bounds__(256) embed(Embed a) {
    begin_after_predecessors();
    const unsigned row = blockIdx.x, column = blockIdx.y * 256 + threadIdx.x;
    if (row >= min(a.batch[TOKENS], a.most) || column >= a.width) return;
    // A token before `first` wraps around and lies outside, too.
    const unsigned index = list(a.batch, TOKENS_AT)[row] - a.first;
    const bool inside = index < a.table_rows;
    a.out[(size_t)row * a.width + column] = inside ? to_f32(a.table[(size_t)index * a.width + column]) * a.scale : 0.0f;
}

// Indices: all in turn (null), those of a list, or some of a batch's list.
struct Indices {
    const unsigned* at;
    unsigned header;            // of the batch at `at`; 0: `at` is the list
    unsigned first;             // of that list
};
__device__ inline unsigned index_of(const Indices& indices, unsigned i) {
    if (!indices.at) return i;
    const unsigned* from = indices.header ? list(indices.at, (Header)indices.header) : indices.at;
    return from[indices.first + i];
}

struct CopyRows {
    const void* x;
    void* out;
    Indices from, to;
    Rows rows;
    // Units (of 16, 4 or 2 bytes, or floats that are converted): copied, and from
    // one row to the next; where they begin in a row of `out`; and the rows that
    // there are.
    unsigned units, x_stride, out_stride, first, x_rows, out_rows;
};
template <class T> __device__ inline void put(T& to, const T& from) { to = from; }
__device__ inline void put(bf16& to, const float& from) { to = from_f32<bf16>(from); }
__device__ inline void put(float& to, const bf16& from) { to = to_f32(from); }
// out[to[i], first..] = x[from[i]]. Grid: (most rows, units / 256).
template <class From, class To> __device__ inline void copy_rows(const CopyRows& a) {
    begin_after_predecessors();
    const unsigned unit = blockIdx.y * 256 + threadIdx.x;
    if (blockIdx.x >= rows_of(a.rows) || unit >= a.units) return;
    const unsigned from = index_of(a.from, blockIdx.x), to = index_of(a.to, blockIdx.x);
    if (from >= a.x_rows || to >= a.out_rows) return;
    const From& x = ((const From*)a.x)[(size_t)from * a.x_stride + unit];
    put(((To*)a.out)[(size_t)to * a.out_stride + a.first + unit], x);
}
extern "C" __global__ void __launch_bounds__(256) copy_rows_16(CopyRows a) { copy_rows<uint4, uint4>(a); }
extern "C" __global__ void __launch_bounds__(256) copy_rows_4(CopyRows a) { copy_rows<unsigned, unsigned>(a); }
extern "C" __global__ void __launch_bounds__(256) copy_rows_2(CopyRows a) { copy_rows<unsigned short, unsigned short>(a); }
extern "C" __global__ void __launch_bounds__(256) rows_to_bf16(CopyRows a) { copy_rows<float, bf16>(a); }
extern "C" __global__ void __launch_bounds__(256) rows_to_f32(CopyRows a) { copy_rows<bf16, float>(a); }

constexpr unsigned JOINED = 31;     // ranks of a launch, at most
struct JoinColumns {
    const float* parts;         // of these ranks in turn: [rows, its columns]
    const float* x;             // [rows, its columns]: those of rank `own`, whose part holds anything
    float* out;                 // [rows, width]
    unsigned rows, width, ranks, own;
    unsigned starts[JOINED + 1];    // where each rank's columns begin in `out`, and where the last one's end
};
// Makes whole rows of ranks' columns. Grid: (rows, columns / 256).
extern "C" __global__ void __launch_bounds__(256) join_columns(JoinColumns a) {
    begin_after_predecessors();
    const unsigned row = blockIdx.x, column = a.starts[0] + blockIdx.y * 256 + threadIdx.x;
    if (row >= a.rows || column >= a.starts[a.ranks]) return;
    unsigned rank = 0;
    while (column >= a.starts[rank + 1]) rank++;
    const float* part = rank == a.own ? a.x : a.parts + (size_t)a.rows * (a.starts[rank] - a.starts[0]);
    const unsigned width = a.starts[rank + 1] - a.starts[rank];
    a.out[(size_t)row * a.width + column] = part[(size_t)row * width + column - a.starts[rank]];
}
