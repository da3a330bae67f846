// Where the lanes of a warp meet: shuffles, votes, and atomic operations.
#pragma once

#include "block.h"

namespace cuda_on_host {

// Lanes of a warp that exchange something. Lanes of different masks may meet at
// the same time, and fast lanes may meet anew while slow ones still read.
struct Meeting {
    unsigned mask = 0;          // who has to come; nobody: it is free
    unsigned came = 0, left = 0;
    unsigned waiting = 0;       // of those who came
    bool closed = false;        // everybody came, and somebody went on
    Place place{"", 0};
    alignas(16) unsigned char brought[32 * 64];     // side by side, whatever it is
    Meeting() {}                // what nobody brought is not worth clearing
    template <class T> T& of(unsigned lane) { return ((T*)brought)[lane]; }
};

// Of the runtime, in meetings.h.

// The meeting at `place` of the lanes of `mask`, to which the lane that runs may bring something.
Meeting& come_to(Place place, unsigned mask);
// Returns when all have come; the first to go on does `once`.
void wait_for_all(Meeting& meeting, Place place, void (*once)(Meeting&));

// What lanes have brought to a meeting.
template <class T> struct Brought {
    const Meeting& meeting;
    // Whether that lane came.
    bool by(unsigned lane) const { return meeting.came >> lane & 1; }
    const T& operator()(unsigned lane) const { return ((const T*)meeting.brought)[lane]; }
};

// Every lane of `mask` brings `mine`; the first to go on does `once` what one can do for
// all; then `read` makes the lane's result of what all brought.
template <class T, class Read>
inline auto meet(Place place, unsigned mask, const T& mine, Read&& read, void (*once)(Meeting&) = nullptr) {
    Own own;
    static_assert(32 * sizeof(T) <= sizeof Meeting::brought, "a lane brings 64 bytes at most");
    static_assert(std::is_trivially_copyable_v<T>, "lanes bring bytes");
    const unsigned lane = lane_of(here());
    Meeting& meeting = come_to(place, mask);
    memcpy(&meeting.of<T>(lane), &mine, sizeof(T));
    wait_for_all(meeting, place, once);
    auto result = read(Brought<T>{meeting});
    meeting.left |= 1u << lane;
    if (meeting.left == meeting.came) meeting.mask = 0;
    return result;
}

// What lane `from` brought, where it came; a lane's own value elsewhere, since
// CUDA promises nothing of others.
template <class T, class From>
inline T shuffle(Place place, unsigned mask, T value, unsigned width, From&& from) {
    const unsigned lane = lane_of(here()), first = lane / width * width;
    const int at = from(int(lane - first));
    const bool inside = at >= 0 && at < int(width);
    const unsigned other = inside ? first + unsigned(at) : lane;
    return meet(place, mask, value, [&](auto of) { return of(of.by(other) ? other : lane); });
}

inline unsigned ballot(Place place, unsigned mask, bool yes) {
    return meet(place, mask, unsigned(yes), [&](auto of) {
        unsigned votes = 0;
        for (unsigned lane = 0; lane < 32; lane++)
            if (of.by(lane)) votes |= of(lane) << lane;
        return votes;
    });
}

// One thread runs at a time, so reading and writing in turn is atomic.
template <class T, class Change> inline T atomically(T* at, Change&& change) {
    Own own;
    const T old = *at;
    *at = change(old);
    return old;
}

} // namespace cuda_on_host

inline void __syncwarp(unsigned mask = 0xffffffffu, CUDA_ON_HOST_CALL) {
    cuda_on_host::meet({file, line}, mask, 0u, [](auto) { return 0; });
}
template <class T>
inline T __shfl_sync(unsigned mask, T value, int from, int width = 32, CUDA_ON_HOST_CALL) {
    return cuda_on_host::shuffle({file, line}, mask, value, width, [&](int) { return from & (width - 1); });
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32, CUDA_ON_HOST_CALL) {
    return cuda_on_host::shuffle({file, line}, mask, value, width, [&](int lane) { return lane ^ by; });
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, CUDA_ON_HOST_CALL) {
    return cuda_on_host::shuffle({file, line}, mask, value, width, [&](int lane) { return lane + int(by); });
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, CUDA_ON_HOST_CALL) {
    return cuda_on_host::shuffle({file, line}, mask, value, width, [&](int lane) { return lane - int(by); });
}
inline unsigned __ballot_sync(unsigned mask, int yes, CUDA_ON_HOST_CALL) {
    return cuda_on_host::ballot({file, line}, mask, yes != 0);
}
inline int __any_sync(unsigned mask, int yes, CUDA_ON_HOST_CALL) {
    return cuda_on_host::ballot({file, line}, mask, yes != 0) != 0;
}
inline int __all_sync(unsigned mask, int yes, CUDA_ON_HOST_CALL) {
    return cuda_on_host::ballot({file, line}, mask, yes == 0) == 0;
}

template <class T> inline T atomicAdd(T* at, std::common_type_t<T> by) {
    return cuda_on_host::atomically(at, [&](T old) { return T(old + by); });
}
template <class T> inline T atomicMax(T* at, std::common_type_t<T> other) {
    return cuda_on_host::atomically(at, [&](T old) { return old < other ? other : old; });
}
template <class T> inline T atomicMin(T* at, std::common_type_t<T> other) {
    return cuda_on_host::atomically(at, [&](T old) { return other < old ? other : old; });
}
template <class T> inline T atomicExch(T* at, std::common_type_t<T> other) {
    return cuda_on_host::atomically(at, [&](T) { return other; });
}
template <class T> inline T atomicCAS(T* at, std::common_type_t<T> expected, std::common_type_t<T> other) {
    return cuda_on_host::atomically(at, [&](T old) { return old == expected ? other : old; });
}
