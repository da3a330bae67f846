// A step of a chain that may begin before the step before it is done; FAULT plants one fault.
enum Fault { NONE, READS, WRITES, COPIES, LEAVES };

// to = 2 · from + table, for 64 values a block.
extern "C" __global__ void step(const float* from, float* to, const float* table) {
    __shared__ __align__(16) float staged[64];
    const unsigned thread = threadIdx.x, i = blockIdx.x * 64 + thread;
    griddepcontrol_launch_dependents();
    const float own = table[i];         // nobody writes this
    float x = 0;
    if (FAULT == READS) x = from[i];
    if (FAULT == WRITES) to[i] = -1;
    if (FAULT == COPIES && thread % 4 == 0) cp_async_16(staged + thread, from + i, 16);
    if (FAULT == LEAVES && blockIdx.x == 1) return;
    griddepcontrol_wait();
    if (FAULT != COPIES && thread % 4 == 0) cp_async_16(staged + thread, from + i, 16);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    __syncthreads();    // all values are there
    if (FAULT != READS) x = staged[thread];
    to[i] = 2 * x + own;
}

// One thread waits for its block.
extern "C" __global__ void one_waits(const float* from, float* to, const float* table) {
    const unsigned i = blockIdx.x * 64 + threadIdx.x;
    if (threadIdx.x == 0) griddepcontrol_wait();
    __syncthreads();    // earlier work is done
    to[i] = 2 * from[i] + table[i];
}
