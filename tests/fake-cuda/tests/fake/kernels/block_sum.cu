// out[block] = the sum of the block's values; of which barrier WITHOUT names
// there is none.
#define BARRIER(number) if (number != WITHOUT) __syncthreads()

template <unsigned N> __device__ inline float sum_of_block(float mine) {
    __shared__ float part[N];
    const unsigned i = threadIdx.x;
    part[i] = mine;
    BARRIER(1);
    for (unsigned half = N / 2; half > 0; half /= 2) {
        if (i < half) part[i] += part[i + half];
        BARRIER(2);
    }
    return part[0];
}

extern "C" __global__ void __launch_bounds__(THREADS) block_sum(const float* x, float* out) {
    const float sum = sum_of_block<THREADS>(x[blockIdx.x * THREADS + threadIdx.x]);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// Reads one value behind the shared array.
extern "C" __global__ void __launch_bounds__(THREADS) behind(const float* x, float* out) {
    __shared__ float part[THREADS];
    part[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = part[threadIdx.x + 1];
}
