// Laws of drives with their derivatives, in lanes: how an activation follows its control, and curves of muscles (elements/actuator_laws.py).
#pragma once

#include <cmath>
#include <type_traits>

#include "base/math.hpp"
#include "torchdojo_tables.hpp"

namespace torchdojo::drive_laws {

constexpr double smallest = 1e-15;  // no number that divides is smaller

// A value and its derivatives by two arguments.
template <class T>
struct Slopes {
    T value, first, second;
};

template <class T>
struct Range {
    T low, high;
    TD_INLINE T clip(const T &x) const { return select(x < low, low, select(x > high, high, x)); }
    // 1 inside of the range, ends included, else 0
    TD_INLINE T inside(const T &x) const {
        const T one = broadcast<T>(1.0);
        return select(x >= low, select(x <= high, one, T{}), T{});
    }
};
template <class T>
TD_INLINE Range<T> unit() {
    return {T{}, broadcast<T>(1.0)};
}
template <class T>
TD_INLINE T above(const T &x) {
    return max(x, broadcast<T>(smallest));
}

// Numbers of a drive as scalars T: those of each lane, or, of type double, those that all lanes share, which take an eighth of the cache.
// All functions below are inlined, so that what is not asked for, such as slopes in the forward pass, is not computed.
template <class T, class N>
struct Numbers {
    const N *first;
    TD_INLINE T operator[](int k) const {
        if constexpr (std::is_same_v<N, T>) return first[k];
        else return broadcast<T>(first[k]);
    }
    TD_INLINE Numbers from(int k) const { return {first + k}; }
    TD_INLINE Vec3<T> vector(int k) const { return {(*this)[k], (*this)[k + 1], (*this)[k + 2]}; }
    TD_INLINE Range<T> range(int k) const { return {(*this)[k], (*this)[k + 1]}; }
};

// ȧ of a muscle, by its control and its activation. numbers: time constants of activation and deactivation, width of the switch.
template <class T, class N>
TD_INLINE Slopes<T> muscle_rate(const T &control, const T &act, const Numbers<T, N> &numbers) {
    const Range<T> range = unit<T>();
    const T scale = 0.5 + 1.5 * range.clip(act);
    const T by_act = 1.5 * range.inside(act);
    const T by_control = range.inside(control);
    const T excess = range.clip(control) - act;
    const T width = numbers[2];
    const T rise = numbers[0] * scale;
    const T inverse_scale = inverse_of(scale);
    const T fall = numbers[1] * inverse_scale;
    const T rise_by = numbers[0] * by_act;
    const T fall_by = -fall * inverse_scale * by_act;
    const Mask<T> hard = width < broadcast<T>(smallest);
    const Mask<T> up = excess > T{};
    T constant = select(up, rise, fall);
    T constant_by_act = select(up, rise_by, fall_by);
    T constant_by_control{};
    if (any(negate(hard))) {
        const T inverse = inverse_of(select(hard, broadcast<T>(1.0), width));
        const T x = excess * inverse + 0.5;
        const T s = range.clip(x);
        const T share = s * s * s * (3.0 * s * (2.0 * s - 5.0) + 10.0);
        const T slope = range.inside(x) * 30.0 * s * s * (s - 1.0) * (s - 1.0) * (rise - fall) * inverse;
        constant = select(hard, constant, fall + (rise - fall) * share);
        constant_by_control = select(hard, T{}, slope * by_control);
        constant_by_act = select(hard, constant_by_act, fall_by + (rise_by - fall_by) * share - slope);
    }
    const T inverse = inverse_of(above(constant));
    const T bend = select(constant >= broadcast<T>(smallest), -(excess * inverse * inverse), T{});
    return {excess * inverse, by_control * inverse + bend * constant_by_control, bend * constant_by_act - inverse};
}

// The activation one step later, by the control and the activation, before it is clipped.
template <class T, class N>
TD_INLINE Slopes<T> advance(int kind, const T &control, const T &act, const Numbers<T, N> &numbers, const T &h) {
    const auto follow = [&](const T &share) { return Slopes<T>{act + share * (control - act), share, 1.0 - share}; };
    switch (kind) {
        case drive_dynamics::integrator: return {act + h * control, h, broadcast<T>(1.0)};
        case drive_dynamics::filter: return follow(quotient(h, above(numbers[0])));
        case drive_dynamics::filterexact:
            return follow(each_lane([](double x) { return -std::expm1(x); }, T(-quotient(h, above(numbers[0])))));
        default: {
            const Slopes<T> rate = muscle_rate(control, act, numbers);
            return {act + h * rate.value, h * rate.first, 1.0 + h * rate.second};
        }
    }
}

// Active force of a muscle per activation, by length and velocity. numbers: `muscle_gain`.
template <class T, class N>
TD_INLINE Slopes<T> muscle_gain_of(const T &length, const T &velocity, const Numbers<T, N> &p) {
    using namespace muscle_gain;
    const T n = p[low] + (length - p[shortest]) * p[per_length];
    const T speed = velocity * p[per_speed];
    const T slow = max(speed + 1.0, T{});
    const T yielding = max(p[fvmax] - 1.0 - speed, T{});
    const Mask<T> shortens = speed <= T{};
    const T by_speed = select(shortens, slow * slow, p[fvmax] - yielding * yielding * p[per_yield]);
    const T speed_slope = 2.0 * select(shortens, slow, yielding * p[per_yield]);
    // Four parabolas between bends, start ± x²/2 with x = (n − from)/width.
    const T one = broadcast<T>(1.0);
    const Mask<T> left = n <= p[left_bend];
    const Mask<T> middle = n <= one;
    const Mask<T> right = n <= p[right_bend];
    const Mask<T> up = select_mask(left, left, select_mask(right, Mask<T>{}, negate(Mask<T>{})));  // the outer ones open upwards
    const T from = select(left, p[lmin], select(right, one, p[lmax]));
    const T inverse = select(left, p[per_left], select(middle, p[per_rise], select(right, p[per_fall], p[per_right])));
    const T x = (n - from) * inverse;
    const T half = 0.5 * x * x;
    const T reaches = select(n >= p[lmin], select(n <= p[lmax], one, T{}), T{});
    const T by_length = reaches * select(up, half, 1.0 - half);
    const T length_slope = reaches * select(up, x, -x) * inverse;
    const T pull = -p[peak];
    return {pull * by_length * by_speed, pull * by_speed * length_slope * p[per_length], pull * by_length * speed_slope * p[per_speed]};
}

// Passive force of a muscle, by its length. numbers: `muscle_bias`.
template <class T, class N>
TD_INLINE Slopes<T> muscle_bias_of(const T &length, const Numbers<T, N> &p) {
    using namespace muscle_bias;
    const T n = p[low] + (length - p[shortest]) * p[per_length];
    const T x = max(n - 1.0, T{}) * p[per_width];
    const Mask<T> bends = n <= p[right_bend];
    const T curve = select(bends, 0.5 * x * x, 0.5 + (n - p[right_bend]) * p[per_width]);
    const T slope = select(bends, x * p[per_width], p[per_width]);
    return {-(p[peak] * curve), -(p[peak] * slope * p[per_length]), T{}};
}

template <class T, class N>
TD_INLINE Slopes<T> affine(const T &length, const T &velocity, const Numbers<T, N> &numbers) {
    return {numbers[0] + numbers[1] * length + numbers[2] * velocity, numbers[1], numbers[2]};
}

}  // namespace torchdojo::drive_laws
