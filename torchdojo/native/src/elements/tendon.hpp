// Tendons (elements/tendon.py): an impulse λ along the length L of a path, whose gradient g belongs to the current configuration,
//
//     λ = h (k e + u) − h D g·V⁺,    D = d, or d + h k where an implicit spring is stretched.
//
// λ g acts on the bodies. So λ is a function of the velocities, and no unknown: bodies i and j of a tendon with D get h D g_i g_jᵀ in the matrix,
// and the bodies of one without D get a constant impulse, as from external forces. The place of λ in w is filled when the step is solved.
//
// With multipliers α of the balance of momentum and a gradient γ by λ, −λᵀ∂r has λ (α·g) + γ λ. Its derivative is that of
//
//     g·c + μ h (k e + u),   μ = γ + α·g,   c = λ α − μ h D V⁺.
#pragma once

#include "elements/joint_impulse.hpp"
#include "elements/tendon_impulse.hpp"
#include "elements/tendon_path.hpp"

namespace torchdojo {

template <class T>
struct Tendons {
    static void prepare(Problem<T> &problem) {
        for (int i = 0; i < problem.mechanism.num_tendons; ++i) prepare(problem, problem.mechanism.tendons[i], problem.tendons[i]);
    }

    template <bool condensed, bool derived>
    static void linearize(Problem<T> &problem, const T *w) {
        const MechanismTable &m = problem.mechanism;
        for (int i = 0; i < m.num_tendons; ++i)
            if (m.tendons[i].damped) linearize<derived>(problem, i, w);
    }

    static void condense(Problem<T> &) {}

    template <class R>
    static void differentiate(AdjointState<T, R> &, const Problem<T> &, const T *) {}

    // The right-hand side of bodies, from a gradient of w with impulses of tendons.
    template <class R>
    static void begin(AdjointState<T, R> &adjoint, const Problem<T> &problem, const R *g) {
        const MechanismTable &m = problem.mechanism;
        for (int i = 0; i < m.num_tendons; ++i) {
            const TendonTable &tendon = m.tendons[i];
            adjoint.of_tendons[i] = g[tendon.row];
            if (!tendon.damped) continue;
            const R weight = problem.tendons[i].damping * g[tendon.row];
            each_pull(problem, tendon, [&](int body, const Pull<T> &pull) {
                R *right = &adjoint.right[m.bodies[body].right];
                subtract3(right, weight * pull.force), subtract3(right + 3, weight * pull.torque);
            });
        }
    }

    template <class R>
    static void multiply(AdjointState<T, R> &adjoint, const Problem<T> &problem, const T *w) {
        const MechanismTable &m = problem.mechanism;
        for (int i = 0; i < m.num_tendons; ++i) {
            const TendonTable &tendon = m.tendons[i];
            const TendonData<T> &data = problem.tendons[i];
            const T h = problem.timestep(), lambda = tendon_impulse(problem, i, w);
            R mu = adjoint.of_tendons[i];
            each_pull(problem, tendon, [&](int body, const Pull<T> &pull) {
                const R *alpha = &adjoint.multiplier[6 * body];
                mu += dot(load3(alpha), pull.force) + dot(load3(alpha + 3), pull.torque);
            });
            if (tendon.input >= 0) adjoint.gradient.u[tendon.input] += h * mu;
            Pull<R> c[most_tendon_bodies];
            const R drag = data.damping * mu;
            for (int k = 0; k < tendon.num_bodies; ++k) {
                const int body = m.tendon_bodies[tendon.first_body + k];
                c[k] = Pull<R>{};
                if (body == m.num_bodies) continue;
                const R *alpha = &adjoint.multiplier[6 * body];
                const T *twist = w + 6 * body;
                c[k].force = lambda * load3(alpha) - drag * load3(twist), c[k].torque = lambda * load3(alpha + 3) - drag * load3(twist + 3);
            }
            const R by_length = data.stiffness * mu;
            path_of(problem, tendon)
                .pull_back(pulls_of(problem, tendon), by_length, c, [&](int place, const Vec3<R> &x, const Vec3<R> &phi) {
                    const int body = m.tendon_bodies[tendon.first_body + place];
                    adjoint.gradient.x[body] = adjoint.gradient.x[body] + x, adjoint.gradient.phi[body] = adjoint.gradient.phi[body] + phi;
                });
        }
    }

    // Gradients of parameters with tendons are those of the reference (engine/backends.py).
    static void add_parameters(ParameterSum<T> &, const Problem<T> &, const AdjointState<T, T> &, const T *) {}

private:
    template <class R>
    static TD_INLINE void subtract3(R *p, const Vec3<R> &v) {
        p[0] -= v.x, p[1] -= v.y, p[2] -= v.z;
    }

    static TendonPath<T> path_of(const Problem<T> &problem, const TendonTable &tendon) {
        return {problem.mechanism, tendon, problem.parameters.data(),
                [&](int body) -> const BodyPose<T> & { return problem.bodies[body].pose; }};
    }
    static const Pull<T> *pulls_of(const Problem<T> &problem, const TendonTable &tendon) { return &problem.pulls[tendon.first_body]; }

    static void prepare(Problem<T> &problem, const TendonTable &tendon, TendonData<T> &data) {
        const T h = problem.timestep(), *p = &problem.parameters[tendon.parameters];
        const T length = path_of(problem, tendon).length(&problem.pulls[tendon.first_body]);
        const T below = max(p[parameter::tendon::rest_lower] - length, T{}), above = max(length - p[parameter::tendon::rest_upper], T{});
        const T stretch = below - above, stiffness = select(stretch == T{}, T{}, p[parameter::tendon::stiffness]);
        data.stiffness = -h * stiffness;
        data.given = h * (p[parameter::tendon::stiffness] * stretch);
        if (tendon.input >= 0) data.given += h * problem.u[tendon.input];
        data.damping = h * p[parameter::tendon::damping];
        if (tendon.implicit) data.damping += (h * h) * stiffness;
        if (tendon.damped) return;
        data.damping = T{};
        each_pull(problem, tendon, [&](int body, const Pull<T> &pull) {
            BodyData<T> &to = problem.bodies[body];
            to.linear = to.linear + data.given * pull.force, to.angular = to.angular + data.given * pull.torque;
        });
    }

    template <bool derived>
    static void linearize(Problem<T> &problem, int number, const T *w) {
        const MechanismTable &m = problem.mechanism;
        const TendonTable &tendon = m.tendons[number];
        const TendonData<T> &data = problem.tendons[number];
        const T lambda = tendon_impulse(problem, number, w);
        each_pull(problem, tendon, [&](int body, const Pull<T> &pull) {
            add3(&problem.residual[6 * body], -(lambda * pull.force)), add3(&problem.residual[6 * body + 3], -(lambda * pull.torque));
        });
        if constexpr (!derived) return;
        for (int i = 0; i < tendon.num_bodies; ++i)
            for (int j = 0; j < tendon.num_bodies; ++j) {
                const int32_t block = m.tendon_blocks[tendon.first_block + i * tendon.num_bodies + j];
                if (block < 0) continue;
                const Pull<T> &row = problem.pulls[tendon.first_body + i], &column = problem.pulls[tendon.first_body + j];
                const Vec3<T> force = data.damping * column.force, torque = data.damping * column.torque;
                for (int r = 0; r < 6; ++r) {
                    const T &entry = r < 3 ? row.force[r] : row.torque[r - 3];
                    add3(&problem.values[block + 6 * r], entry * force), add3(&problem.values[block + 6 * r + 3], entry * torque);
                }
            }
    }
};

}  // namespace torchdojo
