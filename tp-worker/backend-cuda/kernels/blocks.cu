// What blocks of some families need beside the rest: ends with other norms than one RMS norm of
// the residual stream, norms over all heads together, activations without gates, output gates, and
// logits that are scaled. A block of threads takes a row, unless its grid says otherwise.
#include "exp.cuh"
#include "sums.cuh"

constexpr unsigned THREADS = 256;

// The sum over a block, the same in every thread: of the threads' sums in one order. A block may
// take several sums, one behind the other.
__device__ inline float block_sum(float x) {
    __shared__ float sums[THREADS / 32];
    x = warp_sum(x);
    __syncthreads();        // the last sum is read
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    float total = 0;
    for (unsigned warp = 0; warp < THREADS / 32; warp++) total += sums[warp];
    return total;
}

struct EndBlock {
    float* residual;            // [rows, width]
    OPERAND* out;               // [rows, width]
    Sums delta;                 // [rows, width], or nothing
    const float* output;        // [width], or null: the delta is added as it is
    const float* next;          // [width], or null: the residual stream is read as it is
    const float* bias;          // [width] of a layer norm, or null: an RMS norm
    Rows rows;
    unsigned width;
    float output_eps, next_eps;
    unsigned pad;
};
// residual += norm(delta), then out = norm(residual). Every thread keeps to its own columns, so
// a row's bits depend on nothing but the row.
extern "C" __global__ void __launch_bounds__(THREADS) end_block(EndBlock a) {
    begin_after_predecessors();
    if (blockIdx.x >= rows_of(a.rows)) return;
    const size_t row = (size_t)blockIdx.x * a.width;
    const float width = (float)a.width;
    float output_scale = 1;
    if (a.output) {
        float squares = 0;
        for (unsigned i = threadIdx.x; i < a.width; i += THREADS) {
            const float x = sum_of(a.delta, row + i, i);
            squares += x * x;
        }
        output_scale = 1.0f / sqrtf(block_sum(squares) / width + a.output_eps);
    }
    float squares = 0, sum = 0;
    for (unsigned i = threadIdx.x; i < a.width; i += THREADS) {
        float x = a.residual[row + i];
        if (a.delta.count) {
            const float delta = sum_of(a.delta, row + i, i);
            x = __fadd_rn(x, a.output ? __fmul_rn(__fmul_rn(delta, output_scale), a.output[i]) : delta);
            a.residual[row + i] = x;
        }
        squares += x * x;
        sum += x;
    }
    if (!a.next) {
        for (unsigned i = threadIdx.x; i < a.width; i += THREADS) a.out[row + i] = from_f32<OPERAND>(a.residual[row + i]);
        return;
    }
    float mean = 0;
    if (a.bias) {
        mean = block_sum(sum) / width;
        squares = 0;
        for (unsigned i = threadIdx.x; i < a.width; i += THREADS) {
            const float x = a.residual[row + i] - mean;
            squares += x * x;
        }
    }
    const float scale = 1.0f / sqrtf(block_sum(squares) / width + a.next_eps);
    for (unsigned i = threadIdx.x; i < a.width; i += THREADS) {
        const float x = (a.residual[row + i] - mean) * scale * a.next[i];
        a.out[row + i] = from_f32<OPERAND>(a.bias ? x + a.bias[i] : x);
    }
}

struct JoinNorms {
    float* x;                   // [rows, width]
    const float* y;             // [rows, width]
    const float* of_x;          // [width]
    const float* of_y;          // [width]
    Rows rows;
    unsigned width;
    float x_eps, y_eps;
    unsigned pad;
};
// x = norm(x) + norm(y).
extern "C" __global__ void __launch_bounds__(THREADS) join_norms(JoinNorms a) {
    begin_after_predecessors();
    if (blockIdx.x >= rows_of(a.rows)) return;
    const size_t row = (size_t)blockIdx.x * a.width;
    const float width = (float)a.width;
    float of_x = 0, of_y = 0;
    for (unsigned i = threadIdx.x; i < a.width; i += THREADS) {
        const float x = a.x[row + i], y = a.y[row + i];
        of_x += x * x;
        of_y += y * y;
    }
    const float x_scale = 1.0f / sqrtf(block_sum(of_x) / width + a.x_eps);
    const float y_scale = 1.0f / sqrtf(block_sum(of_y) / width + a.y_eps);
    for (unsigned i = threadIdx.x; i < a.width; i += THREADS) {
        const float x = __fmul_rn(__fmul_rn(a.x[row + i], x_scale), a.of_x[i]);
        a.x[row + i] = __fadd_rn(x, __fmul_rn(__fmul_rn(a.y[row + i], y_scale), a.of_y[i]));
    }
}

struct SquareSums {
    const float* qkv;           // [rows, width]: queries, then keys, then values
    float* sums;                // [rows, 2]
    Rows rows;
    unsigned width, queries, keys, head_dim;
    unsigned first, served, group;      // a key head counts if it serves its first query head
    unsigned pad;
};
// sums = [Σ q², Σ k²], of the key heads that count.
extern "C" __global__ void __launch_bounds__(THREADS) square_sums(SquareSums a) {
    begin_after_predecessors();
    if (blockIdx.x >= rows_of(a.rows)) return;
    const float* x = a.qkv + (size_t)blockIdx.x * a.width;
    float queries = 0, keys = 0;
    for (unsigned i = threadIdx.x; i < a.queries; i += THREADS) queries += x[i] * x[i];
    x += a.queries;
    for (unsigned i = threadIdx.x; i < a.keys; i += THREADS)
        if ((a.first + i / a.head_dim * a.served) % a.group == 0) keys += x[i] * x[i];
    queries = block_sum(queries);
    keys = block_sum(keys);
    if (threadIdx.x == 0) {
        a.sums[2 * blockIdx.x] = queries;
        a.sums[2 * blockIdx.x + 1] = keys;
    }
}

struct WholeNorm {
    float* qkv;                 // [rows, width]: queries, then keys, then values
    const float* sums;          // [rows, 2]: of the squares of all ranks
    const float* query_weight;  // [queries]
    const float* key_weight;    // [keys]
    Rows rows;
    unsigned width, queries, keys;
    float query_width, key_width;       // columns on all ranks
    float eps;
};
// Norms queries together, and keys together.
extern "C" __global__ void __launch_bounds__(THREADS) whole_norm(WholeNorm a) {
    begin_after_predecessors();
    if (blockIdx.x >= rows_of(a.rows)) return;
    float* x = a.qkv + (size_t)blockIdx.x * a.width;
    const float* sums = a.sums + 2 * blockIdx.x;
    const float query = 1.0f / sqrtf(sums[0] / a.query_width + a.eps);
    const float key = 1.0f / sqrtf(sums[1] / a.key_width + a.eps);
    for (unsigned i = threadIdx.x; i < a.queries + a.keys; i += THREADS)
        x[i] = i < a.queries ? x[i] * query * a.query_weight[i] : x[i] * key * a.key_weight[i - a.queries];
}

struct Activate {
    const float* x;             // [rows, width]
    OPERAND* out;               // [rows, width]
    Rows rows;
    unsigned width, activation;
};
// out = f(x). Grid: (most rows, columns / 256).
extern "C" __global__ void __launch_bounds__(THREADS) activate(Activate a) {
    begin_after_predecessors();
    const unsigned column = blockIdx.y * THREADS + threadIdx.x;
    if (blockIdx.x >= rows_of(a.rows) || column >= a.width) return;
    const size_t at = (size_t)blockIdx.x * a.width + column;
    a.out[at] = from_f32<OPERAND>(activated(a.activation, a.x[at]));
}

struct SigmoidGate {
    const float* gate;          // [rows, width], or [rows, 1] for all columns
    OPERAND* out;               // [rows, width]
    Rows rows;
    unsigned width, whole;      // true if each column has a gate of its own
};
// out = out · σ(gate). Grid: (most rows, columns / 256).
extern "C" __global__ void __launch_bounds__(THREADS) sigmoid_gate(SigmoidGate a) {
    begin_after_predecessors();
    const unsigned column = blockIdx.y * THREADS + threadIdx.x;
    if (blockIdx.x >= rows_of(a.rows) || column >= a.width) return;
    const size_t at = (size_t)blockIdx.x * a.width + column;
    a.out[at] = from_f32<OPERAND>(__fmul_rn(to_f32(a.out[at]), sigmoid_of(a.gate[a.whole ? at : blockIdx.x])));
}

struct ScaleLogits {
    float* logits;              // [rows, width]
    Rows rows;
    unsigned width;
    float divisor;
    float softcap;              // 0: none
    unsigned pad;
};
// Divides logits, then bounds them. Grid: (most rows, columns / 256).
extern "C" __global__ void __launch_bounds__(THREADS) scale_logits(ScaleLogits a) {
    begin_after_predecessors();
    const unsigned column = blockIdx.y * THREADS + threadIdx.x;
    if (blockIdx.x >= rows_of(a.rows) || column >= a.width) return;
    float& logit = a.logits[(size_t)blockIdx.x * a.width + column];
    const float x = logit / a.divisor;
    logit = a.softcap > 0 ? a.softcap * tanhf(x / a.softcap) : x;
}
