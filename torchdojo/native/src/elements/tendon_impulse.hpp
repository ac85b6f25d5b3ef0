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

// P(o) of a limit, and its derivatives.
template <class T>
struct Overshoot {
    T value, slope, bend;

    explicit Overshoot(const T &over) {
        const T inside = broadcast<T>(constant::tendon_softening) - over;
        bend = select(min(over, inside) > T{}, broadcast<T>(1.0 / constant::tendon_softening), T{});
        const T start = min(max(over, T{}), broadcast<T>(constant::tendon_softening));
        slope = (1.0 / constant::tendon_softening) * start;
        value = slope * (over - 0.5 * start);
    }
};

// Whether it has laws beside spring, damper and input.
inline bool has_laws(const TendonTable &tendon) { return tendon.limited || tendon.rubs || tendon.armature || tendon.curved; }

// The polynomials of spring and damper: the excess y, zero in the range of rest, |L̇|, P′, P + drag and its derivative by the rate.
template <class T>
struct TendonCurves {
    T excess, speed, slope, force, by_rate;
};
template <class T>
[[gnu::noinline]] TendonCurves<T> tendon_curves(const T *p, const TendonTable &tendon, const T &length, const T &rate, const T &h) {
    const T *spring = p + parameter::tendon::stiffness_curve, *damper = p + parameter::tendon::damping_curve;
    TendonCurves<T> c;
    c.excess = max(length - p[parameter::tendon::rest_upper], T{}) - max(p[parameter::tendon::rest_lower] - length, T{});
    if (tendon.implicit) c.excess = select(c.excess == T{}, T{}, c.excess + h * rate);
    c.speed = abs(rate);
    c.slope = (2.0 * spring[0] + 3.0 * spring[1] * c.excess) * c.excess;
    c.force = (spring[0] + spring[1] * c.excess) * (c.excess * c.excess) + rate * (c.speed * (damper[0] + damper[1] * c.speed));
    c.by_rate = c.speed * (2.0 * damper[0] + 3.0 * damper[1] * c.speed);
    if (tendon.implicit) c.by_rate += h * c.slope;
    return c;
}

// The laws beside spring, damper and input, at a rate: impulses, and the derivatives that they add to `by_rate` and `by_length`.
template <class T>
struct TendonLaws {
    T impulse{};
    T by_rate{};
    T by_length{};
    // Numbers of limits: P, its derivative by the limit, which moves the place where the damper begins, and what the damper adds per time.
    T below{};
    T above{};
    T by_lower{};
    T by_upper{};
    T held{};
    T by_timestep{};
    T rubbed{};  // L̇ / √(L̇² + s²)

    TendonLaws(const Problem<T> &problem, const TendonTable &tendon, const TendonData<T> &data, const T &rate) {
        const T h = problem.timestep();
        const T *p = &problem.parameters[tendon.parameters];
        if (tendon.limited) {
            const T stiffness = h * p[parameter::tendon::limit_stiffness];
            const T &time = p[parameter::tendon::limit_time];
            const T under = p[parameter::tendon::limit_lower] - data.length;
            const T over = data.length - p[parameter::tendon::limit_upper];
            const Overshoot<T> lower_now(under), upper_now(over);
            const T lower_reach = h + time * lower_now.slope;
            const T upper_reach = h + time * upper_now.slope;
            const Overshoot<T> lower(under - lower_reach * rate), upper(over + upper_reach * rate);
            below = lower.value;
            above = upper.value;
            by_lower = lower.slope * (1.0 - time * rate * lower_now.bend);
            by_upper = upper.slope * (1.0 + time * rate * upper_now.bend);
            held = -(rate * (lower.slope * lower_now.slope + upper.slope * upper_now.slope));
            by_timestep = -(rate * (lower.slope + upper.slope));
            impulse += stiffness * (below - above);
            by_rate += stiffness * (lower.slope * lower_reach + upper.slope * upper_reach);
            by_length -= stiffness * (by_lower + by_upper);
        }
        if (tendon.rubs) {
            constexpr double square = constant::tendon_slip * constant::tendon_slip;
            const T inverse = 1.0 / sqrt(rate * rate + square);
            const T most = h * p[parameter::tendon::friction];
            rubbed = rate * inverse;
            impulse -= most * rubbed;
            by_rate += most * (square * inverse) * (inverse * inverse);
        }
        if (tendon.curved) {
            const TendonCurves<T> curves = tendon_curves(p, tendon, data.length, rate, h);
            impulse -= h * curves.force;
            by_rate += h * curves.by_rate;
            by_length -= h * curves.slope;
        }
        if (tendon.armature) {
            const T &armature = p[parameter::tendon::armature];
            impulse -= armature * (rate - data.incoming);
            by_rate += armature;
        }
    }
};

// λ at w. Steps and gradients call it once, so a copy in each of them is not worth its size.
template <class T>
[[gnu::noinline]] T tendon_impulse(const Problem<T> &problem, int number, const T *w) {
    const TendonTable &tendon = problem.mechanism.tendons[number];
    const TendonData<T> &data = problem.tendons[number];
    if (!tendon.damped) return data.given;
    const T rate = tendon_rate(problem, tendon, w);
    const T plain = data.given - data.damping * rate;
    if (!has_laws(tendon)) return plain;
    return plain + TendonLaws<T>(problem, tendon, data, rate).impulse;
}

// Largest impulse per change of the length [N·s/m] (Tendon.steepness).
template <class T>
T tendon_steepness(const Problem<T> &problem, const TendonTable &tendon, const TendonData<T> &data) {
    const T *p = &problem.parameters[tendon.parameters];
    T steepness = problem.inverse_timestep * data.damping;
    if (tendon.limited) steepness += (problem.timestep() + p[parameter::tendon::limit_time]) * p[parameter::tendon::limit_stiffness];
    if (tendon.rubs) steepness += (1.0 / constant::tendon_slip) * p[parameter::tendon::friction];
    return steepness;
}

// The fraction of a step from w that ends where the first rate with friction passes zero (Tendon.turning).
template <class T>
T until_turning(const Problem<T> &problem, const T *w, const T *step) {
    const MechanismTable &m = problem.mechanism;
    const T slip = broadcast<T>(constant::tendon_slip);
    T fraction = broadcast<T>(1.0);
    for (const TendonTable &tendon : m.tendons) {
        if (!tendon.rubs) continue;
        const T rate = tendon_rate(problem, tendon, w);
        const T change = tendon_rate(problem, tendon, step);
        const T next = rate + change;
        const T until = select(rate * next < T{}, abs(rate) * inverse_of(abs(change)), broadcast<T>(1.0));
        fraction = min(fraction, select(min(abs(rate), abs(next)) > slip, until, broadcast<T>(1.0)));
    }
    return fraction;
}

}  // namespace torchdojo
