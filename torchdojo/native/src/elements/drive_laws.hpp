// Laws of drives with their derivatives: how an activation follows its control, and curves of muscles (elements/actuator_laws.py).
#pragma once

#include <algorithm>
#include <cmath>

#include "torchdojo_tables.hpp"

namespace torchdojo::drive_laws {

constexpr double smallest = 1e-15;  // no number that divides is smaller

// A value and its derivatives by two arguments.
struct Slopes {
    double value, first, second;
};

inline double clip(double x, const double *range) { return x < range[0] ? range[0] : x > range[1] ? range[1] : x; }
inline bool inside(double x, const double *range) { return x >= range[0] && x <= range[1]; }
inline double above(double x) { return std::max(x, smallest); }

// ȧ of a muscle, by its control and its activation. numbers: time constants of activation and deactivation, width of the switch.
inline Slopes muscle_rate(double control, double act, const double *numbers) {
    constexpr double unit[2] = {0.0, 1.0};
    const double scale = 0.5 + 1.5 * clip(act, unit), by_act = inside(act, unit) ? 1.5 : 0.0, by_control = inside(control, unit);
    const double excess = clip(control, unit) - act, width = numbers[2];
    const double rise = numbers[0] * scale, fall = numbers[1] / scale, rise_by = numbers[0] * by_act, fall_by = -fall / scale * by_act;
    double constant, constant_by_control = 0.0, constant_by_act;
    if (width < smallest) {
        constant = excess > 0.0 ? rise : fall, constant_by_act = excess > 0.0 ? rise_by : fall_by;
    } else {
        const double x = excess / width + 0.5, s = clip(x, unit), share = s * s * s * (3.0 * s * (2.0 * s - 5.0) + 10.0);
        const double slope = inside(x, unit) ? 30.0 * s * s * (s - 1.0) * (s - 1.0) * (rise - fall) / width : 0.0;
        constant = fall + (rise - fall) * share;
        constant_by_control = slope * by_control;
        constant_by_act = fall_by + (rise_by - fall_by) * share - slope;
    }
    const double inverse = 1.0 / above(constant), bend = constant >= smallest ? -excess * inverse * inverse : 0.0;
    return {excess * inverse, by_control * inverse + bend * constant_by_control, -inverse + bend * constant_by_act};
}

// The activation one step later, by the control and the activation, before it is clipped.
inline Slopes advance(int kind, double control, double act, const double *numbers, double h) {
    switch (kind) {
        case drive_dynamics::integrator: return {act + h * control, h, 1.0};
        case drive_dynamics::filter: {
            const double share = h / above(numbers[0]);
            return {act + share * (control - act), share, 1.0 - share};
        }
        case drive_dynamics::filterexact: {
            const double share = -std::expm1(-h / above(numbers[0]));
            return {act + share * (control - act), share, 1.0 - share};
        }
        default: {
            const Slopes rate = muscle_rate(control, act, numbers);
            return {act + h * rate.value, h * rate.first, 1.0 + h * rate.second};
        }
    }
}

// Active force of a muscle per activation, by length and velocity. numbers: `muscle_gain`.
inline Slopes muscle_gain_of(double length, double velocity, const double *p) {
    using namespace muscle_gain;
    const double n = p[low] + (length - p[shortest]) * p[per_length], speed = velocity * p[per_speed];
    double by_speed, speed_slope;
    if (speed <= 0.0) {
        const double left = std::max(speed + 1.0, 0.0);
        by_speed = left * left, speed_slope = 2.0 * left;
    } else {
        const double left = std::max(p[fvmax] - 1.0 - speed, 0.0);
        by_speed = p[fvmax] - left * left * p[per_yield], speed_slope = 2.0 * left * p[per_yield];
    }
    double by_length = 0.0, length_slope = 0.0;
    const auto parabola = [&](double from, double inverse, double start, double sign) {
        const double x = (n - from) * inverse;
        by_length = start + sign * 0.5 * x * x, length_slope = sign * x * inverse;
    };
    if (n < p[lmin]) by_length = 0.0;
    else if (n <= p[left_bend]) parabola(p[lmin], p[per_left], 0.0, 1.0);
    else if (n <= 1.0) parabola(1.0, p[per_rise], 1.0, -1.0);
    else if (n <= p[right_bend]) parabola(1.0, p[per_fall], 1.0, -1.0);
    else if (n <= p[lmax]) parabola(p[lmax], p[per_right], 0.0, 1.0);
    const double pull = -p[peak];
    return {pull * by_length * by_speed, pull * by_speed * length_slope * p[per_length], pull * by_length * speed_slope * p[per_speed]};
}

// Passive force of a muscle, by its length. numbers: `muscle_bias`.
inline Slopes muscle_bias_of(double length, const double *p) {
    using namespace muscle_bias;
    const double n = p[low] + (length - p[shortest]) * p[per_length];
    double curve, slope;
    if (n <= p[right_bend]) {
        const double x = std::max(n - 1.0, 0.0) * p[per_width];
        curve = 0.5 * x * x, slope = x * p[per_width];
    } else {
        curve = 0.5 + (n - p[right_bend]) * p[per_width], slope = p[per_width];
    }
    return {-p[peak] * curve, -p[peak] * slope * p[per_length], 0.0};
}

inline Slopes affine(double length, double velocity, const double *numbers) {
    return {numbers[0] + numbers[1] * length + numbers[2] * velocity, numbers[1], numbers[2]};
}

}  // namespace torchdojo::drive_laws
