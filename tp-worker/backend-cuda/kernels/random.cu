// Random numbers in place of a checkpoint's, as `RandomNumbers` of the crate of
// backends makes them, bit for bit. Grid: (rows, columns / 256).
#include "device.cuh"

struct Random {
    OPERAND* out;               // [rows, cols]
    unsigned long long key;
    // Of the first row's first column in its tensor; and from one row to the next.
    unsigned long long first, stride;
    float step;
    unsigned rows, cols, pad;
};
extern "C" __global__ void __launch_bounds__(256) random_rows(Random a) {
    const unsigned row = blockIdx.x, column = blockIdx.y * 256 + threadIdx.x;
    if (row >= a.rows || column >= a.cols) return;
    const unsigned long long index = a.first + row * a.stride + column;
    unsigned long long x = a.key + (index + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    const int whole = (int)(x >> 40) - (1 << 23);
    // Checkpoints hold bfloat16, whatever they are multiplied in.
    const bf16 number = from_f32<bf16>((float)whole * a.step);
    a.out[(size_t)row * a.cols + column] = from_f32<OPERAND>(to_f32(number));
}
