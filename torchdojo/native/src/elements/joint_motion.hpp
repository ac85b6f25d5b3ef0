// Coordinates and rates of a joint at a state, and products with their derivatives (`coordinates` and `rate` in elements/joints.py).
//
// A state holds the velocity that led to it. So it gives two configurations: the poses now, and the poses one step before (−),
//
//     x⁻ = x − h v,    q⁻ = q ⊗ (c, a)⁻¹,    a = (h/2) ω,    c = √(1 − |a|²).
//
// With the free axes in the rows of A, a joint has the coordinates (A_t e, A_r log p) and the rates (A_t (e − e⁻), A_r log(p p⁻⁻¹)) / h.
// Here e is the displacement of the anchors in the parent's frame. Poses change by (dx, dφ), R' = R (1 + [dφ]×). So p changes by
// δp = dφ_b − R_bᵀ R_a dφ_a, log p by J_r⁻¹ δp, log(p p⁻⁻¹) by J_r⁻¹ R(p⁻) (δp − δp⁻), and the poses before by
//
//     dx⁻ = dx − h dv,    dφ⁻ = R(c, a) (dφ − M dω),    M = h (c I + a aᵀ/c − [a]×).
#pragma once

#include "elements/kinematics.hpp"

namespace torchdojo {

// The free axes of a joint: rows of translations in the parent's frame, and of rotations in the joint frame.
template <class T>
struct FreeAxes {
    const JointTable &joint;
    const T *p;  // its parameters
    Quat<T> offset_quaternion;
    Mat3<T> offset;

    FreeAxes(const JointTable &joint, const T *parameters)
        : joint(joint), p(parameters + joint.parameters), offset_quaternion(load4(p + parameter::orientation)),
          offset(rotation_matrix(offset_quaternion)) {}
    TD_INLINE Vec3<T> rotation(int i) const { return load3(p + parameter::rotations + 3 * (joint.held_r + i)); }
    TD_INLINE Vec3<T> translation(int i) const { return offset * load3(p + parameter::translations + 3 * (joint.held_t + i)); }
    TD_INLINE Vec3<T> rotations(const T *values) const {
        Vec3<T> sum{};
        for (int i = 0; i < joint.free_r(); ++i) sum = sum + values[joint.free_t() + i] * rotation(i);
        return sum;
    }
    TD_INLINE Vec3<T> translations(const T *values) const {
        Vec3<T> sum{};
        for (int i = 0; i < joint.free_t(); ++i) sum = sum + values[i] * translation(i);
        return sum;
    }
    TD_INLINE Vec3<T> parent_anchor() const { return load3(p + parameter::parent_anchor); }
    TD_INLINE Vec3<T> child_anchor() const { return load3(p + parameter::child_anchor); }
};

// A gradient by the state of one body, or a tangent: x and v in the world frame, φ and ω in the body frame.
template <class T>
struct StateGradient {
    Vec3<T> x, v, phi, omega;

    TD_INLINE T times(const StateGradient &tangent) const {
        return dot(x, tangent.x) + dot(v, tangent.v) + dot(phi, tangent.phi) + dot(omega, tangent.omega);
    }
};

// A body at a state. With h = 0 it has no configuration before.
template <class T>
struct MovingBody {
    BodyPose<T> pose, before;
    T h, c, inverse_norm;             // inverse_norm: of the quaternion in the state
    Vec3<T> v, a;
    Mat3<T> turn;                     // R(c, a)

    static MovingBody world() {
        MovingBody body{};
        body.c = body.inverse_norm = body.pose.q.w = broadcast<T>(1.0);
        body.turn = body.pose.R = rotation_matrix(body.pose.q);
        body.before = body.pose;
        return body;
    }
    // state: the 13 numbers of the body.
    void load(const T *state, const T &timestep) {
        load_pose(state);
        load_turn(state, timestep);
        v = load3(state + 3);
        turn = rotation_matrix(Quat<T>{c, a});
        before.x = pose.x - h * v;
        before.q = pose.q * Quat<T>{c, -a};
        before.R = rotation_matrix(before.q);
    }
    void load_pose(const T *state) {
        load_attitude(state);
        pose.x = load3(state);
        pose.R = rotation_matrix(pose.q);
    }
    TD_INLINE void load_attitude(const T *state) {
        const Quat<T> q = load4(state + 6);
        inverse_norm = 1.0 / sqrt(q.w * q.w + dot(q.v, q.v));
        pose.q = {inverse_norm * q.w, inverse_norm * q.v};
    }
    TD_INLINE void load_turn(const T *state, const T &timestep) {
        h = timestep;
        a = (0.5 * h) * load3(state + 10);
        c = sqrt(1.0 - dot(a, a));
    }
    // Adds a gradient by the pose before.
    TD_INLINE void add_before(const Vec3<T> &x, const Vec3<T> &phi, StateGradient<T> &to) const {
        const Vec3<T> turned = transposed_times(turn, phi);
        to.x = to.x + x;
        to.v = to.v - h * x;
        to.phi = to.phi + turned;
        to.omega = to.omega - h * (c * turned + (dot(a, turned) / c) * a + cross(a, turned));
    }
    // A gradient by the 13 numbers of the state. Its part for the quaternion is tangent to the sphere.
    TD_INLINE void store(const StateGradient<T> &g, T *to) const {
        const Quat<T> by_q = pose.q * Quat<T>{T{}, (2.0 * inverse_norm) * g.phi};
        store3(to, g.x);
        store3(to + 3, g.v);
        store3(to + 10, g.omega);
        to[6] = by_q.w;
        store3(to + 7, by_q.v);
    }
    // The tangent for a change of the 13 numbers, and the gradient by the tangent for a gradient by these numbers.
    TD_INLINE StateGradient<T> tangent(const T *change) const {
        return {load3(change), load3(change + 3), (2.0 * inverse_norm) * (conjugate(pose.q) * load4(change + 6)).v, load3(change + 10)};
    }
    TD_INLINE StateGradient<T> gradient(const T *of_state) const {
        return {load3(of_state), load3(of_state + 3), 0.5 * (conjugate(pose.q) * load4(of_state + 6)).v, load3(of_state + 10)};
    }
};

// A joint between two moving bodies. Pointers count the free coordinates, translations first.
template <class T>
class JointMotion {
public:
    JointMotion(const JointTable &joint, const T *parameters, const MovingBody<T> &parent, const MovingBody<T> &child)
        : axes(joint, parameters), now(relative(parent.pose, child.pose)), joint(joint), parent(parent), child(child) {
        if (joint.free_r() > 1) angle = rotation_vector(now.p);
    }

    const FreeAxes<T> axes;
    const Relative<T> now;

    void coordinates(T *q) const {
        const Vec3<T> e = now.y_parent - axes.parent_anchor();
        for (int i = 0; i < joint.free_t(); ++i) q[i] = dot(axes.translation(i), e);
        if (joint.free_r() == 1) {
            q[joint.free_t()] = angle_about(now.p, axes.rotation(0));
        } else {
            for (int i = 0; i < joint.free_r(); ++i) q[joint.free_t() + i] = dot(axes.rotation(i), angle.theta);
        }
    }

    void rates(T *qd) const {
        const T inverse = 1.0 / child.h;
        const Relative<T> earlier = relative(parent.before, child.before);
        const Vec3<T> moved = inverse * (now.y_parent - earlier.y_parent);
        for (int i = 0; i < joint.free_t(); ++i) qd[i] = dot(axes.translation(i), moved);
        if (!joint.free_r()) return;
        const Vec3<T> turn = rotation_vector(now.p * conjugate(earlier.p)).theta;
        for (int i = 0; i < joint.free_r(); ++i) qd[joint.free_t() + i] = inverse * dot(axes.rotation(i), turn);
    }

    // Adds the gradient of by_q · coordinates.
    void add_coordinates(const T *by_q, StateGradient<T> &on_parent, StateGradient<T> &on_child) const {
        if (joint.free_t()) add_translation(axes.translations(by_q), on_parent, on_child);
        if (!joint.free_r()) return;
        const bool single = joint.free_r() == 1;
        const RowGradient<T, T> g = angle_gradient(joint, axes.offset, now.p, angle, single ? axes.rotation(0) : axes.rotations(by_q));
        const T weight = single ? by_q[joint.free_t()] : broadcast<T>(1.0);
        on_child.phi = on_child.phi + weight * g.phi_child;
        on_parent.phi = on_parent.phi + weight * g.phi_parent;
    }

    // Adds the gradient of by_qd · rates.
    void add_rates(const T *by_qd, StateGradient<T> &on_parent, StateGradient<T> &on_child) const {
        const T inverse = 1.0 / child.h;
        const Relative<T> earlier = relative(parent.before, child.before);
        Vec3<T> x{}, on_parent_before{}, on_child_before{};
        if (joint.free_t()) {
            const Vec3<T> weight = inverse * axes.translations(by_qd);
            add_translation(weight, on_parent, on_child);
            x = parent.before.R * weight;
            on_child_before = cross(axes.child_anchor(), transposed_times(child.before.R, x));
            on_parent_before = cross(weight, earlier.y_parent);
        }
        if (joint.free_r()) {
            const RotationVector<T> turn = rotation_vector(now.p * conjugate(earlier.p));
            const Vec3<T> g = left_jacobian_inverse(turn, inverse * axes.rotations(by_qd));
            const Vec3<T> by_p = transposed_times(rotation_matrix(earlier.p), g);
            on_child.phi = on_child.phi + by_p;
            on_parent.phi = on_parent.phi - axes.offset * (rotation_matrix(now.p) * by_p);
            on_child_before = on_child_before + by_p;
            on_parent_before = on_parent_before - axes.offset * g;
        }
        child.add_before(-x, -on_child_before, on_child);
        parent.add_before(x, -on_parent_before, on_parent);
    }

private:
    const JointTable &joint;
    const MovingBody<T> &parent, &child;
    RotationVector<T> angle;          // rotation vector of p, for several rotations

    TD_INLINE Relative<T> relative(const BodyPose<T> &a, const BodyPose<T> &b) const {
        Relative<T> r{};
        if (axes.joint.free_t()) {  // nothing else reads the displacement
            r.y = b.x + b.R * axes.child_anchor() - a.x;
            r.y_parent = transposed_times(a.R, r.y);
        }
        r.p = conjugate(a.q * axes.offset_quaternion) * b.q;
        return r;
    }

    // Adds the gradient of weight · e, weight in the parent's frame.
    TD_INLINE void add_translation(const Vec3<T> &weight, StateGradient<T> &on_parent, StateGradient<T> &on_child) const {
        const Vec3<T> x = parent.pose.R * weight;
        on_child.x = on_child.x + x;
        on_parent.x = on_parent.x - x;
        on_child.phi = on_child.phi + cross(axes.child_anchor(), transposed_times(child.pose.R, x));
        on_parent.phi = on_parent.phi + cross(weight, now.y_parent);
    }
};

}  // namespace torchdojo
