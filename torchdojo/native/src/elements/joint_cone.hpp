// Limits and friction of joint coordinates inside the solver: pairs (impulse, slack) with product κ, condensed into rows of their joint.
//
// With δc, δċ the change of coordinate and rate along a direction, and the rows' residuals r:
//   limit      ±δc − δs = −r,  s δγ + γ δs = ρ                    gives  δγ = (ρ − γ (r ± δc))/s
//   friction   δp + δq = −r₁,  δċ − δσ_p + δσ_q = −r₂,
//              σ_p δp + p δσ_p = ρ_p,  σ_q δq + q δσ_q = ρ_q      gives  δp = k (−r₂ − δċ + ρ_p/p − (ρ_q + σ_q r₁)/q),  k = 1/(σ_p/p + σ_q/q)
// and the impulse along the direction is ±γ or (p − q)/2.
#pragma once

#include "elements/free.hpp"

namespace torchdojo {

// g = 1 − x with x + ε x/(1 − x²) = τ, x in [0, 1): how far a friction impulse stays inside its disc. Halley's method from the root for
// small g; after two steps the relative error is below 7e-7 for all τ ≥ 0, ε > 0, after three it is rounding.
// `W` of them side by side: each division waits for the one before.
template <int W, class T>
TD_INLINE void disc_gaps(const T *tau, const T *epsilon, T *gap) {
    const T one = broadcast<T>(1.0);
    T excess[W], g[W];
#pragma GCC unroll 4
    for (int i = 0; i < W; ++i) {
        excess[i] = tau[i] - 1.0;
        const T root = sqrt(excess[i] * excess[i] + 2.0 * epsilon[i]);
        g[i] = min(select(excess[i] > T{}, epsilon[i] / (excess[i] + root), 0.5 * (root - excess[i])), one);
    }
#pragma GCC unroll 1
    for (int k = 0; k < 3; ++k) {
#pragma GCC unroll 4
        for (int i = 0; i < W; ++i) {
            const T q = g[i] * (2.0 - g[i]), r = excess[i] + g[i], twice = 2.0 * (1.0 - g[i]);
            const T value = q * r - epsilon[i] * (1.0 - g[i]), slope = twice * r + q + epsilon[i], bend = twice - r;
            g[i] = g[i] - value * slope / (slope * slope - value * bend);
            g[i] = min(max(g[i], broadcast<T>(std::numeric_limits<double>::min())), one);
        }
    }
    for (int i = 0; i < W; ++i) gap[i] = g[i];
}
template <class T>
TD_INLINE T disc_gap(const T &tau, const T &epsilon) {
    T gap;
    disc_gaps<1>(&tau, &epsilon, &gap);
    return gap;
}

// Impulse per slack of a smoothed projection: a secant of Newton's points (weight_of in path_maps.py), in the lanes of `known`.
template <class T>
struct PathWeight {
    T product{}, square{};

    TD_INLINE void add(const T &impulse, const T &slack) { product += impulse * slack, square += slack * slack; }
    TD_INLINE T operator()(const T &nominal, const Mask<T> &known) const {
        const T secant = min(max(product / square, nominal), constant::most_weight * nominal);
        return select(known, select(product > T{}, secant, constant::other_weight * nominal), nominal);
    }
};

// The point of Newton's step before: gives the change since, and takes the new one.
template <class T>
TD_INLINE T change(T &before, const T &now) {
    const T from = before;
    before = now;
    return now - from;
}

// γ > 0 with γ − a κ/γ = c: the positive root, without cancellation.
template <class T>
TD_INLINE T orthant_on_path(const T &c, const T &a, const T &kappa) {
    const T level = kappa * a, root = sqrt(c * c + 4.0 * level);
    return select(c > T{}, 0.5 * (c + root), 2.0 * level / (root - c));
}

template <class T>
class JointCones {
public:
    static void condense(Problem<T> &problem, const T *w) {
        for_each(problem, [&](const JointConeTable &cone, JointConeData<T> &data) {
            const T *x = w + cone.impulse, *s = w + cone.slack;
            if (cone.kind == JointConeTable::friction) {
                data.inverse[0] = 1.0 / x[0], data.inverse[1] = 1.0 / x[cone.stride];
                data.stiffness = 1.0 / (s[0] * data.inverse[0] + s[cone.stride] * data.inverse[1]);
            } else {
                data.inverse[0] = 1.0 / s[0];
                data.stiffness = x[0] * data.inverse[0];
            }
        });
    }

    // As Cones::aim.
    static void aim(Problem<T> &problem, const T *w, const T &target, const T *weight) {
        for_each_pair(problem, [&](const JointConeTable &, JointConeData<T> &data, int k, int impulse, int slack) {
            data.rho[k] = target - w[impulse] * w[slack];
            if (weight) data.rho[k] -= *weight * data.impulse[k] * data.slack[k];
        });
    }

    // Products that should become −delta, plainly linearized.
    static void aim_at(Problem<T> &problem, const T *delta) {
        for_each_pair(problem, [&](const JointConeTable &, JointConeData<T> &data, int k, int, int slack) { data.rho[k] = -delta[slack]; });
    }

    // Right-hand sides of the rows, and, once x is solved for, the directions of the pairs.
    static void begin(Problem<T> &problem, const T *w, const T *residual, T *x) {
        for_each(problem, [&](const JointConeTable &cone, JointConeData<T> &data) {
            eliminate(cone, data, w, residual, T{});
            x[problem.mechanism.joints[cone.joint].right + cone.row] += data.along(cone);
        });
    }
    static void finish(Problem<T> &problem, const T *w, const T *residual, const T *x) {
        for_each(problem, [&](const JointConeTable &cone, JointConeData<T> &data) {
            const JointTable &joint = problem.mechanism.joints[cone.joint];
            const bool world = joint.parent == problem.mechanism.num_bodies;
            const T *child = x + problem.mechanism.bodies[joint.child].right;
            const T *parent = world ? nullptr : x + problem.mechanism.bodies[joint.parent].right;
            eliminate(cone, data, w, residual, problem.cone_row(cone).times(child, parent));
        });
    }

    static void set_direction(Problem<T> &problem, const T *delta) {
        for_each_pair(problem, [&](const JointConeTable &, JointConeData<T> &data, int k, int impulse, int slack) {
            data.impulse[k] = delta[impulse], data.slack[k] = delta[slack];
        });
    }

    template <class Put>
    static void store_direction(const Problem<T> &problem, const Put &put) {
        for_each_pair(problem, [&](const JointConeTable &, const JointConeData<T> &data, int k, int impulse, int slack) {
            put(impulse, data.impulse[k]), put(slack, data.slack[k]);
        });
    }

    // Cone variables for the velocities in w with products of `level` (JointLimits.start, JointFriction.start), in the lanes of `mask`.
    static void start(Problem<T> &problem, T *w, const T &level, const Mask<T> &mask) {
        const T h = problem.timestep();
        for (const JointTable &joint : problem.mechanism.joints) {
            if (!joint.num_cones) continue;
            BodyPose<T> next[2];
            for (const int which : {0, 1}) {
                const int body = which ? joint.child : joint.parent;
                next[which] = problem.bodies[body].pose;
                if (body == problem.mechanism.num_bodies) continue;
                const Vec3<T> a = (0.5 * h) * load3(w + 6 * body + 3);
                next[which].x = next[which].x + h * load3(w + 6 * body);
                next[which].q = next[which].q * Quat<T>{sqrt(1.0 - dot(a, a)), a};
                next[which].R = rotation_matrix(next[which].q);
            }
            const JointData<T> &data = problem.joints[&joint - problem.mechanism.joints.data()];
            FreeData<T> &free = problem.free[joint.free_data];
            free_values(problem, joint, data, problem.relative(joint, next[0], next[1], data.offset_quaternion), free);
            for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
                const JointConeTable &cone = problem.mechanism.joint_cones[c];
                const T value = problem.parameters[cone.parameter];
                auto put = [&](int k, const T &impulse, const T &slack) {
                    T &x = w[cone.impulse + k], &s = w[cone.slack + k];
                    x = select(mask, impulse, x), s = select(mask, slack, s);
                };
                if (cone.kind == JointConeTable::friction) {
                    const T b = max(h * value, broadcast<T>(constant::least_height)), rate = free.rate[cone.coordinate];
                    const T y = b * abs(rate) / level, root = sqrt(1.0 + y * y);
                    put_pair(b, (1.0 + 1.0 / (root + y)) / (1.0 + root), rate <= T{}, level, cone.stride, put);
                } else {
                    const T gap = max(cone.sign() * (free.coordinate[cone.coordinate] - value), sqrt(level));
                    put(0, level / gap, gap);
                }
            }
        }
    }

    // The pairs of w moved onto the path (JointLimits.on_path, JointFriction.on_path), in the lanes of `mask`. `before`: see Cones::project.
    static void project(Problem<T> &problem, const T &kappa, const Mask<T> &mask, T *w, T *before, const Mask<T> &known) {
        const T h = problem.timestep(), worth = 1.0 / (1.0 / constant::impulse_weight * h);
        for_each(problem, [&](const JointConeTable &cone, JointConeData<T> &) {
            T *x = w + cone.impulse, *s = w + cone.slack;
            auto put = [&](int k, const T &impulse, const T &slack) {
                x[k] = select(mask, impulse, x[k]), s[k] = select(mask, slack, s[k]);
            };
            T *x_before = before + cone.impulse, *s_before = before + cone.slack;
            PathWeight<T> weight;
            if (cone.kind == JointConeTable::friction) {
                const int q = cone.stride;
                const T dx = change(x_before[0], x[0]) - change(x_before[q], x[q]), ds = change(s_before[0], s[0]) - change(s_before[q], s[q]);
                weight.add(0.5 * dx, ds);
                const T mass = weight(problem.cone_mass(cone), known);
                const T b = max(h * problem.parameters[cone.parameter], broadcast<T>(constant::least_height)), inverse = 1.0 / b;
                const T t = 0.5 * (x[0] - x[q]) - mass * (s[0] - s[q]);
                put_pair(b, disc_gap(abs(t) * inverse, 2.0 * kappa * inverse * (mass * inverse)), t >= T{}, kappa, q, put);
            } else {
                weight.add(change(x_before[0], x[0]), change(s_before[0], s[0]));
                const T a = weight(worth * problem.cone_mass(cone), known);
                const T gamma = orthant_on_path(x[0] - a * s[0], a, kappa);
                put(0, gamma, kappa / gamma);
            }
        });
    }

    template <class F>
    static void for_each(Problem<T> &problem, const F &f) {
        for (size_t c = 0; c < problem.joint_cones.size(); ++c) f(problem.mechanism.joint_cones[c], problem.joint_cones[c]);
    }
    // f(cone, data, which, place of the impulse, place of the slack)
    template <class Any, class F>
    static void for_each_pair(Any &problem, const F &f) {
        for (size_t c = 0; c < problem.joint_cones.size(); ++c) {
            const JointConeTable &cone = problem.mechanism.joint_cones[c];
            for (int k = 0; k < cone.pairs(); ++k)
                f(cone, problem.joint_cones[c], k, cone.impulse + k * cone.stride, cone.slack + k * cone.stride);
        }
    }

private:
    // (p, q) with p + q = 2b and the smaller one b·gap; the larger one is p where `first`.
    template <class Put>
    static TD_INLINE void put_pair(const T &b, const T &gap, const Mask<T> &first, const T &kappa, int stride, const Put &put) {
        const T p = b * select(first, 2.0 - gap, gap), q = b * select(first, gap, 2.0 - gap);
        put(0, p, kappa / p), put(stride, q, kappa / q);
    }

    // Direction of the pairs for a change `move` of the coordinate (limits) or of the rate (friction).
    static TD_INLINE void eliminate(const JointConeTable &cone, JointConeData<T> &data, const T *w, const T *residual, const T &move) {
        const T *x = w + cone.impulse, *s = w + cone.slack;
        const T first = residual ? residual[cone.impulse] : T{};
        if (cone.kind == JointConeTable::friction) {
            const int q = cone.stride;
            const T second = residual ? residual[cone.impulse + q] : T{};
            data.impulse[0] =
                data.stiffness * (data.inverse[0] * data.rho[0] - data.inverse[1] * (data.rho[1] + s[q] * first) - second - move);
            data.impulse[1] = -first - data.impulse[0];
            data.slack[0] = data.inverse[0] * (data.rho[0] - s[0] * data.impulse[0]);
            data.slack[1] = data.inverse[1] * (data.rho[1] - s[q] * data.impulse[1]);
        } else {
            data.slack[0] = cone.sign() * move + first;
            data.impulse[0] = data.inverse[0] * (data.rho[0] - x[0] * data.slack[0]);
        }
    }
};

}  // namespace torchdojo
