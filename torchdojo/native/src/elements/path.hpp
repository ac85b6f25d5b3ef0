// Scalar maps onto the central path that cones of joints and of contacts share. path_maps.py derives them.
#pragma once

#include "base/math.hpp"
#include "torchdojo_tables.hpp"

namespace torchdojo {

// g = 1 − x with x + ε x/(1 − x²) = τ, x in [0, 1): the distance of a friction impulse from the edge of its disc. Halley's method starts
// from the root for small g. The relative error is below 7e-7 after two steps for all τ ≥ 0, ε > 0, and rounding after three. `W` values
// are computed side by side, because each division waits for the one before.
template <int W, class T>
TD_INLINE void disc_gaps(const T *tau, const T *epsilon, T *gap) {
    const T one = broadcast<T>(1.0);
    T excess[W], g[W];
#pragma GCC unroll 4
    for (int i = 0; i < W; ++i) {
        excess[i] = tau[i] - 1.0;
        const T far = root(excess[i] * excess[i] + 2.0 * epsilon[i]);
        g[i] = min(select(excess[i] > T{}, quotient(epsilon[i], excess[i] + far), 0.5 * (far - excess[i])), one);
    }
#pragma GCC unroll 1
    for (int k = 0; k < 3; ++k) {
#pragma GCC unroll 4
        for (int i = 0; i < W; ++i) {
            const T q = g[i] * (2.0 - g[i]);
            const T r = excess[i] + g[i];
            const T twice = 2.0 * (1.0 - g[i]);
            const T value = q * r - epsilon[i] * (1.0 - g[i]);
            const T slope = twice * r + q + epsilon[i];
            const T bend = twice - r;
            g[i] = g[i] - quotient(value * slope, slope * slope - value * bend);
            g[i] = min(max(g[i], broadcast<T>(std::numeric_limits<double>::min())), one);
        }
    }
    for (int i = 0; i < W; ++i) gap[i] = g[i];
}

// Impulse per slack of a smoothed projection: a secant of Newton's points (weight_of in path_maps.py), in the lanes of `known`.
template <class T>
struct PathWeight {
    T product{};
    T square{};

    TD_INLINE void add(const T &impulse, const T &slack) {
        product += impulse * slack;
        square += slack * slack;
    }
    TD_INLINE T operator()(const T &nominal, const Mask<T> &known) const {
        return (*this)(nominal, known, broadcast<T>(constant::most_weight));
    }
    TD_INLINE T operator()(const T &nominal, const Mask<T> &known, const T &most) const {
        const T secant = min(max(quotient(product, square), nominal), most * nominal);
        return select(known, select(product > T{}, secant, constant::other_weight * nominal), nominal);
    }
};

// The point of the previous Newton step. Returns the change since then, and stores the new point.
template <class T>
TD_INLINE T change(T &before, const T &latest) {
    const T from = before;
    before = latest;
    return latest - from;
}

// The positive root of γ − a κ/γ = c, without cancellation.
template <class T>
TD_INLINE T orthant_on_path(const T &c, const T &a, const T &kappa) {
    const T level = kappa * a;
    const T far = root(c * c + 4.0 * level);
    return select(c > T{}, 0.5 * (c + far), quotient(2.0 * level, far - c));
}

}  // namespace torchdojo
