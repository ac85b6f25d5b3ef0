// Poses of bodies, the relative poses that joints see, and their derivatives.
//
// Names: x, R, q pose; v, ω velocity; + the next configuration; M = dφ⁺/dω⁺ where φ⁺ is the body-frame rotation vector of the next
// orientation. With a = (h/2) ω⁺ and c = √(1 − |a|²), the next orientation is q ⊗ (c, a), and
//     M = h (c I + a aᵀ/c − [a]×).
// Joints: Q = R_a R_off is the joint frame, y = x_b + R_b p_b − x_a, d = Qᵀ y − R_offᵀ p_a, p = q_off⁻¹ q_a⁻¹ q_b.
#pragma once

#include "abi/mechanism.hpp"
#include "base/math.hpp"

namespace torchdojo {

template <class T>
struct BodyPose {
    Vec3<T> x;
    Quat<T> q;
    Mat3<T> R;
};

template <class T>
struct BodyData {
    BodyPose<T> pose, next;
    T q_norm;                         // norm of the quaternion as given
    Vec3<T> linear, angular;          // constant part of the balance of momentum, with the impulses of springs and inputs
    Quat<T> increment;
    Mat3<T> M;
    BodyPose<T> incoming;             // before the step that led here, where joints have armature
    Quat<T> arrival;                  // increment of the step that led here, its vector in world axes
    Mat3<T> inverse_inertia;          // where joints have cones

    // The current pose moved back by the next velocity, against which dampers measure.
    TD_INLINE BodyPose<T> one_step_back() const {
        const Quat<T> q = orientation_back();
        return {2.0 * pose.x - next.x, q, rotation_matrix(q)};
    }
    TD_INLINE Quat<T> orientation_back() const { return pose.q * conjugate(increment); }
};

// The pose that a step of length h reaches with the velocities v and ω, or the pose from which it started.
template <class T>
TD_INLINE BodyPose<T> pose_after(const BodyPose<T> &pose, const T &h, const Vec3<T> &v, const Vec3<T> &omega) {
    const Vec3<T> a = (0.5 * h) * omega;
    const Quat<T> q = pose.q * Quat<T>{root(1.0 - dot(a, a)), a};
    return {pose.x + h * v, q, rotation_matrix(q)};
}
template <class T>
TD_INLINE BodyPose<T> pose_before(const BodyPose<T> &pose, const T &h, const Vec3<T> &v, const Vec3<T> &omega) {
    const Vec3<T> a = (0.5 * h) * omega;
    const Quat<T> q = pose.q * conjugate(Quat<T>{root(1.0 - dot(a, a)), a});
    return {pose.x - h * v, q, rotation_matrix(q)};
}

// A displacement and a relative orientation seen from the joint frame.
template <class T>
struct Relative {
    Vec3<T> y;                        // child anchor from the parent's center of mass, world frame
    Vec3<T> y_parent;                 // y in the parent's frame
    Quat<T> p;
};

// Derivative with respect to the twists (v, ω) of child and parent. The derivative by the parent's v is minus the one by the child's v.
template <class T>
struct TwistRow {
    Vec3<T> linear, child, parent;

    TD_INLINE T times(const T *of_child, const T *of_parent) const {
        T sum = dot(linear, load3(of_child)) + dot(child, load3(of_child + 3));
        if (of_parent) sum += dot(parent, load3(of_parent + 3)) - dot(linear, load3(of_parent));
        return sum;
    }
};
template <class T>
TD_INLINE TwistRow<T> operator+(const TwistRow<T> &a, const TwistRow<T> &b) {
    return {a.linear + b.linear, a.child + b.child, a.parent + b.parent};
}
template <class T>
TD_INLINE TwistRow<T> operator*(const T &s, const TwistRow<T> &a) {
    return {s * a.linear, s * a.child, s * a.parent};
}

// Gradient of μ_T·d + μ_R·vec(p) with respect to (x_b, φ_b, φ_a), at any configuration. The gradient for x_a is minus the one for x_b.
template <class T, class R>
struct RowGradient {
    Vec3<Product<T, R>> x_child, phi_child, phi_parent;
};

template <class T, class R>
TD_INLINE RowGradient<T, R> translation_gradient(const BodyPose<T> &parent, const BodyPose<T> &child, const Mat3<T> &offset,
                                                 const Relative<T> &relative, const Vec3<T> &child_anchor, const Vec3<R> &mu) {
    const auto in_parent = offset * mu;
    const auto world = parent.R * in_parent;
    return {world, cross(child_anchor, transposed_times(child.R, world)), cross(in_parent, relative.y_parent)};
}

template <class T, class R>
TD_INLINE void add_rotation_gradient(RowGradient<T, R> &g, const Mat3<T> &offset, const Quat<T> &p, const Vec3<R> &mu) {
    const auto turned = cross(mu, p.v);
    const auto straight = p.w * mu;
    g.phi_child = g.phi_child + 0.5 * (straight + turned);
    g.phi_parent = g.phi_parent - offset * (0.5 * (straight - turned));
}

// Gradient by the poses of the velocity along direction f of the joint frame (StandardJoint.velocity) at given v and ω of parent and child.
// With g = R_off f, a translation has g·(R_aᵀ (v_b + R_b (ω_b × p_b) − v_a) − ω_a × y_a), a rotation g·(R_aᵀ R_b ω_b − ω_a).
template <class T>
struct Velocity {
    Vec3<T> v, omega;
};
template <class T>
TD_INLINE RowGradient<T, T> velocity_gradient(const BodyPose<T> &parent, const BodyPose<T> &child, const Mat3<T> &offset,
                                              const Relative<T> &relative, const Vec3<T> &child_anchor, const Velocity<T> &a,
                                              const Velocity<T> &b, bool translation, const Vec3<T> &f) {
    const Vec3<T> g = offset * f, in_child = transposed_times(child.R, parent.R * g);
    if (!translation) return {Vec3<T>{}, cross(b.omega, in_child), cross(g, transposed_times(parent.R, child.R * b.omega))};
    const Vec3<T> swing = cross(b.omega, child_anchor), side = cross(a.omega, g), x = parent.R * side;
    const Vec3<T> moving = transposed_times(parent.R, b.v + child.R * swing - a.v);
    return {x, cross(swing, in_child) + cross(child_anchor, transposed_times(child.R, x)),
            cross(g, moving) + cross(side, relative.y_parent)};
}

// Gradient of f·(rotation vector of p⁺ p⁻¹) by the next poses. By the current poses the gradient is the opposite, except for the parent
// (see joint_adjoint.hpp).
template <class T>
TD_INLINE RowGradient<T, T> turn_gradient(const Mat3<T> &offset, const Quat<T> &now, const RotationVector<T> &turn, const Vec3<T> &f) {
    return {Vec3<T>{}, transposed_times(rotation_matrix(now), left_jacobian_inverse(turn, f)), -(offset * right_jacobian_inverse(turn, f))};
}

constexpr double full_turn = 6.28318530717958647692;

// The angle about f of a relative orientation p, 2 atan2(s, w) in (−2π, 2π], s = f·v. The signs of the bodies' quaternions decide between angles
// one turn apart, so the angle is continuous as the bodies turn, to ±2π.
template <class T>
TD_INLINE T double_angle(const T &s, const T &w) {
    const T half = first_quadrant_angle(abs(s), abs(w)), angle = 2.0 * select(w < T{}, 0.5 * full_turn - half, half);
    return select(s < T{}, -angle, angle);
}
template <class T>
TD_INLINE T angle_about(const Quat<T> &p, const Vec3<T> &f) {
    return double_angle(dot(f, p.v), p.w);
}
// Angles two turns apart have the same quaternion. This is the one next to `near`, which is an angle of `angle_about`.
template <class T>
TD_INLINE T next_to(const T &angle, const T &near) {
    const T away = near - angle, two = broadcast<T>(2.0 * full_turn);
    return angle + select(away > full_turn, two, select(away < -full_turn, -two, T{}));
}
template <class T>
TD_INLINE T angle_near(const Quat<T> &p, const Vec3<T> &f, const T &near) {
    return next_to(angle_about(p, f), near);
}

// Derivative of a rotational coordinate by a turn of the child about an axis of the joint frame.
template <class T>
TD_INLINE Vec3<T> angle_by_turn(const JointTable &joint, const Quat<T> &p, const RotationVector<T> &angle, const Vec3<T> &f) {
    if (joint.free_r() > 1) return right_jacobian_inverse(angle, f);
    const T s = dot(f, p.v), inverse = inverse_of(p.w * p.w + s * s);
    return inverse * (p.w * (p.w * f - cross(f, p.v)) + s * p.v);
}

// Gradient of a rotational coordinate: the angle 2 atan2(f·v, w) for one free rotation, f·(rotation vector) for several.
template <class T>
TD_INLINE RowGradient<T, T> angle_gradient(const JointTable &joint, const Mat3<T> &offset, const Quat<T> &p, const RotationVector<T> &angle,
                                           const Vec3<T> &f) {
    const Vec3<T> by_parent = -(offset * angle_by_turn(joint, p, angle, f));
    if (joint.free_r() > 1) return {Vec3<T>{}, left_jacobian_inverse(angle, f), by_parent};
    const T s = dot(f, p.v), inverse = inverse_of(p.w * p.w + s * s);
    return {Vec3<T>{}, inverse * (p.w * (p.w * f + cross(f, p.v)) + s * p.v), by_parent};
}

}  // namespace torchdojo
