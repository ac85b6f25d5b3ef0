// Friction in a disc: the second-order cone of an impulse ξ = (ξ₁, ξ₂₃), |ξ₂₃| <= ξ₁, and its slack η, ξ∘η = κe.
// contact_cone.hpp derives the condensed form.
// Vandenberghe 2010, "The CVXOPT linear and quadratic cone program solvers", section 4.2.
#pragma once

#include "elements/path.hpp"
#include "solver/problem.hpp"

namespace torchdojo {

// √(x₁² − |x₂₃|²) of an interior point
template <class T>
TD_INLINE T hyperbolic_norm(const Vec3<T> &x) {
    const T tail = sqrt(x.y * x.y + x.z * x.z);
    return sqrt(max((x.x - tail) * (x.x + tail), broadcast<T>(std::numeric_limits<double>::min())));
}

template <class T>
TD_INLINE Vec3<T> cone_product(const Vec3<T> &a, const Vec3<T> &b) {
    return {dot(a, b), a.x * b.y + b.x * a.y, a.x * b.z + b.x * a.z};
}

// y with x∘y = ρ
template <class T>
TD_INLINE Vec3<T> arrow_solve(const Vec3<T> &x, const Vec3<T> &rho) {
    const T inverse = inverse_of(x.x), y = quotient(x.x * rho.x - x.y * rho.y - x.z * rho.z, x.x * x.x - x.y * x.y - x.z * x.z);
    return {y, (rho.y - y * x.y) * inverse, (rho.z - y * x.z) * inverse};
}

// 1/α at which x + α d leaves the cone: the most negative eigenvalue of d in the frame in which x is the identity.
template <class T>
TD_INLINE T cone_limit(const Vec3<T> &x, const Vec3<T> &d) {
    const T inverse = 1.0 / hyperbolic_norm(x);
    const Vec3<T> a = inverse * x, b = inverse * d;
    const T first = a.x * b.x - a.y * b.y - a.z * b.z, ratio = (first + b.x) / (a.x + 1.0);
    const T y = b.y - ratio * a.y, z = b.z - ratio * a.z;
    return sqrt(y * y + z * z) - first;
}

template <class T>
struct ConeScaling {
    Vec3<T> v, middle, point;  // W = θ (2 v vᵀ − diag(1, −1, −1)), H = θ² (2 m mᵀ − diag(1, −1, −1)), λ = W ξ
    T theta;

    TD_INLINE Vec3<T> weigh(const Vec3<T> &x) const {
        const T twice = 2.0 * dot(v, x);
        return {theta * (twice * v.x - x.x), theta * (twice * v.y + x.y), theta * (twice * v.z + x.z)};
    }
    TD_INLINE Vec3<T> unweigh(const Vec3<T> &x) const {  // W⁻¹ x
        const T twice = 2.0 * (v.x * x.x - v.y * x.y - v.z * x.z), inverse = 1.0 / theta;
        return {inverse * (twice * v.x - x.x), inverse * (x.y - twice * v.y), inverse * (x.z - twice * v.z)};
    }
    // q in the rows of η, for products (W ξ)∘(W⁻¹ η) that change by ρ.
    TD_INLINE Vec3<T> aim(const Vec3<T> &rho) const {
        const Vec3<T> t = arrow_solve(point, rho);
        const Vec3<T> q = weigh(t);
        return {theta * theta * unweigh(t).x / (1.0 + 2.0 * (middle.y * middle.y + middle.z * middle.z)), q.y, q.z};
    }
};

template <class T>
TD_INLINE ConeScaling<T> cone_scaling(const Vec3<T> &xi, const Vec3<T> &eta) {
    ConeScaling<T> s;
    const T xi_norm = hyperbolic_norm(xi), eta_norm = hyperbolic_norm(eta);
    const Vec3<T> a = (1.0 / xi_norm) * xi, b = (1.0 / eta_norm) * eta;
    const T inverse = 1.0 / sqrt(2.0 * (1.0 + dot(a, b)));
    s.middle.y = (b.y - a.y) * inverse;
    s.middle.z = (b.z - a.z) * inverse;
    s.middle.x = sqrt(1.0 + s.middle.y * s.middle.y + s.middle.z * s.middle.z);
    const T root = 1.0 / sqrt(2.0 * (s.middle.x + 1.0));
    s.v = {(s.middle.x + 1.0) * root, s.middle.y * root, s.middle.z * root};
    s.theta = sqrt(eta_norm / xi_norm);
    s.point = s.weigh(xi);
    return s;
}

template <class T>
struct Disc {
    // The product, plainly linearized.
    static TD_INLINE void condense(const Vec3<T> &xi, const Vec3<T> &eta, FrictionData<T> &data) {
        T *N = data.compliance, *m = data.cone_coupling;
        const T scale = inverse_of(eta.x), y = quotient(scale, xi.x * eta.x - xi.y * eta.y - xi.z * eta.z), ratio = inverse_of(xi.x);
        const T Y[4] = {scale + y * eta.y * xi.y, y * eta.y * xi.z, y * eta.z * xi.y, scale + y * eta.z * xi.z};
        const T P[4] = {xi.x - ratio * xi.y * xi.y, -ratio * xi.y * xi.z, -ratio * xi.y * xi.z, xi.x - ratio * xi.z * xi.z};
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 2; ++j) N[2 * j + i] = P[2 * i] * Y[j] + P[2 * i + 1] * Y[2 + j];
        const T g[2] = {eta.y - eta.x * ratio * xi.y, eta.z - eta.x * ratio * xi.z};
        for (int i = 0; i < 2; ++i) m[i] = -(Y[i] * g[0] + Y[2 + i] * g[1]);
        data.eta_slip[0] = -ratio * xi.y;
        data.eta_slip[1] = -ratio * xi.z;
        data.eta_xi = ratio * eta;
    }

    // The scaled product. With u = m₂₃, H₂₂ = θ² (I + 2uuᵀ). Near the cone's boundary |u| exceeds 1e4. Terms must not cancel here, or the
    // direction leaves the cone: cold starts at κ = 1e-9 fail if H₂₂⁻¹ H₂₁ is multiplied out.
    static TD_INLINE void condense(const ConeScaling<T> &s, FrictionData<T> &data) {
        T *N = data.compliance, *m = data.cone_coupling;
        const T u0 = s.middle.y, u1 = s.middle.z, stretch = 1.0 / (1.0 + 2.0 * (u0 * u0 + u1 * u1));
        const T scale = stretch / (s.theta * s.theta), ratio = 2.0 * s.middle.x * stretch;
        N[0] = scale * (1.0 + 2.0 * u1 * u1);
        N[1] = N[2] = -2.0 * scale * u0 * u1;
        N[3] = scale * (1.0 + 2.0 * u0 * u0);
        m[0] = -ratio * u0;
        m[1] = -ratio * u1;
        data.eta_slip[0] = ratio * u0;
        data.eta_slip[1] = ratio * u1;
        data.eta_xi = {s.theta * s.theta * stretch, T{}, T{}};
    }

    // ξ with ξ∘η = `level` e at a given slip, in a cone of about `height` (_disc_start in contacts.py).
    static TD_INLINE void start(const T &height, const T &s1, const T &s2, const T &level, T *xi, T *eta) {
        const T speed = s1 * s1 + s2 * s2, high = max(height, level);
        const T first = (level + sqrt(level * level + 4.0 * high * high * speed)) / (2.0 * high);
        const T scale = level / (first * first - speed);
        xi[0] = scale * first;
        xi[1] = -scale * s1;
        xi[2] = -scale * s2;
        eta[0] = first;
        eta[1] = s1;
        eta[2] = s2;
    }

    // A smoothed projection onto the path (disc_on_path in path_maps.py) of `W` discs side by side.
    struct Point {
        T height, mass, t1, t2;  // the cone's height, and t = β − m slip

        // `put` takes ξ and η
        template <int W, class Put>
        static TD_INLINE void project(const Point *points, const T &kappa, const Put &put) {
            T inverse[W], length[W], base[W], tau[W], epsilon[W], gap[W];
            for (int i = 0; i < W; ++i) {
                const Point &p = points[i];
                inverse[i] = inverse_of(p.height);
                base[i] = kappa * inverse[i];
                length[i] = root(max(p.t1 * p.t1 + p.t2 * p.t2, broadcast<T>(std::numeric_limits<double>::min())));
                tau[i] = length[i] * inverse[i];
                epsilon[i] = base[i] * inverse[i] * p.mass;
            }
            disc_gaps<W>(tau, epsilon, gap);
            for (int i = 0; i < W; ++i) {
                const Point &p = points[i];
                const T inside = quotient(1.0 - gap[i], length[i]), first = quotient(base[i], gap[i] * (2.0 - gap[i]));
                const T force = p.height * inside, slip = -first * inside;
                put(i, Vec3<T>{p.height, force * p.t1, force * p.t2}, Vec3<T>{first, slip * p.t1, slip * p.t2});
            }
        }
    };
};

}  // namespace torchdojo
