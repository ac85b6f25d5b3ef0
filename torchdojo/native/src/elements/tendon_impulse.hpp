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

// L̇ at w.
template <class T>
TD_INLINE T tendon_rate(const Problem<T> &problem, const TendonTable &tendon, const T *w) {
    T rate{};
    each_pull(problem, tendon, [&](int body, const Pull<T> &pull) {
        rate += dot(pull.force, load3(w + 6 * body)) + dot(pull.torque, load3(w + 6 * body + 3));
    });
    return rate;
}

// P(o) of a limit, and its derivative.
template <class T>
struct Overshoot {
    T value, slope;

    explicit Overshoot(const T &over) {
        const T start = min(max(over, T{}), broadcast<T>(constant::tendon_softening));
        slope = (1.0 / constant::tendon_softening) * start;
        value = slope * (over - 0.5 * start);
    }
};

// The laws beside spring, damper and input, at a rate: impulses, and the derivatives that they add to `by_rate` and `by_length`.
template <class T>
struct TendonLaws {
    T impulse{}, by_rate{}, by_length{};
    T below{}, above{}, below_slope{}, above_slope{};  // of limits
    T rubbed{};  // L̇ / √(L̇² + s²)

    TendonLaws(const Problem<T> &problem, const TendonTable &tendon, const TendonData<T> &data, const T &rate) {
        const T h = problem.timestep(), *p = &problem.parameters[tendon.parameters];
        if (tendon.limited) {
            const T ahead = data.length + h * rate, stiffness = h * p[parameter::tendon::limit_stiffness];
            const Overshoot<T> lower(p[parameter::tendon::limit_lower] - ahead), upper(ahead - p[parameter::tendon::limit_upper]);
            below = lower.value, above = upper.value, below_slope = lower.slope, above_slope = upper.slope;
            const T slope = stiffness * (below_slope + above_slope);
            impulse += stiffness * (below - above), by_rate += h * slope, by_length -= slope;
        }
        if (tendon.rubs) {
            constexpr double square = constant::tendon_slip * constant::tendon_slip;
            const T inverse = 1.0 / sqrt(rate * rate + square), most = h * p[parameter::tendon::friction];
            rubbed = rate * inverse;
            impulse -= most * rubbed, by_rate += most * (square * inverse) * (inverse * inverse);
        }
        if (tendon.armature) {
            const T &armature = p[parameter::tendon::armature];
            impulse -= armature * (rate - data.incoming), by_rate += armature;
        }
    }
};

// λ at w.
template <class T>
T tendon_impulse(const Problem<T> &problem, int number, const T *w) {
    const TendonTable &tendon = problem.mechanism.tendons[number];
    const TendonData<T> &data = problem.tendons[number];
    if (!tendon.damped) return data.given;
    const T rate = tendon_rate(problem, tendon, w), plain = data.given - data.damping * rate;
    if (!tendon.limited && !tendon.rubs && !tendon.armature) return plain;
    return plain + TendonLaws<T>(problem, tendon, data, rate).impulse;
}

}  // namespace torchdojo
