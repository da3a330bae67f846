// The simplest kernels, a thread per value.
extern "C" __global__ void add(float* x, float by, unsigned n) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += by;
}

extern "C" __global__ void scale(const float* x, float* out, float by, unsigned n) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * by;
}

// Where each thread is: block and thread, three coordinates each, and the
// sizes of both.
struct Place { uint3 block, thread; dim3 grid, size; };
extern "C" __global__ void places(Place* out) {
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = {blockIdx, threadIdx, gridDim, blockDim};
}

// A parameter of every alignment.
struct __align__(16) Wide { float4 of; };
extern "C" __global__ void parameters(float* out, unsigned char a, Wide b, unsigned short c, double d) {
    out[0] = a + b.of.x + b.of.w + c + float(d);
}

extern "C" __global__ void __launch_bounds__(32) narrow(float* x) { x[threadIdx.x] = threadIdx.x; }

extern "C" __global__ void dynamic(float* out, unsigned n) {
    DYNAMIC_SHARED(float, shared);
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) shared[i] = i;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) out[i] = shared[n - 1 - i];
}

// What shared memory holds before anybody writes.
extern "C" __global__ void fresh(float* out) {
    __shared__ float fixed[32];
    DYNAMIC_SHARED(float, moving);
    out[blockIdx.x * 64 + threadIdx.x] = fixed[threadIdx.x];
    out[blockIdx.x * 64 + 32 + threadIdx.x] = moving[threadIdx.x];
    __syncthreads();
    fixed[threadIdx.x] = moving[threadIdx.x] = 1;
}

extern "C" __global__ void count(unsigned* counters, float* sum) {
    atomicAdd(&counters[0], 1u);
    atomicMax(&counters[1], blockIdx.x * blockDim.x + threadIdx.x);
    atomicMin(&counters[2], blockIdx.x * blockDim.x + threadIdx.x);
    atomicAdd(sum, 0.5f);
}
