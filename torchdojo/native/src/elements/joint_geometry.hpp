// Derivatives of V = −λᵀr by the geometry of a joint, for joint_parameters.hpp: its directions, anchors and orientation.
//
// Let ψ rotate the joint frame in itself, R_off ← R_off (I + [ψ]×). Functions of p alone change as if the parent rotated by R_off ψ.
// The quaternion changes by ½ q_off ⊗ (0, ψ), so its gradient is 2 q_off ⊗ (0, ∂V/∂ψ).
#pragma once

#include "elements/joint_impulse.hpp"

namespace torchdojo {

template <class T>
class JointGradient {
public:
    const JointTable &joint;
    const JointData<T> &data;
    Vec3<T> along, about;             // V per force and torque in the joint frame, which act at the current configuration

    // multiplier: λ in the places of w. out: the packed parameters of the joint, to which `finish` adds.
    JointGradient(const Problem<T> &problem, const T *multiplier, const JointTable &joint, const JointData<T> &data, T *out)
        : joint(joint), data(data), problem(problem), parent(problem.bodies[joint.parent]), child(problem.bodies[joint.child]), out(out) {
        const bool world = joint.parent == problem.mechanism.num_bodies;
        const Vec3<T> a_v = world ? Vec3<T>{} : load3(multiplier + 6 * joint.parent), b_v = load3(multiplier + 6 * joint.child);
        a_w = world ? Vec3<T>{} : load3(multiplier + 6 * joint.parent + 3);
        b_w = load3(multiplier + 6 * joint.child + 3);
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        const Vec3<T> swing = transposed_times(parent.pose.R, b_v - a_v + child.pose.R * cross(b_w, anchor));
        along = transposed_times(data.offset, swing - cross(a_w, data.now.y_parent));
        about = transposed_times(data.offset, transposed_times(parent.pose.R, child.pose.R * b_w) - a_w);
    }

    // Impulses at the current configuration, V = f·along + τ·about (see impulse_product), without the gradient of their directions.
    void add_impulse(const JointImpulse<T> &impulse) {
        const Quat<T> &p = data.now.p;
        const Vec3<T> force = data.offset * impulse.force;
        auto to_child = [&](const Vec3<T> &v) { return transposed_times(child.pose.R, parent.pose.R * v); };
        child_anchor = child_anchor + cross(to_child(force), b_w) - to_child(cross(force, a_w));
        psi = psi + cross(impulse.force, along) + cross(impulse.torque(p), about);
        const T s = 0.5 * dot(impulse.held, about);
        const Vec3<T> v = 0.5 * cross(impulse.held, about);
        add_turn(0.5 * (s * p.v - p.w * v - cross(p.v, v)));
        if (impulse.angle) add_turn(-right_jacobian_inverse(*impulse.angle, push_gradient(impulse, about)));
    }

    // Adds the gradient of ψ itself.
    void add_turn(const Vec3<T> &by_psi) { psi = psi + by_psi; }

    // Adds the gradient of weight·d for d = R_offᵀ (R_aᵀ (x_b + R_b p_b − x_a) − p_a) at any poses of parent and child.
    void add_displacement(const BodyPose<T> &a, const BodyPose<T> &b, const Vec3<T> &weight, const Vec3<T> &d) {
        const Vec3<T> in_parent = data.offset * weight;
        parent_anchor = parent_anchor - in_parent;
        child_anchor = child_anchor + transposed_times(b.R, a.R * in_parent);
        add_turn(cross(weight, d));
    }

    // Adds the gradient of the direction of a held row, translations first, and of free coordinate i.
    void add_held(int k, const Vec3<T> &by_c) {
        add3(out + (k < joint.held_t ? parameter::translations + 3 * k : parameter::rotations + 3 * (k - joint.held_t)), by_c);
    }
    void add_free(int i, const Vec3<T> &by_f) {
        const int turn = i - joint.free_t();
        add3(out + (turn < 0 ? parameter::translations + 3 * (joint.held_t + i) : parameter::rotations + 3 * (joint.held_r + turn)), by_f);
    }

    // Adds the gradient of weight times coordinate i at the next configuration. `angle`: rotation vector of p⁺, for several rotations.
    void add_coordinate(int i, const T &weight, const Relative<T> &next, const RotationVector<T> &angle) {
        add_coordinate(i, weight, parent.next, child.next, next, angle);
    }
    // The same at poses of parent and child, with `relative` between them.
    void add_coordinate(int i, const T &weight, const BodyPose<T> &a, const BodyPose<T> &b, const Relative<T> &relative,
                        const RotationVector<T> &angle) {
        bool translation;
        const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
        if (translation) {
            const Vec3<T> d = problem.displacement(joint, data, relative);
            add_displacement(a, b, weight * f, d);
            return add_free(i, weight * d);
        }
        add_angle(i, weight, f, relative.p, angle);
    }

    // Adds the gradient of weight times a rotational coordinate i at any p.
    void add_angle(int i, const T &weight, const Vec3<T> &f, const Quat<T> &p, const RotationVector<T> &angle) {
        add_turn(weight * transposed_times(data.offset, angle_gradient(joint, data.offset, p, angle, f).phi_parent));
        if (joint.free_r() > 1) return add_free(i, weight * angle.theta);
        const T s = dot(f, p.v);  // 2 atan2(f·v, w)
        add_free(i, (2.0 * weight * p.w / (p.w * p.w + s * s)) * p.v);
    }

    void finish() const {
        add3(out + parameter::parent_anchor, parent_anchor);
        add3(out + parameter::child_anchor, child_anchor);
        const Quat<T> by_q = data.offset_quaternion * Quat<T>{T{}, 2.0 * psi};
        out[parameter::orientation] += by_q.w;
        add3(out + parameter::orientation + 1, by_q.v);
    }

    T *const out;                     // gradient of the joint's packed parameters

private:
    const Problem<T> &problem;
    const BodyData<T> &parent, &child;
    Vec3<T> a_w, b_w;                 // α_ω of parent and child
    Vec3<T> parent_anchor{}, child_anchor{}, psi{};
};

}  // namespace torchdojo
