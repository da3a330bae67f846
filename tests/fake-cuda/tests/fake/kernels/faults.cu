// What fails a launch. The lines are named by the tests.
extern "C" __global__ void different_barriers(float* x) {
    if (threadIdx.x < 32) {
        __syncthreads();    // line 4
    } else {
        x[threadIdx.x] = 0;
        __syncthreads();    // line 7
    }
}

extern "C" __global__ void nobody_comes(float* x) {
    float mine = x[threadIdx.x];
    if (threadIdx.x < 31) mine += __shfl_xor_sync(0xffffffffu, mine, 1);    // line 13
    __syncthreads();        // line 14
    x[threadIdx.x] = mine;
}

extern "C" __global__ void two_places(float* x) {
    float mine = x[threadIdx.x];
    if (threadIdx.x % 2) {
        mine += __shfl_xor_sync(0xffffffffu, mine, 1);      // line 21
    } else {
        mine -= __shfl_xor_sync(0xffffffffu, mine, 1);      // line 23
    }
    x[threadIdx.x] = mine;
}

extern "C" __global__ void not_in_mask(float* x) {
    x[threadIdx.x] = __shfl_sync(0x0000ffffu, x[threadIdx.x], 0);       // line 29
}

extern "C" __global__ void outside(float* x) { x[64 + threadIdx.x] = 1; }

extern "C" __global__ void wild(float* x) { *(float*)(size_t)(64 + threadIdx.x) = x[0]; }

extern "C" __global__ void past_dynamic(float* x) {
    DYNAMIC_SHARED(float, shared);
    shared[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void trapped(float* x) {
    if (x[threadIdx.x] == 3) __trap();      // line 42
}

extern "C" __global__ void deep(float* x) {
    if (threadIdx.x != 1) return;
    volatile char large[260 * 1024];
    for (unsigned i = 0; i < sizeof large; i++) large[i] = 1;
    x[0] = large[7];
}

extern "C" __global__ void vectors(float* x) {
    if (threadIdx.x < 4) ((float4*)(x + 1))[threadIdx.x + 4] = ((float4*)(x + 1))[threadIdx.x];     // line 53
}

extern "C" __global__ void misaligned(float* x) {
    __shared__ float shared[8];
    cp_async_16(&shared[0], x + 1);     // line 58
}
