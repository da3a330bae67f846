// How lanes of a warp wait for each other.
#pragma once

#include "schedule.h"

namespace cuda_on_host {

inline bool complete(const Meeting& meeting, const Warp& warp) {
    return (meeting.mask & warp.live & ~meeting.came) == 0;
}

// Lets those go on who wait for a meeting, where nobody has to come any more.
inline bool let_go_on(Meeting& meeting, Warp& warp) {
    if (!complete(meeting, warp)) return false;
    warp.ready |= meeting.waiting;
    meeting.waiting = 0;
    return true;
}

void leave_warp(Warp& warp, unsigned lane) {
    warp.live &= ~(1u << lane);
    warp.ready &= ~(1u << lane);
    for (auto& meeting : warp.meetings)
        if (meeting->waiting) let_go_on(*meeting, warp);
}

// The meeting under `mask` that the lane has not been to, or a new one.
inline Meeting& meeting_of(Warp& warp, unsigned mask, unsigned lane, Place place) {
    Meeting* free = nullptr;
    for (auto& each : warp.meetings) {
        if (each->mask == mask && !each->closed && !(each->came >> lane & 1)) return *each;
        if (each->mask == 0) free = each.get();
    }
    if (!free) {
        warp.meetings.push_back(std::make_unique<Meeting>());
        free = warp.meetings.back().get();
    }
    free->mask = mask;
    free->came = free->left = 0;
    free->closed = false;
    free->place = place;
    return *free;
}

Meeting& come_to(Place place, unsigned mask) {
    const unsigned lane = lane_of(here());
    if (!(mask >> lane & 1)) {
        note(LAUNCH_FAILED, "lane %u is not in its own mask %08x at %s:%d", lane, mask, place.file, place.line);
        give_up();
    }
    Meeting& meeting = meeting_of(*block->warp, mask, lane, place);
    if (!(meeting.place == place)) {
        note(LAUNCH_FAILED, "lanes of a warp meet at different places, %s:%d and %s:%d", meeting.place.file,
             meeting.place.line, place.file, place.line);
        give_up();
    }
    return meeting;
}

void wait_for_all(Meeting& meeting, Place place, void (*once)(Meeting&)) {
    Thread& thread = here();
    Warp& warp = *block->warp;
    const unsigned lane = lane_of(thread);
    meeting.came |= 1u << lane;
    release(&meeting);
    thread.place = place;
    if (!let_go_on(meeting, warp)) {
        meeting.waiting |= 1u << lane;
        warp.ready &= ~(1u << lane);
        thread.wait = Wait::WARP;
        pause();
        thread.wait = Wait::NOTHING;
    }
    acquire(&meeting);
    if (once && !meeting.closed) once(meeting);
    meeting.closed = true;
}

} // namespace cuda_on_host
