// Stacks that are switched between by hand.
#pragma once

#include "sanitize.h"

// Saves what a call preserves on the stack in use, leaves its pointer in
// `*from`, and goes on where the stack `to` was left.
extern "C" __attribute__((visibility("hidden"))) void cuda_on_host_switch(void** from, void* to);

#ifdef CUDA_ON_HOST_RUNTIME
#if defined(__x86_64__)
asm(R"(.pushsection .text
.type cuda_on_host_switch,@function
cuda_on_host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cuda_on_host_switch, .-cuda_on_host_switch
.popsection)");
#elif defined(__aarch64__)
asm(R"(.pushsection .text
.type cuda_on_host_switch,%function
cuda_on_host_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size cuda_on_host_switch, .-cuda_on_host_switch
.popsection)");
#else
#error "fibers are written for x86-64 and aarch64"
#endif
#endif

namespace cuda_on_host {

struct Fiber {
    void* stack_pointer = nullptr;
    const void* bottom = nullptr;   // lowest address of the stack
#ifdef CUDA_ON_HOST_ASAN
    void* fake_stack = nullptr;
    size_t size = 0;
#endif
#ifdef CUDA_ON_HOST_TSAN
    void* tsan = nullptr;
#endif
};

// What a stack begins with at its lowest address; gone means overflow.
constexpr uint64_t STACK_END = 0x5afe57ac5afe57ac;

// Prepares `fiber` to begin with `entry`, which never returns, on `size` bytes
// from `bottom`.
CUDA_ON_HOST_UNCHECKED inline void prepare(Fiber& fiber, unsigned char* bottom, size_t size, void (*entry)()) {
#ifdef CUDA_ON_HOST_ASAN
    ASAN_UNPOISON_MEMORY_REGION(bottom, size);      // of frames that never returned
    fiber.fake_stack = nullptr;
    fiber.size = size;
#endif
    fiber.bottom = bottom;
    memcpy(bottom, &STACK_END, sizeof STACK_END);
    void** top = (void**)(bottom + size);   // a multiple of 16
#if defined(__x86_64__)
    top[-1] = nullptr;                      // as behind a call
    top[-2] = (void*)entry;
    for (int saved = 3; saved <= 8; saved++) top[-saved] = nullptr;
    fiber.stack_pointer = top - 8;
#else
    for (int saved = 1; saved <= 20; saved++) top[-saved] = nullptr;
    top[-20 + 11] = (void*)entry;           // x30, behind x29 at 80
    fiber.stack_pointer = top - 20;
#endif
#ifdef CUDA_ON_HOST_TSAN
    fiber.tsan = __tsan_create_fiber(0);
#endif
}

inline bool overflowed(const Fiber& fiber) { return *(const volatile uint64_t*)fiber.bottom != STACK_END; }

// Goes on with `to`; comes back when somebody goes on with `from`.
CUDA_ON_HOST_UNCHECKED inline void go_on(Fiber& from, Fiber& to) {
#ifdef CUDA_ON_HOST_ASAN
    __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.size);
#endif
#ifdef CUDA_ON_HOST_TSAN
    __tsan_switch_to_fiber(to.tsan, __tsan_switch_to_fiber_no_sync);
#endif
    cuda_on_host_switch(&from.stack_pointer, to.stack_pointer);
#ifdef CUDA_ON_HOST_ASAN
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

// The first thing on a new stack: tells the sanitizer where `before` runs.
inline void arrived(Fiber& before) {
#ifdef CUDA_ON_HOST_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &before.bottom, &before.size);
#endif
    (void)before;
}

} // namespace cuda_on_host
