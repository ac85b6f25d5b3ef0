// Feeds of jobs that prepare several at once: `feed.expect(wanted)` tells one which lanes are about to ask for their next jobs.
#pragma once

namespace torchdojo {

template <class Feed>
auto expect_jobs(Feed &feed, const bool *wanted, int) -> decltype(feed.expect(wanted)) {
    feed.expect(wanted);
}
template <class Feed>
void expect_jobs(Feed &, const bool *, long) {}

// `feed.patient()`: whether jobs are prepared so dearly that lanes had better wait for each other.
template <class Feed>
auto is_patient(const Feed &feed, int) -> decltype(feed.patient()) {
    return feed.patient();
}
template <class Feed>
bool is_patient(const Feed &, long) {
    return false;
}

// `feed.measured(lane)`: whether the feed has put lengths and pulls of tendons for the lane's job into the problem.
template <class Feed>
auto is_measured(const Feed &feed, int lane, int) -> decltype(feed.measured(lane)) {
    return feed.measured(lane);
}
template <class Feed>
bool is_measured(const Feed &, int, long) {
    return false;
}

// Lanes want jobs whose phase is `done`.
template <class Feed, class Phase, int count>
void expect(Feed &feed, const Phase (&phase)[count], Phase done) {
    bool wanted[count];
    for (int lane = 0; lane < count; ++lane) wanted[lane] = phase[lane] == done;
    expect_jobs(feed, wanted, 0);
}

// Whether lanes whose phase is `done` wait for others, so that the feed prepares the next jobs of all at once: for two evaluations at most,
// while they are fewer than half. In an arm with muscles, lanes that have lost step prepare twice a step (scripts/bench_drives.py).
// Lanes in later phases are at work. waits: evaluations for which lanes have waited.
template <class Feed, class Phase, int count>
bool lanes_wait(const Feed &feed, const Phase (&phase)[count], Phase done, int &waits) {
    if (!is_patient(feed, 0)) return false;
    int ready = 0, at_work = 0;
    for (int lane = 0; lane < count; ++lane) {
        ready += phase[lane] == done;
        at_work += phase[lane] > done;
    }
    const bool waiting = ready < at_work && waits < 2;
    waits = waiting ? waits + 1 : 0;
    return waiting;
}

}  // namespace torchdojo
