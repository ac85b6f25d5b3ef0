// Feeds of jobs that prepare several at once: `feed.expect(wanted)` tells one which lanes are about to ask for their next jobs.
#pragma once

namespace torchdojo {

template <class Feed>
auto expect_jobs(Feed &feed, const bool *wanted, int) -> decltype(feed.expect(wanted)) {
    feed.expect(wanted);
}
template <class Feed>
void expect_jobs(Feed &, const bool *, long) {}

// Lanes want jobs whose phase is `done`.
template <class Feed, class Phase, int count>
void expect(Feed &feed, const Phase (&phase)[count], Phase done) {
    bool wanted[count];
    for (int lane = 0; lane < count; ++lane) wanted[lane] = phase[lane] == done;
    expect_jobs(feed, wanted, 0);
}

}  // namespace torchdojo
