// What the sanitizers have to be told of fibers and of the shim's own accesses.
#pragma once

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CUDA_ON_HOST_TSAN 1
#endif
#if __has_feature(address_sanitizer)
#define CUDA_ON_HOST_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define CUDA_ON_HOST_TSAN 1
#endif
#if defined(__SANITIZE_ADDRESS__)
#define CUDA_ON_HOST_ASAN 1
#endif

#ifdef CUDA_ON_HOST_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char*, int);
extern "C" void AnnotateIgnoreReadsEnd(const char*, int);
extern "C" void AnnotateIgnoreWritesBegin(const char*, int);
extern "C" void AnnotateIgnoreWritesEnd(const char*, int);
#endif
#ifdef CUDA_ON_HOST_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Memory that is touched on purpose where the sanitizers would object.
#define CUDA_ON_HOST_UNCHECKED __attribute__((noinline, no_sanitize("thread"), no_sanitize("address")))

namespace cuda_on_host {

// While one lives, what this thread reads and writes is the shim's business
// and none of the kernel's.
struct Own {
#ifdef CUDA_ON_HOST_TSAN
    Own() {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
    ~Own() {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
#else
    Own() {}
    ~Own() {}
#endif
    Own(const Own&) = delete;
    Own& operator=(const Own&) = delete;
};

// What was done before `release` of an address is seen after its `acquire`.
inline void release(void* at) {
#ifdef CUDA_ON_HOST_TSAN
    __tsan_release(at);
#endif
    (void)at;
}
inline void acquire(void* at) {
#ifdef CUDA_ON_HOST_TSAN
    __tsan_acquire(at);
#endif
    (void)at;
}

} // namespace cuda_on_host
