// cp.async: copies to shared memory that land when they are waited for, or, some
// of them, at once: who still reads what was there must not have begun them. A copy
// that begins before earlier work is done may also read too early: what it reads must
// not change until it lands.
#pragma once

#include "block.h"

namespace cuda_on_host {

// Of the runtime, in copies.h.

// Begins a copy of `bytes` bytes to a place of `all`.
void begin_copy(void* shared, const void* global, unsigned bytes, unsigned all, Place place);
void commit_copies();
// Until no more than the newest groups, `allowed` of them, are under way.
void land_copies(unsigned allowed);
void prefetch(const void* global, unsigned bytes, Place place);

} // namespace cuda_on_host

inline void cp_async_16(void* shared, const void* global, unsigned bytes = 16,
                        CUDA_ON_HOST_CALL) {
    cuda_on_host::begin_copy(shared, global, bytes, 16, {file, line});
}
inline void cp_async_4(void* shared, const void* global, unsigned bytes = 4,
                       CUDA_ON_HOST_CALL) {
    cuda_on_host::begin_copy(shared, global, bytes, 4, {file, line});
}

inline void cp_async_commit_group() { cuda_on_host::commit_copies(); }

// Until no more than the newest N groups are under way.
template <unsigned N> inline void cp_async_wait_group() { cuda_on_host::land_copies(N); }

// A prefetch changes nothing. Here it reads its whole range, so that one that ends outside of its
// memory is found.
inline void cp_async_bulk_prefetch_L2(const void* global, unsigned bytes, CUDA_ON_HOST_CALL) {
    cuda_on_host::prefetch(global, bytes, {file, line});
}
