// What is done to every element by itself. Grids: (most rows, columns / 256).
#include "device.cuh"

struct SiluMul {
    const float* gate_up;       // [rows, 2 · width], the gate first
    OPERAND* out;               // [rows, width]
    Rows rows;
    unsigned width, pad;
};
// out = silu(gate) · up (Shazeer, arXiv:2002.05202)
extern "C" __global__ void __launch_bounds__(256) silu_mul(SiluMul a) {
    const unsigned row = blockIdx.x, column = blockIdx.y * 256 + threadIdx.x;
    if (row >= rows_of(a.rows) || column >= a.width) return;
    const float* both = a.gate_up + (size_t)row * 2 * a.width;
    const float gate = both[column], up = both[a.width + column];
    a.out[(size_t)row * a.width + column] = from_f32<OPERAND>(gate / (1.0f + expf(-gate)) * up);
}

struct Add {
    float* x;                   // [rows, width]
    const float* y;
    Rows rows;
    unsigned width;
    unsigned y_stride;          // from row to row of `y`; 0: the same one for all
};
// x += y: a bias, or one more part of a sum.
extern "C" __global__ void __launch_bounds__(256) add(Add a) {
    const unsigned row = blockIdx.x, column = blockIdx.y * 256 + threadIdx.x;
    if (row >= rows_of(a.rows) || column >= a.width) return;
    a.x[(size_t)row * a.width + column] += a.y[(size_t)row * a.y_stride + column];
}
