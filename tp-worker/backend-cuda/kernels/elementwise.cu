// What is done to every element by itself. Grids: (most rows, columns / 256).
#include "sums.cuh"

struct SiluMul {
    Sums gate_up;               // [rows, 2 · width], the gate first
    OPERAND* out;               // [rows, width]
    Rows rows;
    unsigned width, activation;
};
// out = f(gate) · up, with SiLU or another activation f
extern "C" __global__ void __launch_bounds__(256) silu_mul(SiluMul a) {
    begin_after_predecessors();
    const unsigned row = blockIdx.x, column = blockIdx.y * 256 + threadIdx.x;
    if (row >= rows_of(a.rows) || column >= a.width) return;
    const size_t both = (size_t)row * 2 * a.width;
    const float gate = sum_of(a.gate_up, both + column, column);
    const float up = sum_of(a.gate_up, both + a.width + column, a.width + column);
    a.out[(size_t)row * a.width + column] = from_f32<OPERAND>(gated(a.activation, gate, up));
}
