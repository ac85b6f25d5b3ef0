// Joints in the derivative of the solved step: the derivative of −λᵀr by the data (adjoint.hpp).
#pragma once

#include "elements/joint_impulse.hpp"

namespace torchdojo {

template <class T>
struct JointAdjoint {
    // Numbers that do not depend on the right-hand side.
    template <class R>
    static void differentiate(AdjointState<T, R> &adjoint, const Problem<T> &problem, const T *w) {
        const MechanismTable &m = problem.mechanism;
        for (int j = 0; j < m.num_joints; ++j) {
            const JointTable &joint = m.joints[j];
            const JointData<T> &data = problem.joints[j];
            if (acts(joint)) adjoint.impulses[j].set(problem, joint, data, joint_impulse(problem, joint, data, w));
            differentiate_free(adjoint, problem, joint, data, w, adjoint.free[j]);
            const int k = joint.free_data;
            if (k >= 0) differentiate_moving(problem, joint, data, problem.free[k], adjoint.moving[k]);
        }
    }

    template <class R>
    static void multiply(AdjointState<T, R> &adjoint, const Problem<T> &problem, const T *) {
        const MechanismTable &m = problem.mechanism;
        for (int j = 0; j < m.num_joints; ++j)
            if (acts(m.joints[j])) joint_product(adjoint, problem, m.joints[j], problem.joints[j], adjoint.free[j], adjoint.impulses[j]);
    }

private:
    static bool acts(const JointTable &joint) { return joint.size || free_acts(joint); }

    // The pose before is the current one turned back by the increment: its φ is R(increment) φ.
    template <class R>
    static void differentiate_free(const AdjointState<T, R> &adjoint, const Problem<T> &problem, const JointTable &joint,
                                   const JointData<T> &data, const T *w, FreeGradient<T> &out) {
        if (!joint.has_spring && !joint.has_damper) return;
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        const bool mean_rate = joint.has_damper && !joint.has_vector();
        Mat3<T> before;
        if (mean_rate) before = rotation_matrix(data.before.p);
        for (int i = 0; i < joint.free(); ++i) {
            bool translation;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
            RowGradient<T, T> &coordinate = out.coordinate[i], &change = out.difference[i], then;
            if (translation) {
                coordinate = change = translation_gradient(parent.pose, child.pose, data.offset, data.now, anchor, f);
                if (mean_rate)
                    then = translation_gradient(parent.one_step_back(), child.one_step_back(), data.offset, data.before, anchor, f);
            } else {
                if (joint.has_spring) coordinate = angle_gradient(joint, data.offset, data.now.p, data.angle, f);
                if (mean_rate) {
                    const Vec3<T> g = right_jacobian_inverse(data.turn, f), in_parent = data.offset * (before * g);
                    change = {Vec3<T>{}, left_jacobian_inverse(data.turn, f), -in_parent};
                    then = {Vec3<T>{}, g, -in_parent};
                }
            }
            if (joint.has_damper && !mean_rate) {
                auto velocity = [&](int body) {
                    return body == problem.mechanism.num_bodies ? Velocity<T>{} : Velocity<T>{load3(w + 6 * body), load3(w + 6 * body + 3)};
                };
                const auto g = velocity_gradient(parent.pose, child.pose, data.offset, data.now, anchor, velocity(joint.parent),
                                                 velocity(joint.child), translation, f);
                const T h = problem.timestep();
                change = {h * g.x_child, h * g.phi_child, h * g.phi_parent};
            }
            if (!mean_rate) continue;
            change.x_child = change.x_child - then.x_child;
            change.phi_child = change.phi_child - transposed_times(adjoint.turn[joint.child], then.phi_child);
            change.phi_parent = change.phi_parent - transposed_times(adjoint.turn[joint.parent], then.phi_parent);
        }
    }

    // Turning Δ = p⁺ p⁻¹: the child's p turns by R(p) φ behind p⁺ and before p⁻¹, the parent's by R_offᵀ φ in front of p⁺ and behind p⁻¹.
    static void differentiate_moving(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const FreeData<T> &from,
                                     MovingGradient<T> &out) {
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        auto back = [&](const RotationVector<T> &turn, const Vec3<T> &f, const RowGradient<T, T> &after) {
            return RowGradient<T, T>{Vec3<T>{}, -after.phi_child, data.offset * left_jacobian_inverse(turn, f)};
        };
        for (int i = 0; i < joint.free(); ++i) {
            bool translation;
            RowGradient<T, T> before;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
            if (translation) {
                const auto current = translation_gradient(parent.pose, child.pose, data.offset, data.now, anchor, f);
                out.rate_next[i] = translation_gradient(parent.next, child.next, data.offset, data.next, anchor, f);
                out.coordinate_next[i] = out.rate_next[i];
                out.rate_now[i] = {-current.x_child, -current.phi_child, -current.phi_parent};
                if (joint.armature < 0) continue;
                out.incoming_now[i] = current;
                const auto g = translation_gradient(parent.incoming, child.incoming, data.offset, from.incoming, anchor, f);
                before = {-g.x_child, -g.phi_child, -g.phi_parent};
            } else {
                out.rate_next[i] = turn_gradient(data.offset, data.now.p, from.turn, f);
                out.rate_now[i] = back(from.turn, f, out.rate_next[i]);
                if (joint.limited_r) out.coordinate_next[i] = angle_gradient(joint, data.offset, data.next.p, from.next, f);
                if (joint.cone >= 0 && i == joint.free_t()) out.coordinate_next[i] = cone_gradient(problem, joint, data, from.next);
                if (joint.armature < 0) continue;
                out.incoming_now[i] = turn_gradient(data.offset, from.incoming.p, from.incoming_turn, f);
                before = back(from.incoming_turn, f, out.incoming_now[i]);
            }
            out.before_child[i] = before_gradient(problem, joint.child, before.x_child, before.phi_child);
            out.before_parent[i] = before_gradient(problem, joint.parent, -before.x_child, before.phi_parent);
        }
    }

    // Armature, limits and friction: derivatives of V = μ (−a (ċ⁺ − ċ)) ∓ ν ċ⁺ ∓ ν c⁺ by the poses and by the velocities that led here.
    template <class R>
    static void moving_product(AdjointState<T, R> &adjoint, const Problem<T> &problem, const JointTable &joint,
                               const MovingGradient<T> &g) {
        const T h = problem.timestep(), inverse = 1.0 / h;
        R rate[6] = {}, coordinate[6] = {};
        for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
            const JointConeTable &cone = problem.mechanism.joint_cones[c];
            if (cone.is_pair()) {
                const R nu = inverse * adjoint.multiplier[cone.impulse + cone.stride];
                problem.each_row(cone, [&](int row, const T &weight) { rate[row - joint.held()] -= weight * nu; });
            } else if (cone.limits_rate()) {
                rate[cone.coordinate] -= (cone.sign() * inverse) * adjoint.multiplier[cone.impulse];
            } else {
                coordinate[cone.coordinate] -= cone.sign() * adjoint.multiplier[cone.impulse];
            }
        }
        if (joint.driven && joint.input >= 0)  // −ν times the derivative of λ/(g h) − (u − m)/g
            for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
                const JointConeTable &cone = problem.mechanism.joint_cones[c];
                if (cone.kind != JointConeTable::drive) continue;
                const DriveData<T> &drive = problem.joint_cones[c].drive;
                const T pushed = 0.5 * (adjoint.point[cone.impulse] - adjoint.point[cone.impulse + cone.stride]);
                const T slope = (1.0 + h * drive.excess * (drive.compliance * pushed - drive.offset)) / drive.gain;
                adjoint.gradient.u[joint.input + cone.coordinate] += slope * adjoint.multiplier[cone.impulse + cone.stride];
            }
        for (int i = 0; i < joint.free(); ++i) {
            R incoming{};
            if (joint.armature >= 0) {
                incoming = (inverse * problem.parameters[joint.armature + i]) * adjoint.right[joint.right + joint.held() + i];
                rate[i] = rate[i] - incoming;
            }
            // A rotational coordinate does not depend on positions.
            const bool translation = i < joint.free_t();
            auto add_next = [&](const R &weight, const RowGradient<T, T> &g) {
                if (translation) adjoint.subtract(adjoint.x_next, joint, -(weight * g.x_child), weight * g.x_child);
                adjoint.subtract(adjoint.phi_next, joint, -(weight * g.phi_child), -(weight * g.phi_parent));
            };
            auto add_now = [&](const R &weight, const RowGradient<T, T> &g) {
                if (translation) return adjoint.add(weight, g, joint);
                adjoint.gradient.phi[joint.child] = adjoint.gradient.phi[joint.child] + weight * g.phi_child;
                adjoint.gradient.phi[joint.parent] = adjoint.gradient.phi[joint.parent] + weight * g.phi_parent;
            };
            if (joint.num_cones && (translation || joint.limited_r || (joint.cone >= 0 && i == joint.free_t())))
                add_next(coordinate[i], g.coordinate_next[i]);
            if (joint.armature < 0 && !joint.has_rate_cones) continue;
            add_next(rate[i], g.rate_next[i]);
            add_now(rate[i], g.rate_now[i]);
            if (joint.armature < 0) continue;
            add_now(incoming, g.incoming_now[i]);
            add_before(adjoint, problem, joint.child, translation, incoming, g.before_child[i]);
            add_before(adjoint, problem, joint.parent, translation, incoming, g.before_parent[i]);
        }
    }

    // Friction about the axes R(p) f of the child: the derivative of V = σ·R(p) Λ − C·R(p) N by p, with the impulses Λ and their power σ, and
    // with the turn C and its weights N.
    template <class R>
    static void friction_product(AdjointState<T, R> &adjoint, const Problem<T> &problem, const JointTable &joint,
                                 const JointData<T> &data) {
        const int world = problem.mechanism.num_bodies;
        const auto omega = [&](int body) { return body == world ? Vec3<R>{} : load3(&adjoint.multiplier[6 * body + 3]); };
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const Vec3<R> sigma =
            transposed_times(data.offset, transposed_times(parent.pose.R, child.pose.R * omega(joint.child)) - omega(joint.parent));
        Vec3<T> pushed{};
        Vec3<R> weight{};
        for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
            const JointConeTable &cone = problem.mechanism.joint_cones[c];
            const int axis = problem.own_axis(cone);
            if (axis < 0) continue;
            pushed[axis] = 0.5 * (adjoint.point[cone.impulse] - adjoint.point[cone.impulse + cone.stride]);
            weight[axis] = (1.0 / problem.timestep()) * adjoint.multiplier[cone.impulse + cone.stride];
        }
        const Mat3<T> relative = rotation_matrix(data.now.p);
        const Vec3<T> turn = transposed_times(relative, problem.free[joint.free_data].turn.theta);
        const Vec3<R> by_p = cross(pushed, transposed_times(relative, sigma)) - cross(weight, turn);
        adjoint.gradient.phi[joint.child] = adjoint.gradient.phi[joint.child] + by_p;
        adjoint.gradient.phi[joint.parent] = adjoint.gradient.phi[joint.parent] - data.offset * (relative * by_p);
    }

    // Limits that recover: the derivative of V = ±ν c by the current poses.
    template <class R>
    static void recovery_product(AdjointState<T, R> &adjoint, const Problem<T> &problem, const JointTable &joint,
                                 const JointData<T> &data) {
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
            const JointConeTable &cone = problem.mechanism.joint_cones[c];
            if (cone.on_rate()) continue;
            const R weight = problem.joint_cones[c].leaves * (cone.sign() * adjoint.multiplier[cone.impulse]);
            bool translation;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + cone.coordinate, translation);
            adjoint.add(weight,
                        translation       ? translation_gradient(parent.pose, child.pose, data.offset, data.now, anchor, f)
                        : joint.cone >= 0 ? cone_gradient(problem, joint, data, problem.free[joint.free_data].now)
                                          : angle_gradient(joint, data.offset, data.now.p, problem.free[joint.free_data].now, f),
                        joint);
        }
    }

    // The pose before: x − h v, and φ turned by R(increment), less h N ω as in free.hpp.
    static typename MovingGradient<T>::Before before_gradient(const Problem<T> &problem, int body, const Vec3<T> &x, const Vec3<T> &phi) {
        if (body == problem.mechanism.num_bodies) return typename MovingGradient<T>::Before{Vec3<T>{}, Vec3<T>{}, Vec3<T>{}};
        const T h = problem.timestep();
        const Vec3<T> a = (0.5 * h) * load3(&problem.z[state_size * body + 10]);
        const T c = sqrt(1.0 - dot(a, a));
        return {x, transposed_times(rotation_matrix(Quat<T>{c, a}), phi), -h * (c * phi + (dot(a, phi) / c) * a - cross(a, phi))};
    }

    template <class R>
    static void add_before(AdjointState<T, R> &adjoint, const Problem<T> &problem, int body, bool translation, const R &weight,
                           const typename MovingGradient<T>::Before &g) {
        if (body == problem.mechanism.num_bodies) return;
        if (translation) {
            adjoint.gradient.x[body] = adjoint.gradient.x[body] + weight * g.x;
            adjoint.gradient.v[body] = adjoint.gradient.v[body] - weight * (problem.timestep() * g.x);
        }
        adjoint.gradient.phi[body] = adjoint.gradient.phi[body] + weight * g.phi;
        adjoint.gradient.omega[body] = adjoint.gradient.omega[body] + weight * g.omega;
    }

    template <class R>
    static void joint_product(AdjointState<T, R> &adjoint, const Problem<T> &problem, const JointTable &joint, const JointData<T> &data,
                              const FreeGradient<T> &free, const ImpulseInFrames<T> &impulse) {
        const T h = problem.timestep();
        const T *p = &problem.parameters[joint.parameters];
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const bool world = joint.parent == problem.mechanism.num_bodies;
        const int held = joint.held();

        // Rows at the next configuration: −μᵀ ∂(C_T d, C_R vec p).
        Vec3<R> mu_t{}, mu_r{};
        for (int k = 0; k < held; ++k) {
            bool translation;
            const Vec3<T> c = joint_direction(problem, joint, k, translation);
            Vec3<R> &mu = translation ? mu_t : mu_r;
            mu = mu + adjoint.multiplier[joint.row + k] * c;
        }
        if (joint.size) {
            auto g = translation_gradient(parent.next, child.next, data.offset, data.next, load3(p + parameter::child_anchor), mu_t);
            add_rotation_gradient(g, data.offset, data.next.p, mu_r);
            adjoint.subtract(adjoint.x_next, joint, g.x_child, -g.x_child);
            adjoint.subtract(adjoint.phi_next, joint, g.phi_child, g.phi_parent);
        }

        const Vec3<R> a_v = world ? Vec3<R>{} : load3(&adjoint.multiplier[6 * joint.parent]);
        const Vec3<R> a_w = world ? Vec3<R>{} : load3(&adjoint.multiplier[6 * joint.parent + 3]);
        const Vec3<R> b_v = load3(&adjoint.multiplier[6 * joint.child]), b_w = load3(&adjoint.multiplier[6 * joint.child + 3]);

        // Inputs, springs and dampers: gradients of the coordinates, rates and inputs on which they depend.
        if (joint.has_spring || joint.has_damper || joint.input >= 0) {
            const bool pulls = joint.has_spring && joint.has_vector();
            // Powers of a force and of a torque in the joint frame.
            const Vec3<R> turned = child.pose.R * b_w, swing = child.pose.R * cross(b_w, load3(p + parameter::child_anchor));
            Vec3<R> along{}, about{};
            if (joint.free_r()) about = transposed_times(data.offset, transposed_times(parent.pose.R, turned) - a_w);
            if (joint.free_t())
                along = transposed_times(data.offset, transposed_times(parent.pose.R, b_v - a_v + swing) - cross(a_w, data.now.y_parent));
            const T *spring = p + joint.spring(), *damping = problem.damping(joint, data);
            for (int k = held; k < 6; ++k) {
                const int i = k - held;
                bool translation;
                const Vec3<T> f = joint_direction(problem, joint, k, translation);
                R power = dot(f, translation ? along : about);
                if (joint.input >= 0 && !joint.drives(i)) adjoint.gradient.u[joint.input + i] += h * power;
                if (joint.has_spring) {
                    if (pulls && !translation) power = dot(right_jacobian_inverse(data.angle, f), about);
                    adjoint.add(-h * (joint.curve < 0 ? spring[i] : spring[i] + problem.curve(joint).slope[i]) * power, free.coordinate[i],
                                joint);
                }
                if (joint.stiffness >= 0 && joint.has_damper && i >= joint.free_t()) {  // forces that enlarge the stiffness
                    const R push = -(h * data.excess[i] * data.moved[i]) * adjoint.right[joint.right + k];
                    if (joint.input >= 0 && !joint.drives(i)) adjoint.gradient.u[joint.input + i] += push;
                    if (joint.has_spring) adjoint.add(-spring[i] * push, free.coordinate[i], joint);
                }
                if (!joint.has_damper) continue;
                const T drag = joint.curve < 0 ? damping[i] : damping[i] + problem.curve(joint).drag[i];
                adjoint.add(-drag * adjoint.right[joint.right + k], free.difference[i], joint);
            }
        }
        if (joint.free_data >= 0) moving_product(adjoint, problem, joint, adjoint.moving[joint.free_data]);
        if (joint.has_rate_cones && joint.free_r() == 3) friction_product(adjoint, problem, joint, data);
        if (joint.free_data >= 0 && problem.free[joint.free_data].recovers) recovery_product(adjoint, problem, joint, data);
        impulse_product(adjoint, problem, joint, data, impulse);
    }
};

}  // namespace torchdojo
