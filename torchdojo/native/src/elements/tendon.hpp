// Tendons (elements/tendon.py): an impulse λ along the length L of a path, whose gradient g belongs to the current configuration,
//
//     λ = h (k e + u) − h D L̇ + laws(L, L̇),    L̇ = g·V⁺,    D = d, or d + h k where an implicit spring is stretched,
//
// with the laws of limits, friction and armature. λ g acts on the bodies. So λ is a function of the velocities, and no unknown: bodies i and j
// get −λ′ g_i g_jᵀ in the matrix, with the derivative λ′ by the rate, which is never positive, and the bodies of a tendon without D and laws
// get a constant impulse, as from external forces. The place of λ in w is filled when the step is solved.
//
// With multipliers α of the balance of momentum and a gradient γ by λ, −λᵀ∂r has λ (α·g) + γ λ. Its derivative is that of
//
//     g·c + μ λ(L),   μ = γ + α·g,   c = λ α + μ λ′ V⁺,
//
// and of μ a L̇⁻ with the rate of the step before, where the tendon has an armature a.
#pragma once

#include "elements/joint_geometry.hpp"
#include "elements/joint_impulse.hpp"
#include "elements/tendon_impulse.hpp"
#include "elements/tendon_path.hpp"

namespace torchdojo {

template <class T>
struct Tendons {
    static void prepare(Problem<T> &problem) {
        const bool wanted = any(negate(problem.measured));
        for (int i = 0; i < problem.mechanism.num_tendons; ++i) {
            if (wanted) measure(problem, problem.mechanism.tendons[i], problem.tendons[i]);
            prepare(problem, problem.mechanism.tendons[i], problem.tendons[i]);
        }
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
            const R weight = problem.tendons[i].by_rate * g[tendon.row];
            each_pull(problem, tendon, [&](int body, const Pull<T> &pull) {
                R *right = &adjoint.right[m.bodies[body].right];
                subtract3(right, weight * pull.force);
                subtract3(right + 3, weight * pull.torque);
            });
        }
    }

    template <class R>
    static void multiply(AdjointState<T, R> &adjoint, const Problem<T> &problem, const T *w) {
        const MechanismTable &m = problem.mechanism;
        for (int i = 0; i < m.num_tendons; ++i) {
            const TendonTable &tendon = m.tendons[i];
            const TendonData<T> &data = problem.tendons[i];
            const T h = problem.timestep();
            const T lambda = tendon_impulse(problem, i, w);
            const R mu = weight(adjoint, problem, i);
            if (tendon.input >= 0) adjoint.gradient.u[tendon.input] += h * mu;
            Pull<R> own[most_tendon_bodies], *c = adjoint.tendons.later ? &adjoint.tendons.along[tendon.first_body] : own;
            const R drag = data.by_rate * mu;
            for (int k = 0; k < tendon.num_bodies; ++k) {
                const int body = m.tendon_bodies[tendon.first_body + k];
                c[k] = Pull<R>{};
                if (body == m.num_bodies) continue;
                const R *alpha = &adjoint.multiplier[6 * body];
                const T *twist = w + 6 * body;
                c[k].force = lambda * load3(alpha) - drag * load3(twist);
                c[k].torque = lambda * load3(alpha + 3) - drag * load3(twist + 3);
            }
            const R by_length = data.by_length * mu;
            if (adjoint.tendons.later) adjoint.tendons.by_length[i] = by_length;
            else pull_back(adjoint, problem, tendon, pulls_of(problem, tendon), by_length, c);
            if (tendon.armature) multiply_incoming(adjoint, problem, tendon, mu);
        }
    }

    // Adds the gradient of by_length · L + g · c by the current poses.
    template <class R>
    static void pull_back(AdjointState<T, R> &adjoint, const Problem<T> &problem, const TendonTable &tendon, const Pull<T> *pulls,
                          const R &by_length, const Pull<R> *c) {
        Pull<R> by[most_tendon_bodies];
        path_of(problem, tendon).pull_back(pulls, by_length, c, by);
        for (int k = 0; k < tendon.num_bodies; ++k) {
            const int body = problem.mechanism.tendon_bodies[tendon.first_body + k];
            adjoint.gradient.x[body] = adjoint.gradient.x[body] + by[k].force;
            adjoint.gradient.phi[body] = adjoint.gradient.phi[body] + by[k].torque;
        }
    }

    static void add_parameters(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint, const T *w) {
        for (int i = 0; i < problem.mechanism.num_tendons; ++i) add_parameters(to, problem, adjoint, i, w);
    }

private:
    // The poses of the places of a tendon before the step that led here, and its pulls there.
    struct Before {
        BodyPose<T> poses[most_tendon_bodies];
        Pull<T> pulls[most_tendon_bodies] = {};
        Pull<T> motion[most_tendon_bodies] = {};  // velocities that led here
        int next = 0;

        Before(const Problem<T> &problem, const TendonTable &tendon) {
            const MechanismTable &m = problem.mechanism;
            for (int k = 0; k < tendon.num_bodies; ++k) {
                const int body = m.tendon_bodies[tendon.first_body + k];
                poses[k] = problem.bodies[body].pose;
                if (body == m.num_bodies) continue;
                const T *state = &problem.z[state_size * body];
                motion[k] = {load3(state + 3), load3(state + 10)};
                poses[k] = pose_before(poses[k], problem.timestep(), motion[k].force, motion[k].torque);
            }
        }
        TendonPath<T> path(const Problem<T> &problem, const TendonTable &tendon) {
            next = 0;
            return {problem.mechanism, tendon, problem.parameters.data(), [&](int) -> const BodyPose<T> & { return poses[next++]; }};
        }
    };

    // μ of a tendon.
    template <class R>
    static R weight(const AdjointState<T, R> &adjoint, const Problem<T> &problem, int number) {
        R mu = adjoint.of_tendons[number];
        each_pull(problem, problem.mechanism.tendons[number], [&](int body, const Pull<T> &pull) {
            const R *alpha = &adjoint.multiplier[6 * body];
            mu += dot(load3(alpha), pull.force) + dot(load3(alpha + 3), pull.torque);
        });
        return mu;
    }

    // μ a L̇⁻ = μ a g⁻·V by the poses and the velocities V that led here.
    template <class R>
    static void multiply_incoming(AdjointState<T, R> &adjoint, const Problem<T> &problem, const TendonTable &tendon, const R &mu) {
        const MechanismTable &m = problem.mechanism;
        const T h = problem.timestep();
        Before before(problem, tendon);
        const TendonPath<T> path = before.path(problem, tendon);
        path.length(before.pulls);
        const R scale = problem.parameters[tendon.parameters + parameter::tendon::armature] * mu;
        Pull<R> c[most_tendon_bodies];
        for (int k = 0; k < tendon.num_bodies; ++k) {
            c[k].force = scale * before.motion[k].force;
            c[k].torque = scale * before.motion[k].torque;
            const int body = m.tendon_bodies[tendon.first_body + k];
            if (body == m.num_bodies) continue;
            adjoint.gradient.v[body] = adjoint.gradient.v[body] + scale * before.pulls[k].force;
            adjoint.gradient.omega[body] = adjoint.gradient.omega[body] + scale * before.pulls[k].torque;
        }
        Pull<R> by[most_tendon_bodies];
        path.pull_back(before.pulls, R{}, c, by);
        for (int place = 0; place < tendon.num_bodies; ++place) {
            const int body = m.tendon_bodies[tendon.first_body + place];
            const Vec3<R> &x = by[place].force, &phi = by[place].torque;
            const Vec3<T> a = (0.5 * h) * before.motion[place].torque;
            const T s = sqrt(1.0 - dot(a, a));
            DataGradient<R> &to = adjoint.gradient;
            to.x[body] = to.x[body] + x;
            to.v[body] = to.v[body] - h * x;
            to.phi[body] = to.phi[body] + transposed_times(rotation_matrix(Quat<T>{s, a}), phi);
            const R along = inverse_of(s) * dot(a, phi);
            to.omega[body] = to.omega[body] - h * (s * phi + along * a - cross(a, phi));
        }
    }

    // Adds the gradient by the numbers of curves, and returns the derivative of their force by the timestep.
    [[gnu::noinline]] static T add_curves(const T *p, const TendonTable &tendon, const T &length, const T &rate, const T &h, const T &each,
                                          T *sum) {
        namespace field = parameter::tendon;
        const TendonCurves<T> curves = tendon_curves(p, tendon, length, rate, h);
        const T &y = curves.excess, square = y * y, dragged = rate * curves.speed;
        sum[field::stiffness_curve] -= each * square;
        sum[field::stiffness_curve + 1] -= each * (square * y);
        sum[field::damping_curve] -= each * dragged;
        sum[field::damping_curve + 1] -= each * (dragged * curves.speed);
        sum[field::rest_lower] += each * select(length < p[field::rest_lower], curves.slope, T{});
        sum[field::rest_upper] += each * select(length > p[field::rest_upper], curves.slope, T{});
        return tendon.implicit ? -curves.force - h * rate * curves.slope : -curves.force;
    }

    static void add_parameters(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint, int number, const T *w) {
        namespace field = parameter::tendon;
        const MechanismTable &m = problem.mechanism;
        const TendonTable &tendon = m.tendons[number];
        const TendonData<T> &data = problem.tendons[number];
        const T h = problem.timestep();
        const T *p = &problem.parameters[tendon.parameters];
        const T mu = weight(adjoint, problem, number);
        const T lambda = tendon_impulse(problem, number, w);
        const T rate = tendon_rate(problem, tendon, w);
        const T one = broadcast<T>(1.0);
        const T below = max(p[field::rest_lower] - data.length, T{});
        const T above = max(data.length - p[field::rest_upper], T{});
        const T stretch = below - above;
        const T stretched = select(stretch == T{}, T{}, one);
        const T implicit = tendon.implicit ? stretched : T{};
        const TendonLaws<T> laws(problem, tendon, data, rate);
        T *sum = &to.sum[tendon.parameters];
        const T each = h * mu;
        sum[field::stiffness] += each * (stretch - h * implicit * rate);
        sum[field::damping] -= each * rate;
        sum[field::rest_lower] += each * p[field::stiffness] * select(below > T{}, one, T{});
        sum[field::rest_upper] += each * p[field::stiffness] * select(above > T{}, one, T{});
        T force = p[field::stiffness] * (stretch - 2.0 * h * implicit * rate) - p[field::damping] * rate;  // the derivative by the timestep
        if (tendon.input >= 0) force += problem.u[tendon.input];
        if (tendon.limited) {
            const T &stiffness = p[field::limit_stiffness];
            sum[field::limit_lower] += each * stiffness * laws.by_lower;
            sum[field::limit_upper] += each * stiffness * laws.by_upper;
            sum[field::limit_stiffness] += each * (laws.below - laws.above);
            sum[field::limit_time] += each * stiffness * laws.held;
            force += stiffness * (laws.below - laws.above + h * laws.by_timestep);
        }
        if (tendon.rubs) {
            sum[field::friction] -= each * laws.rubbed;
            force -= p[field::friction] * laws.rubbed;
        }
        if (tendon.curved) force += add_curves(p, tendon, data.length, rate, h, each, sum);
        if (tendon.armature) sum[field::armature] -= mu * (rate - data.incoming);
        to.by_timestep += mu * force;
        Pull<T> c[most_tendon_bodies];
        const T drag = data.by_rate * mu;
        std::vector<T> of_bodies(tendon.spatial ? 0 : 6 * m.num_bodies);
        for (int k = 0; k < tendon.num_bodies; ++k) {
            const int body = m.tendon_bodies[tendon.first_body + k];
            c[k] = Pull<T>{};
            if (body == m.num_bodies) continue;
            const T *alpha = &adjoint.multiplier[6 * body];
            const T *twist = w + 6 * body;
            c[k].force = lambda * load3(alpha) - drag * load3(twist);
            c[k].torque = lambda * load3(alpha + 3) - drag * load3(twist + 3);
            if (!tendon.spatial) {
                store3(&of_bodies[6 * body], c[k].force);
                store3(&of_bodies[6 * body + 3], c[k].torque);
            }
        }
        const T by_length = data.by_length * mu;
        if (tendon.spatial) path_of(problem, tendon).add_parameters(by_length, c, to.sum.data());
        else add_sum(to, problem, tendon, by_length, of_bodies.data());
        if (tendon.armature) add_incoming(to, problem, tendon, mu);
    }

    // by_length · L + g·c of a sum of coordinates, by its coefficients and by the geometry of its joints. c: per body.
    static void add_sum(ParameterSum<T> &to, const Problem<T> &problem, const TendonTable &tendon, const T &by_length, const T *c) {
        const MechanismTable &m = problem.mechanism;
        to.sum[tendon.offset] += by_length;
        for (int k = 0; k < tendon.num_parts; ++k) {
            const rows::TendonPart &part = m.tendon_parts[tendon.first_part + k];
            const JointTable &joint = m.joints[part.joint];
            const JointData<T> &data = problem.joints[part.joint];
            bool translation;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + part.coordinate, translation);
            const T &s = problem.parameters[part.start];
            JointGradient<T> g(problem, c, joint, data, &to.sum[joint.parameters]);
            const Vec3<T> &push = translation ? g.along : g.about;
            const T coordinate = translation ? dot(f, problem.displacement(joint, data, data.now)) : angle_about(data.now.p, f);
            to.sum[part.start] += by_length * coordinate + dot(f, push);
            JointImpulse<T> impulse{};
            (translation ? impulse.force : impulse.turned) = s * f;
            g.add_impulse(impulse);
            g.add_free(part.coordinate, s * push);
            g.add_coordinate(part.coordinate, s * by_length, problem.bodies[joint.parent].pose, problem.bodies[joint.child].pose, data.now,
                             RotationVector<T>{});
            g.finish();
        }
    }

    // μ a L̇⁻ of a string, by its path and by the timestep, which moves the poses before.
    static void add_incoming(ParameterSum<T> &to, const Problem<T> &problem, const TendonTable &tendon, const T &mu) {
        const MechanismTable &m = problem.mechanism;
        Before before(problem, tendon);
        const TendonPath<T> path = before.path(problem, tendon);
        path.length(before.pulls);
        const T scale = problem.parameters[tendon.parameters + parameter::tendon::armature] * mu;
        Pull<T> c[most_tendon_bodies];
        for (int k = 0; k < tendon.num_bodies; ++k) {
            c[k].force = scale * before.motion[k].force;
            c[k].torque = scale * before.motion[k].torque;
        }
        if (tendon.spatial) path.add_parameters(T{}, c, to.sum.data());
        Pull<T> by[most_tendon_bodies];
        path.pull_back(before.pulls, T{}, c, by);
        for (int place = 0; place < tendon.num_bodies; ++place) {
            const Vec3<T> &x = by[place].force, &phi = by[place].torque;
            const Pull<T> &motion = before.motion[place];
            const Vec3<T> a = (0.5 * problem.timestep()) * motion.torque;
            to.by_timestep -= dot(x, motion.force) + dot(phi, motion.torque) / sqrt(1.0 - dot(a, a));
        }
    }

    template <class R>
    static TD_INLINE void subtract3(R *p, const Vec3<R> &v) {
        p[0] -= v.x;
        p[1] -= v.y;
        p[2] -= v.z;
    }

    static TendonPath<T> path_of(const Problem<T> &problem, const TendonTable &tendon) {
        return {problem.mechanism, tendon, problem.parameters.data(),
                [&](int body) -> const BodyPose<T> & { return problem.bodies[body].pose; }};
    }
    static const Pull<T> *pulls_of(const Problem<T> &problem, const TendonTable &tendon) { return &problem.pulls[tendon.first_body]; }

    // Sets length and pulls in the lanes that are not measured.
    static void measure(Problem<T> &problem, const TendonTable &tendon, TendonData<T> &data) {
        Pull<T> *pulls = &problem.pulls[tendon.first_body];
        if (!any(problem.measured)) {
            data.length = path_of(problem, tendon).length(pulls);
            return;
        }
        Pull<T> latest[most_tendon_bodies];
        data.length = select(problem.measured, data.length, path_of(problem, tendon).length(latest));
        for (int k = 0; k < tendon.num_bodies; ++k) pulls[k] = select(problem.measured, pulls[k], latest[k]);
    }

    static void prepare(Problem<T> &problem, const TendonTable &tendon, TendonData<T> &data) {
        const T h = problem.timestep();
        const T *p = &problem.parameters[tendon.parameters];
        const T &length = data.length;
        const T below = max(p[parameter::tendon::rest_lower] - length, T{});
        const T above = max(length - p[parameter::tendon::rest_upper], T{});
        const T stretch = below - above;
        const T stiffness = select(stretch == T{}, T{}, p[parameter::tendon::stiffness]);
        data.stiffness = -h * stiffness;
        data.given = h * (p[parameter::tendon::stiffness] * stretch);
        if (tendon.input >= 0) data.given += h * problem.u[tendon.input];
        data.damping = h * p[parameter::tendon::damping];
        if (tendon.implicit) data.damping += (h * h) * stiffness;
        data.incoming = T{};
        if (tendon.armature) {
            Before before(problem, tendon);
            before.path(problem, tendon).length(before.pulls);
            for (int k = 0; k < tendon.num_bodies; ++k)
                data.incoming += dot(before.pulls[k].force, before.motion[k].force) + dot(before.pulls[k].torque, before.motion[k].torque);
        }
        data.by_rate = data.damping;
        data.by_length = data.stiffness;
        if (tendon.damped) return;
        data.damping = data.by_rate = T{};
        each_pull(problem, tendon, [&](int body, const Pull<T> &pull) {
            BodyData<T> &to = problem.bodies[body];
            to.linear = to.linear + data.given * pull.force;
            to.angular = to.angular + data.given * pull.torque;
        });
    }

    template <bool derived>
    static void linearize(Problem<T> &problem, int number, const T *w) {
        const MechanismTable &m = problem.mechanism;
        const TendonTable &tendon = m.tendons[number];
        TendonData<T> &data = problem.tendons[number];
        const T rate = tendon_rate(problem, tendon, w);
        T lambda = data.given - data.damping * rate;
        if (has_laws(tendon)) {
            const TendonLaws<T> laws(problem, tendon, data, rate);
            lambda += laws.impulse;
            data.by_rate = data.damping + laws.by_rate;
            data.by_length = data.stiffness + laws.by_length;
        }
        each_pull(problem, tendon, [&](int body, const Pull<T> &pull) {
            add3(&problem.residual[6 * body], -(lambda * pull.force));
            add3(&problem.residual[6 * body + 3], -(lambda * pull.torque));
        });
        if constexpr (!derived) return;
        for (int i = 0; i < tendon.num_bodies; ++i)
            for (int j = 0; j < tendon.num_bodies; ++j) {
                const int32_t block = m.tendon_blocks[tendon.first_block + i * tendon.num_bodies + j];
                if (block < 0) continue;
                const Pull<T> &row = problem.pulls[tendon.first_body + i];
                const Pull<T> &column = problem.pulls[tendon.first_body + j];
                const Vec3<T> force = data.by_rate * column.force;
                const Vec3<T> torque = data.by_rate * column.torque;
                for (int r = 0; r < 6; ++r) {
                    const T &entry = r < 3 ? row.force[r] : row.torque[r - 3];
                    add3(&problem.values[block + 6 * r], entry * force);
                    add3(&problem.values[block + 6 * r + 3], entry * torque);
                }
            }
    }
};

}  // namespace torchdojo
