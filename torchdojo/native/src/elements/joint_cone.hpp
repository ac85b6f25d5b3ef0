// Limits, friction and drives of joint coordinates and rates inside the solver: pairs (impulse, slack) with product κ, condensed into rows
// of their joint.
//
// With δc, δċ the change of coordinate and rate along a direction, and the rows' residuals r:
//   limit      ±δc − δs = −r,  s δγ + γ δs = ρ
//              gives  δγ = (ρ − γ (r ± δc))/s.  Limits of rates have δċ in the place of δc.
//   friction   δp + δq = −r₁,  δċ + c δλ − δσ_p + δσ_q = −r₂,  σ_p δp + p δσ_p = ρ_p,  σ_q δq + q δσ_q = ρ_q,  λ = (p − q)/2
//   or drive   gives  δp = k (−r₂ − c r₁/2 − δċ + ρ_p/p − (ρ_q + σ_q r₁)/q),  k = 1/(c + σ_p/p + σ_q/q).
//
// The impulse along the direction is ±γ or λ. The compliance c is zero for friction, and 1/(g h) for a drive.
#pragma once

#include "elements/free.hpp"
#include "elements/path.hpp"
#include "gradient/adjoint_state.hpp"
#include "solver/cone_state.hpp"

namespace torchdojo {

template <class T>
struct JointCones {
    static void condense(ConeState<T> &, Problem<T> &problem, const T *w) {
        for_each(problem, [&](const JointConeTable &cone, JointConeData<T> &data) {
            const T *x = w + cone.impulse, *s = w + cone.slack;
            if (cone.is_pair()) {
                data.inverse[0] = inverse_of(x[0]);
                data.inverse[1] = inverse_of(x[cone.stride]);
                T yielding = s[0] * data.inverse[0] + s[cone.stride] * data.inverse[1];
                if (cone.kind == JointConeTable::drive) yielding += data.drive.compliance;
                data.stiffness = inverse_of(yielding);
            } else {
                data.inverse[0] = inverse_of(s[0]);
                data.stiffness = x[0] * data.inverse[0];
            }
        });
    }

    // Right-hand sides of the rows, and, once x is solved, the directions of the pairs.
    template <class System>
    static void begin(ConeState<T> &cones, Problem<T> &problem, const T *w, const T *residual, System &system) {
        for_each(problem, [&](const JointConeTable &cone, const JointConeData<T> &data) {
            eliminate(cones, cone, data, w, residual, T{});
            const T *impulse = &cones.direction[cone.impulse];
            const T pushed = cone.is_pair() ? 0.5 * (impulse[0] - impulse[cone.stride]) : cone.sign() * impulse[0];
            T *to = system.x + problem.mechanism.joints[cone.joint].right;
            problem.each_row(cone, [&](int row, const T &weight) { to[row] += weight * pushed; });
        });
    }
    template <class System>
    static void finish(ConeState<T> &cones, Problem<T> &problem, const T *w, const T *residual, const System &system) {
        for_each(problem, [&](const JointConeTable &cone, const JointConeData<T> &data) {
            const JointTable &joint = problem.mechanism.joints[cone.joint];
            const bool world = joint.parent == problem.mechanism.num_bodies;
            const T *parent = world ? nullptr : system.solution(joint.parent);
            eliminate(cones, cone, data, w, residual, problem.cone_row(cone).times(system.solution(joint.child), parent));
        });
    }

    // Cone variables for the velocities in w with products of `level` (JointLimits.start, JointFriction.start), in the lanes of `mask`.
    static void start(const ConeState<T> &, Problem<T> &problem, T *w, const T &level, const Mask<T> &mask) {
        const T h = problem.timestep();
        for (const JointTable &joint : problem.mechanism.joints) {
            if (!joint.num_cones) continue;
            BodyPose<T> next[2];
            for (const int which : {0, 1}) {
                const int body = which ? joint.child : joint.parent;
                const BodyPose<T> &pose = problem.bodies[body].pose;
                const bool world = body == problem.mechanism.num_bodies;
                next[which] = world ? pose : pose_after(pose, h, load3(w + 6 * body), load3(w + 6 * body + 3));
            }
            const JointData<T> &data = problem.joints[&joint - problem.mechanism.joints.data()];
            FreeData<T> &free = problem.free[joint.free_data];
            free_values(problem, joint, data, problem.relative(joint, next[0], next[1], data.offset_quaternion), free);
            for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
                const JointConeTable &cone = problem.mechanism.joint_cones[c];
                const T value = problem.parameters[cone.parameter];
                auto put = [&](int k, const T &impulse, const T &slack) {
                    T &x = w[cone.impulse + k], &s = w[cone.slack + k];
                    x = select(mask, impulse, x);
                    s = select(mask, slack, s);
                };
                if (cone.kind == JointConeTable::friction) {
                    const T b = max(h * value, broadcast<T>(constant::least_height)), rate = problem.cone_rate(cone);
                    const T y = b * abs(rate) / level, root = sqrt(1.0 + y * y);
                    put_pair(b, (1.0 + 1.0 / (root + y)) / (1.0 + root), rate <= T{}, level, cone.stride, put);
                } else if (cone.kind == JointConeTable::drive) {
                    const T b = max(h * value, broadcast<T>(constant::least_height));
                    put_pair(b, broadcast<T>(1.0), negate(Mask<T>{}), level, cone.stride, put);
                } else {
                    const T gap = max(cone_room(cone, problem.joint_cones[c], free, value), sqrt(level));
                    put(0, level / gap, gap);
                }
            }
        }
    }

    // Moves the pairs of w onto the path, in the lanes of `mask` (JointLimits.on_path, JointFriction.on_path).
    static void project(const ConeState<T> &, Problem<T> &problem, const T &kappa, const Mask<T> &mask, T *w, T *before,
                        const Mask<T> &known) {
        const T h = problem.timestep(), limit_scale = 1.0 / (1.0 / constant::impulse_weight * h);
        constexpr int width = 4;
        const JointConeTable *waiting[width];
        T height[width], tau[width], epsilon[width], gap[width];
        Mask<T> forward[width];
        int count = 0;
        const auto put = [&](const JointConeTable &cone, int k, const T &impulse, const T &slack) {
            T &x = w[cone.impulse + k], &s = w[cone.slack + k];
            x = select(mask, impulse, x);
            s = select(mask, slack, s);
        };
        const auto finish = [&] {
            for (int i = count; i < width; ++i) {
                tau[i] = tau[0];
                epsilon[i] = epsilon[0];
            }
            disc_gaps<width>(tau, epsilon, gap);
            for (int i = 0; i < count; ++i)
                put_pair(height[i], gap[i], forward[i], kappa, waiting[i]->stride,
                         [&](int k, const T &impulse, const T &slack) { put(*waiting[i], k, impulse, slack); });
            count = 0;
        };
        for_each(problem, [&](const JointConeTable &cone, const JointConeData<T> &) {
            const T *x = w + cone.impulse, *s = w + cone.slack;
            T *x_before = before + cone.impulse, *s_before = before + cone.slack;
            PathWeight<T> weight;
            if (cone.is_pair()) {
                const int q = cone.stride;
                const T dx = change(x_before[0], x[0]) - change(x_before[q], x[q]),
                        ds = change(s_before[0], s[0]) - change(s_before[q], s[q]);
                weight.add(0.5 * dx, ds);
                const T mass = weight(problem.cone_mass(cone), known);
                const T b = max(h * problem.parameters[cone.parameter], broadcast<T>(constant::least_height)), inverse = inverse_of(b);
                const T t = 0.5 * (x[0] - x[q]) - mass * (s[0] - s[q]);
                waiting[count] = &cone;
                height[count] = b;
                forward[count] = t >= T{};
                tau[count] = abs(t) * inverse;
                epsilon[count] = 2.0 * kappa * inverse * (mass * inverse);
                if (++count == width) finish();
            } else {
                weight.add(change(x_before[0], x[0]), change(s_before[0], s[0]));
                const T a = weight(cone.on_rate() ? problem.cone_mass(cone) : limit_scale * problem.cone_mass(cone), known);
                const T gamma = orthant_on_path(x[0] - a * s[0], a, kappa);
                put(cone, 0, gamma, quotient(kappa, gamma));
            }
        });
        if (count) finish();
    }

    // The transposed system, as in ContactCones.
    template <class R>
    static void add_multipliers(AdjointState<T, R> &adjoint, const Problem<T> &problem, const R *g, const R *x) {
        for (int c = 0; c < problem.mechanism.num_joint_cones; ++c) adjoint.pressing[c] += multiplier(problem, c, g, x);
    }

    template <class R>
    static void subtract(const AdjointState<T, R> &adjoint, const Problem<T> &problem, R *y) {
        for (int c = 0; c < problem.mechanism.num_joint_cones; ++c) subtract(adjoint, problem, c, y);
    }

    template <class R, class F>
    static void each_held(const AdjointState<T, R> &adjoint, const F &f) {
        for (int c = 0; c < adjoint.mechanism.num_joint_cones; ++c) {
            const JointConeTable &cone = adjoint.mechanism.joint_cones[c];
            f(cone.impulse, adjoint.pressing[c]);
            if (cone.pairs() > 1) f(cone.impulse + cone.stride, -adjoint.pressing[c]);
        }
    }

    // w and its gradient g.
    template <class R>
    static void store_multipliers(AdjointState<T, R> &adjoint, const Problem<T> &problem, const T *w, const R *g) {
        const MechanismTable &m = adjoint.mechanism;
        for (int c = 0; c < m.num_joint_cones; ++c) {
            const JointConeTable &cone = m.joint_cones[c];
            const R &nu = adjoint.pressing[c];
            if (cone.is_pair()) {
                const T ratio = w[cone.slack] / w[cone.impulse];
                T compliance = adjoint.give ? ratio - adjoint.give[cone.impulse] : ratio;
                if (cone.kind == JointConeTable::drive) compliance += 0.5 * problem.joint_cones[c].drive.compliance;
                adjoint.multiplier[cone.impulse + cone.stride] = nu;
                adjoint.multiplier[cone.impulse] = g[cone.impulse] + 0.5 * along(problem, cone, adjoint.right.data()) - compliance * nu;
            } else {
                adjoint.multiplier[cone.impulse] = nu;
            }
        }
    }

private:
    // μ, the sum of the joint's rows of x in which the impulse of a cone acts.
    template <class R>
    static TD_INLINE R along(const Problem<T> &problem, const JointConeTable &cone, const R *x) {
        const R *rows = x + problem.mechanism.joints[cone.joint].right;
        R sum{};
        problem.each_row(cone, [&](int row, const T &weight) { sum += weight * rows[row]; });
        return sum;
    }

    // ν of the row of a limit, or of the rate's row of a friction, from λ = x (null: zero). The pair acts in a row of the joint with the
    // multiplier μ. Columns of the transposed system:
    //   limit:     γ: s ν_s ∓ μ = g_γ,  s: γ ν_s − ν = 0
    //   friction:  p: ν₁ + c ν/2 + σ_p ν_p − μ/2 = g_p,  q: ν₁ − c ν/2 + σ_q ν_q + μ/2 = g_q,  σ: p ν_p = ν,  q ν_q = −ν
    template <class R>
    static TD_INLINE R multiplier(const Problem<T> &problem, int c, const R *g, const R *x) {
        const JointConeTable &cone = problem.mechanism.joint_cones[c];
        R right = g[cone.impulse];
        if (cone.is_pair()) right = right - g[cone.impulse + cone.stride];
        if (x) {
            const R mu = along(problem, cone, x);
            right = cone.sign() < 0 ? right - mu : right + mu;
        }
        return problem.joint_cones[c].stiffness * right;
    }

    // y −= (derivative of that row)ᵀ ν
    template <class R>
    static TD_INLINE void subtract(const AdjointState<T, R> &adjoint, const Problem<T> &problem, int c, R *y) {
        const JointConeTable &cone = problem.mechanism.joint_cones[c];
        const JointTable &joint = problem.mechanism.joints[cone.joint];
        const TwistRow<T> &row = problem.cone_row(cone);
        const R nu = cone.sign() * adjoint.pressing[c];
        R *child = y + problem.mechanism.bodies[joint.child].right;
        for (int k = 0; k < 3; ++k) {
            child[k] -= row.linear[k] * nu;
            child[3 + k] -= row.child[k] * nu;
        }
        if (joint.parent == problem.mechanism.num_bodies) return;
        R *parent = y + problem.mechanism.bodies[joint.parent].right;
        for (int k = 0; k < 3; ++k) {
            parent[k] += row.linear[k] * nu;
            parent[3 + k] -= row.parent[k] * nu;
        }
    }

    // Puts p and q with p + q = 2b and the smaller one b·gap. The larger one is p in the lanes of `first`.
    template <class Put>
    static TD_INLINE void put_pair(const T &b, const T &gap, const Mask<T> &first, const T &kappa, int stride, const Put &put) {
        const T p = b * select(first, 2.0 - gap, gap), q = b * select(first, gap, 2.0 - gap);
        put(0, p, quotient(kappa, p));
        put(stride, q, quotient(kappa, q));
    }

    // Direction of the pairs for a change `move` of the coordinate (limits) or of the rate (friction).
    static TD_INLINE void eliminate(ConeState<T> &cones, const JointConeTable &cone, const JointConeData<T> &data, const T *w,
                                    const T *residual, const T &move) {
        const T *x = w + cone.impulse, *s = w + cone.slack, *row = cones.rows(residual, cone.impulse), *rho = &cones.right[cone.slack];
        T *impulse = &cones.direction[cone.impulse], *slack = &cones.direction[cone.slack];
        const T first = row[0];
        if (cone.is_pair()) {
            const int q = cone.stride;
            T wanted = data.inverse[0] * rho[0] - data.inverse[1] * (rho[q] + s[q] * first) - row[q] - move;
            if (cone.kind == JointConeTable::drive) wanted -= 0.5 * data.drive.compliance * first;
            impulse[0] = data.stiffness * wanted;
            impulse[q] = -first - impulse[0];
            slack[0] = data.inverse[0] * (rho[0] - s[0] * impulse[0]);
            slack[q] = data.inverse[1] * (rho[q] - s[q] * impulse[q]);
        } else {
            slack[0] = cone.sign() * move + first;
            impulse[0] = data.inverse[0] * (rho[0] - x[0] * slack[0]);
        }
    }

    template <class F>
    static TD_INLINE void for_each(Problem<T> &problem, const F &f) {
        for (size_t c = 0; c < problem.joint_cones.size(); ++c) f(problem.mechanism.joint_cones[c], problem.joint_cones[c]);
    }
};

}  // namespace torchdojo
