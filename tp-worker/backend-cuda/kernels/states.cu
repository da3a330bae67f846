// Copies of whole states of recurrent layers.
#include "device.cuh"

constexpr unsigned THREADS = 128;

struct CopyStates {
    void* values;               // [layers, states, units]
    const uint2* moves;         // (from, to)
    Rows rows;                  // moves that there are
    unsigned states, units;
};
// Copies parts of states in all layers, one move after the other: each thread has a unit of every
// state to itself. Grid: (units / THREADS, layers).
template <class Unit> __device__ inline void copy_units(const CopyStates& a) {
    begin_after_predecessors();
    const unsigned unit = blockIdx.x * THREADS + threadIdx.x;
    if (unit >= a.units) return;
    Unit* layer = (Unit*)a.values + (size_t)blockIdx.y * a.states * a.units;
    const unsigned count = rows_of(a.rows);
    for (unsigned i = 0; i < count; i++) {
        const uint2 move = a.moves[i];
        if (move.x < a.states && move.y < a.states)
            layer[(size_t)move.y * a.units + unit] = layer[(size_t)move.x * a.units + unit];
    }
}
extern "C" __global__ void __launch_bounds__(THREADS) copy_states_16(CopyStates a) { copy_units<uint4>(a); }
extern "C" __global__ void __launch_bounds__(THREADS) copy_states_4(CopyStates a) { copy_units<unsigned>(a); }
