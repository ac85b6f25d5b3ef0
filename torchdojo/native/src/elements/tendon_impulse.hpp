// The impulse of a tendon along its length, as a function of the velocities of a step (elements/tendon.hpp).
#pragma once

#include "solver/problem.hpp"

namespace torchdojo {

// Calls f(body, pull) for the places of a tendon that are no places of the world.
template <class T, class F>
TD_INLINE void each_pull(const Problem<T> &problem, const TendonTable &tendon, F &&f) {
    const MechanismTable &m = problem.mechanism;
    for (int k = 0; k < tendon.num_bodies; ++k) {
        const int body = m.tendon_bodies[tendon.first_body + k];
        if (body < m.num_bodies) f(body, problem.pulls[tendon.first_body + k]);
    }
}

template <class T>
T tendon_impulse(const Problem<T> &problem, int number, const T *w) {
    const TendonTable &tendon = problem.mechanism.tendons[number];
    const TendonData<T> &data = problem.tendons[number];
    if (!tendon.damped) return data.given;
    T rate{};
    each_pull(problem, tendon, [&](int body, const Pull<T> &pull) {
        rate += dot(pull.force, load3(w + 6 * body)) + dot(pull.torque, load3(w + 6 * body + 3));
    });
    return data.given - data.damping * rate;
}

}  // namespace torchdojo
