// out[block] = the sum of the block's values; of which barrier WITHOUT names
// there is none.
#define BARRIER(number) if (number != WITHOUT) __syncthreads()

extern "C" __global__ void __launch_bounds__(THREADS) block_sum(const float* x, float* out) {
    __shared__ float part[THREADS];
    const unsigned i = threadIdx.x;
    part[i] = x[blockIdx.x * THREADS + i];
    BARRIER(1);
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (i < half) part[i] += part[i + half];
        BARRIER(2);
    }
    if (i == 0) out[blockIdx.x] = part[0];
}

// Reads one value behind the shared array.
extern "C" __global__ void __launch_bounds__(THREADS) behind(const float* x, float* out) {
    __shared__ float part[THREADS];
    part[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = part[threadIdx.x + 1];
}
