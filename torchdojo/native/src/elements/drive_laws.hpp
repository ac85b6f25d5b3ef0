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

// Peak force of a muscle, its length in units of the optimal one, and this unit.
struct MuscleScale {
    double force, normal, optimum;

    MuscleScale(double length, const double *numbers, const double *lengths, double acc0) {
        force = numbers[2] < 0.0 ? numbers[3] / above(acc0) : numbers[2];
        optimum = (lengths[1] - lengths[0]) / above(numbers[1] - numbers[0]);
        normal = numbers[0] + (length - lengths[0]) / above(optimum);
    }
};

// Active force of a muscle per activation, by length and velocity. numbers: operating range (2), peak force, scale, lmin, lmax, vmax, fpmax,
// fvmax.
inline Slopes muscle_gain(double length, double velocity, const double *numbers, const double *lengths, double acc0) {
    const MuscleScale scale(length, numbers, lengths, acc0);
    const double lmin = numbers[4], lmax = numbers[5], fvmax = numbers[8], n = scale.normal, unit = above(scale.optimum * numbers[6]);
    const double speed = velocity / unit, y = fvmax - 1.0;
    double by_speed, speed_slope;
    if (speed <= 0.0) {
        const double left = std::max(speed + 1.0, 0.0);
        by_speed = left * left, speed_slope = 2.0 * left;
    } else {
        const double left = std::max(y - speed, 0.0), inverse = 1.0 / above(y);
        by_speed = fvmax - left * left * inverse, speed_slope = 2.0 * left * inverse;
    }
    const double low = 0.5 * (lmin + 1.0), high = 0.5 * (1.0 + lmax);
    double by_length = 0.0, length_slope = 0.0;
    const auto parabola = [&](double from, double width, double start, double sign) {
        const double x = (n - from) / above(width);
        by_length = start + sign * 0.5 * x * x, length_slope = sign * x / above(width);
    };
    if (n < lmin) by_length = 0.0;
    else if (n <= low) parabola(lmin, low - lmin, 0.0, 1.0);
    else if (n <= 1.0) parabola(1.0, 1.0 - low, 1.0, -1.0);
    else if (n <= high) parabola(1.0, high - 1.0, 1.0, -1.0);
    else if (n <= lmax) parabola(lmax, lmax - high, 0.0, 1.0);
    return {-scale.force * by_length * by_speed, -scale.force * by_speed * length_slope / above(scale.optimum),
            -scale.force * by_length * speed_slope / unit};
}

// Passive force of a muscle, by its length.
inline Slopes muscle_bias(double length, const double *numbers, const double *lengths, double acc0) {
    const MuscleScale scale(length, numbers, lengths, acc0);
    const double high = 0.5 * (1.0 + numbers[5]), width = above(high - 1.0), n = scale.normal, peak = -scale.force * numbers[7];
    double curve, slope;
    if (n <= high) {
        const double x = std::max(n - 1.0, 0.0) / width;
        curve = 0.5 * x * x, slope = x / width;
    } else {
        curve = 0.5 + (n - high) / width, slope = 1.0 / width;
    }
    return {peak * curve, peak * slope / above(scale.optimum), 0.0};
}

inline Slopes affine(double length, double velocity, const double *numbers) {
    return {numbers[0] + numbers[1] * length + numbers[2] * velocity, numbers[1], numbers[2]};
}

}  // namespace torchdojo::drive_laws
