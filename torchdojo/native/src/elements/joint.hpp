// Joints: rows of the held directions at the next configuration, impulses on both bodies at the current configuration. Springs and inputs,
// which are constant during a step, and the impulses of free.hpp act along the free directions.
#pragma once

#include "elements/free.hpp"

namespace torchdojo {

template <class T>
struct JointEquations {
    static void prepare(Problem<T> &problem) {
        for (int j = 0; j < problem.mechanism.num_joints; ++j) prepare(problem, problem.mechanism.joints[j], problem.joints[j]);
    }

    template <bool condensed, bool derived>
    static void linearize(Problem<T> &problem, const T *w) {
        for (int j = 0; j < problem.mechanism.num_joints; ++j) {
            linearize<derived>(problem, problem.mechanism.joints[j], problem.joints[j], w);
            if constexpr (condensed) condense_free(problem, problem.mechanism.joints[j]);
        }
    }

    static void condense(Problem<T> &problem) {
        for (const JointTable &joint : problem.mechanism.joints) condense_free(problem, joint);
    }

    // The residuals of rows alone, without the balance of the bodies. If `derived`, `store_row` gets derivatives of the free directions (see
    // linearize_free).
    template <bool derived, class Store>
    static void linearize_rows(Problem<T> &problem, const JointTable &joint, JointData<T> &data, const T *w, const Store &store_row) {
        const T *p = &problem.parameters[joint.parameters];
        data.next = problem.relative(joint, problem.bodies[joint.parent].next, problem.bodies[joint.child].next, data.offset_quaternion);
        const Vec3<T> d = problem.displacement(joint, data, data.next);
        T *residual = &problem.residual[joint.row];
        for (int i = 0; i < joint.held_t; ++i) residual[i] = dot(load3(p + parameter::translations + 3 * i), d);
        for (int i = 0; i < joint.held_r; ++i) residual[joint.held_t + i] = dot(load3(p + parameter::rotations + 3 * i), data.next.p.v);
        if (joint.has_damper || joint.free_data >= 0) linearize_free<derived>(problem, joint, data, w, store_row);
    }

private:
    // Adds h (I − P) λ to `count` rows from `first` on. Their directions are C' = P C with orthonormal C, so P = C' C'ᵀ.
    template <bool derived>
    static void leave_out(Problem<T> &problem, const JointTable &joint, const T *directions, int first, int count, const T *w) {
        const T h = problem.timestep();
        for (int i = 0; i < count; ++i)
            for (int k = 0; k < count; ++k) {
                const T entry = h * ((i == k ? 1.0 : 0.0) - dot(load3(directions + 3 * i), load3(directions + 3 * k)));
                problem.residual[joint.row + first + i] += entry * w[joint.row + first + k];
                if constexpr (derived) problem.values[joint.diagonal + (first + i) * joint.size + first + k] = entry;
            }
    }

    // Impulses on child and parent of one direction of the joint frame, at the current configuration.
    static TD_INLINE void wrench_column(const Problem<T> &problem, const JointTable &joint, JointData<T> &data, int column,
                                        bool translation, const Vec3<T> &direction) {
        T *on_child = data.wrench_child + column, *on_parent = data.wrench_parent + column;
        const JointWrench<T> wrench = joint_wrench(problem, joint, data, translation, direction);
        for (int r = 0; r < 3; ++r) {
            on_child[r * 6] = wrench.force[r];
            on_child[(3 + r) * 6] = wrench.on_child[r];
        }
        if (joint.parent == problem.mechanism.num_bodies) return;  // nothing acts on the world: its columns stay zero
        for (int r = 0; r < 3; ++r) {
            on_parent[r * 6] = -wrench.force[r];
            on_parent[(3 + r) * 6] = wrench.on_parent[r];
        }
    }

    // Adds an impulse on child and parent to the constant part of the balance.
    static TD_INLINE void add_impulse(Problem<T> &problem, const JointTable &joint, const JointData<T> &data, int column,
                                      const T &impulse) {
        auto add = [&](BodyData<T> &body, const T *wrench) {
            body.linear = body.linear + impulse * Vec3<T>{wrench[0], wrench[6], wrench[12]};
            body.angular = body.angular + impulse * Vec3<T>{wrench[18], wrench[24], wrench[30]};
        };
        add(problem.bodies[joint.child], data.wrench_child + column);
        if (joint.parent < problem.mechanism.num_bodies) add(problem.bodies[joint.parent], data.wrench_parent + column);
    }

    // The same for impulses along all free directions.
    static void add_impulses(Problem<T> &problem, const JointTable &joint, const JointData<T> &data) {
        const T *p = &problem.parameters[joint.parameters];
        Vec3<T> force{}, torque{};
        for (int i = 0; i < joint.free_t(); ++i)
            force = force + data.free_force[i] * load3(p + parameter::translations + 3 * (joint.held_t + i));
        for (int i = 0; i < joint.free_r(); ++i)
            torque = torque + data.free_force[joint.free_t() + i] * load3(p + parameter::rotations + 3 * (joint.held_r + i));
        BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const bool world = joint.parent == problem.mechanism.num_bodies;
        if (joint.free_r()) {
            const JointWrench<T> turn = joint_wrench(problem, joint, data, false, torque);
            child.angular = child.angular + turn.on_child;
            if (!world) parent.angular = parent.angular + turn.on_parent;
        }
        if (!joint.free_t()) return;
        const JointWrench<T> push = joint_wrench(problem, joint, data, true, force);
        child.linear = child.linear + push.force;
        child.angular = child.angular + push.on_child;
        if (!world) {
            parent.linear = parent.linear - push.force;
            parent.angular = parent.angular + push.on_parent;
        }
    }

    // Adds the torque of springs along the rotation vector, J_l⁻ᵀ times their impulse, to the constant part of the balance.
    static void add_pull(Problem<T> &problem, const JointTable &joint, const JointData<T> &data) {
        const Vec3<T> torque = data.offset * right_jacobian_inverse(data.angle, data.pull);
        BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        child.angular = child.angular + transposed_times(child.pose.R, parent.pose.R * torque);
        if (joint.parent < problem.mechanism.num_bodies) parent.angular = parent.angular - torque;
    }

    static void prepare(Problem<T> &problem, const JointTable &joint, JointData<T> &data) {
        const T h = problem.timestep();
        const T *p = &problem.parameters[joint.parameters];
        const BodyPose<T> &parent = problem.bodies[joint.parent].pose, &child = problem.bodies[joint.child].pose;
        data.offset_quaternion = load4(p + parameter::orientation);
        data.offset = rotation_matrix(data.offset_quaternion);
        data.now = problem.relative(joint, parent, child, data.offset_quaternion);
        const Quat<T> &rel = data.now.p;
        int column = 0;
        for (int i = 0; problem.columns && i < joint.held_t; ++i)
            wrench_column(problem, joint, data, column++, true, load3(p + parameter::translations + 3 * i));
        for (int i = 0; problem.columns && i < joint.held_r; ++i) {
            const Vec3<T> c = load3(p + parameter::rotations + 3 * i);
            wrench_column(problem, joint, data, column++, false, 0.5 * (rel.w * c + cross(rel.v, c)));
        }
        if (!joint.has_spring && !joint.has_damper && joint.input < 0 && joint.free_data < 0) return;
        for (int i = joint.held_t; problem.columns && i < 3; ++i)
            wrench_column(problem, joint, data, column++, true, load3(p + parameter::translations + 3 * i));
        for (int i = joint.held_r; problem.columns && i < 3; ++i)
            wrench_column(problem, joint, data, column++, false, load3(p + parameter::rotations + 3 * i));

        const int free = joint.free();
        const T *spring = p + joint.spring(), *rest = p + joint.rest();
        for (int i = 0; i < free; ++i) data.free_force[i] = joint.input < 0 ? T{} : h * problem.u[joint.input + i];
        for (int i = 0; joint.driven && i < free; ++i)
            if (joint.drives(i)) data.free_force[i] = T{};
        T pull[6] = {};
        if (joint.has_spring) {
            const Vec3<T> d = problem.displacement(joint, data, data.now);
            if (joint.has_vector()) {
                data.angle = rotation_vector(rel);
                data.pull = Vec3<T>{};
            }
            for (int i = 0; i < free; ++i) {
                bool translation;
                const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
                const T coordinate = translation ? dot(f, d) : joint.has_vector() ? dot(f, data.angle.theta) : angle_about(rel, f);
                pull[i] = h * spring[i] * (rest[i] - coordinate);
                if (translation || !joint.has_vector()) {
                    data.free_force[i] += pull[i];
                    pull[i] = T{};
                } else {
                    data.pull = data.pull + pull[i] * f;
                }
                if (joint.curve >= 0) problem.curve(joint).stretch[i] = coordinate - rest[i];
            }
        }
        if (joint.stiffness >= 0) prepare_stiffness(problem, joint, data, pull);
        if (joint.driven) prepare_drives(problem, joint, data);
        if (problem.solves && joint.has_spring && joint.has_vector()) add_pull(problem, joint, data);
        if (problem.solves && !problem.columns) add_impulses(problem, joint, data);
        for (int i = 0; problem.columns && i < free; ++i) add_impulse(problem, joint, data, joint.held() + i, data.free_force[i]);
        if (joint.free_data >= 0) prepare_free(problem, joint, data, problem.free[joint.free_data]);
    }

    template <bool derived>
    static void linearize(Problem<T> &problem, const JointTable &joint, JointData<T> &data, const T *w) {
        if (!joint.size) return;
        const T *p = &problem.parameters[joint.parameters];
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const bool world = joint.parent == problem.mechanism.num_bodies;
        const int K = joint.size, held = joint.held();
        data.next = problem.relative(joint, parent.next, child.next, data.offset_quaternion);
        T *D = &problem.values[joint.diagonal], *Cc = &problem.values[joint.joint_child];
        T *Cp = world ? nullptr : &problem.values[joint.joint_parent];
        for (int k = 0; derived && k < K * K; ++k) D[k] = T{};
        auto store_row = [&](int row, const Vec3<T> &linear, const Vec3<T> &at_child, const Vec3<T> &at_parent) {
            store3(Cc + 6 * row, linear);
            store3(Cc + 6 * row + 3, at_child);
            if (!world) {
                store3(Cp + 6 * row, -linear);
                store3(Cp + 6 * row + 3, at_parent);
            }
        };

        linearize_held<derived>(problem, joint, data, store_row);
        if (joint.repeats) {  // (I − P) λ: the packed directions are the rows of P
            leave_out<derived>(problem, joint, p + parameter::translations, 0, joint.held_t, w);
            leave_out<derived>(problem, joint, p + parameter::rotations, joint.held_t, joint.held_r, w);
        }
        if (joint.has_damper || joint.free_data >= 0) linearize_free<derived>(problem, joint, data, w, store_row);
        for (int k = held; derived && k < K; ++k) D[k * (K + 1)] = broadcast<T>(1.0);

        T impulse[6];
        for (int k = 0; k < K - joint.extra; ++k) impulse[k] = k < held ? w[joint.row + k] : data.impulse[k - held];
        add_reaction<derived>(problem, joint, joint.child, data.wrench_child, impulse, &problem.values[joint.child_joint]);
        if (!world) add_reaction<derived>(problem, joint, joint.parent, data.wrench_parent, impulse, &problem.values[joint.parent_joint]);
    }

    // Residuals of the held rows at the next configuration and, if `derived`, their derivatives by the twists.
    template <bool derived, class Store>
    static TD_INLINE void linearize_held(Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const Store &store_row) {
        const T h = problem.timestep();
        const T *p = &problem.parameters[joint.parameters];
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const Vec3<T> anchor = load3(p + parameter::child_anchor), d = problem.displacement(joint, data, data.next);
        for (int i = 0; i < joint.held_t; ++i) {
            const Vec3<T> c = load3(p + parameter::translations + 3 * i);
            problem.residual[joint.row + i] = dot(c, d);
            if constexpr (!derived) continue;
            const auto g = translation_gradient(parent.next, child.next, data.offset, data.next, anchor, c);
            store_row(i, h * g.x_child, transposed_times(child.M, g.phi_child), transposed_times(parent.M, g.phi_parent));
        }
        for (int i = 0; i < joint.held_r; ++i) {
            const Vec3<T> c = load3(p + parameter::rotations + 3 * i);
            problem.residual[joint.row + joint.held_t + i] = dot(c, data.next.p.v);
            if constexpr (!derived) continue;
            RowGradient<T, T> g{};
            add_rotation_gradient(g, data.offset, data.next.p, c);
            store_row(joint.held_t + i, Vec3<T>{}, transposed_times(child.M, g.phi_child), transposed_times(parent.M, g.phi_parent));
        }
    }

    // Subtracts the impulses of a joint from the balance of a body and, if `derived`, sets their columns in its block of the matrix.
    template <bool derived>
    static void add_reaction(Problem<T> &problem, const JointTable &joint, int body, const T *wrench, const T *impulse, T *block) {
        const int K = joint.size, plain = K - joint.extra;
        T *rows = &problem.residual[6 * body];
        ldu::with_size(plain, [&](auto size) {  // keeps sums in registers
            constexpr int count = decltype(size)::value <= 6 ? decltype(size)::value : 0;
            for (int r = 0; r < 6; ++r) {
                T sum{};
#pragma GCC unroll 6
                for (int k = 0; k < count; ++k) {
                    const T entry = wrench[r * 6 + k];
                    sum += entry * impulse[k];
                    if constexpr (derived) block[r * K + k] = -entry;
                }
                rows[r] -= sum;
            }
        });
        if (!joint.extra) return;
        const FreeData<T> &data = problem.free[joint.free_data];
        for (int e = 0; e < joint.extra; ++e)
            for (int r = 0; r < 3; ++r) {
                const T torque = (body == joint.child ? data.limit_child : data.limit_parent)[e][r];
                rows[3 + r] -= torque * data.extra_impulse[e];
                if constexpr (derived) {
                    block[r * K + plain + e] = T{};
                    block[(3 + r) * K + plain + e] = -torque;
                }
            }
    }
};

}  // namespace torchdojo
