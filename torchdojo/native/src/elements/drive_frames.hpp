// Transmissions between two frames on bodies (elements/transmissions.py): the length, the pull on each body, and the gradient of
//
//     Φ = λ l + Σ a_i·f_i + b_i·τ_i,
//
// where the pull on body i is a force f in the world frame and a torque τ in body axes, for numbers λ, a_i and b_i that do not change. So a_i
// and b_i stand for velocities, or for gradients by the wrench. Poses change by (dx, dφ), R' = R (1 + [dφ]×).
//
// With P_i = x_i + R_i p_i and d = P₁ − P₂, a gradient D by d gives the gradients ±D by x_i and ±p_i × R_iᵀD by φ_i.
#pragma once

#include "elements/data.hpp"
#include "elements/drive_laws.hpp"
#include "elements/joint_motion.hpp"

namespace torchdojo {

// Numbers that both transmissions have: the bodies of the frames, where the origins are on these, and d.
template <class T>
struct FramePair {
    const MovingBody<T> &own, &other;
    Vec3<T> arm, other_arm, apart;

    template <class N>
    FramePair(const MovingBody<T> &own, const MovingBody<T> &other, const drive_laws::Numbers<T, N> &p)
        : own(own), other(other), arm(p.vector(drive_number::arm)), other_arm(p.vector(drive_number::other_arm)),
          apart(own.pose.x + own.pose.R * arm - other.pose.x - other.pose.R * other_arm) {}

    TD_INLINE Vec3<T> in_own(const Vec3<T> &v) const { return transposed_times(own.pose.R, v); }
    TD_INLINE Vec3<T> in_other(const Vec3<T> &v) const { return transposed_times(other.pose.R, v); }
    // Adds a gradient by d; `by` has a gradient by position and rotation of each body.
    TD_INLINE void add_apart(const Vec3<T> &gradient, Pull<T> *by) const {
        by[0].force = by[0].force + gradient;
        by[0].torque = by[0].torque + cross(arm, in_own(gradient));
        by[1].force = by[1].force - gradient;
        by[1].torque = by[1].torque - cross(other_arm, in_other(gradient));
    }
};

// A site relative to another one. A body that floats has a site at its anchor, relative to the world, without a length, and perhaps a further
// torque in its own axes. With g and γ in the axes of the other body, F = R₂ g, and the offset q_o between the frames,
//
//     l = F·d + γ·θ,   θ = log(q₂⁻¹ q₁ q_o),   Φ = λ l + F·(a₁ + R₁(b₁ × p₁) − a₂ − w × d) + R₂ γ·R₁ b₁ − b₂·(p₂ × g + γ),   w = R_c b_c.
template <class T>
struct SitePair : FramePair<T> {
    using FramePair<T>::own, FramePair<T>::other, FramePair<T>::arm, FramePair<T>::other_arm, FramePair<T>::apart;
    using FramePair<T>::in_own, FramePair<T>::in_other, FramePair<T>::add_apart;
    const MovingBody<T> &carrier;
    Vec3<T> push, turn, own_turn, force, torque;
    Quat<T> offset;
    RotationVector<T> angle;

    template <class N>
    SitePair(const MovingBody<T> &own, const MovingBody<T> &other, const MovingBody<T> &carrier, const drive_laws::Numbers<T, N> &p)
        : FramePair<T>(own, other, p), carrier(carrier), push(p.vector(drive_number::push)), turn(p.vector(drive_number::turn)),
          own_turn(p.vector(drive_number::own_turn)), force(other.pose.R * push), torque(other.pose.R * turn),
          offset{p[drive_number::offset], p.vector(drive_number::offset + 1)},
          angle(rotation_vector(conjugate(other.pose.q) * own.pose.q * offset)) {}

    TD_INLINE T length(Pull<T> *pulls) const {
        pulls[0] = {force, cross(arm, in_own(force)) + in_own(torque) + own_turn};
        pulls[1] = {-force, -(cross(other_arm, push) + turn)};
        pulls[2] = {Vec3<T>{}, transposed_times(carrier.pose.R, cross(force, apart))};
        return dot(force, apart) + dot(turn, angle.theta);
    }

    TD_INLINE void pull_back(const T &by_length, const Pull<T> *c, Pull<T> *by) const {
        const Vec3<T> w = carrier.pose.R * c[2].torque;
        const Vec3<T> swing = cross(c[0].torque, arm);
        const Vec3<T> by_force = c[0].force + own.pose.R * swing - c[1].force - cross(w, apart) + by_length * apart;
        const Vec3<T> turned = in_other(own.pose.R * c[0].torque);
        by[0] = {Vec3<T>{}, cross(swing, in_own(force)) + cross(c[0].torque, in_own(torque)) +
                                by_length * rotate(offset, left_jacobian_inverse(angle, turn))};
        by[1] = {Vec3<T>{}, cross(push, in_other(by_force)) + cross(turn, turned) - by_length * right_jacobian_inverse(angle, turn)};
        by[2] = {Vec3<T>{}, cross(c[2].torque, transposed_times(carrier.pose.R, cross(force, apart)))};
        add_apart(by_length * force + cross(w, force), by);
    }
};

// A crank whose rod of length r goes to a slider on the axis a = R₂ g. With s = a·d and S = √(s² + r² − |d|²), the length is l = s − S, and Φ
// the derivative of l as d moves by V = a₁ + R₁(b₁ × p₁) − a₂ − R₂(b₂ × p₂) and a by B = R₂(b₂ × g), that is, with σ = a·V + B·d,
//
//     Φ = λ l + σ − S',   S' = (s σ − d·V)/S.
//
// A rod that is too short has l = s, and zero in the place of 1/S.
template <class T>
struct SliderCrank : FramePair<T> {
    using FramePair<T>::own, FramePair<T>::other, FramePair<T>::arm, FramePair<T>::other_arm, FramePair<T>::apart;
    using FramePair<T>::in_own, FramePair<T>::in_other, FramePair<T>::add_apart;
    Vec3<T> push, axis;
    T gear, along, inverse, rest, root;

    template <class N>
    SliderCrank(const MovingBody<T> &own, const MovingBody<T> &other, const drive_laws::Numbers<T, N> &p)
        : FramePair<T>(own, other, p), push(p.vector(drive_number::push)), axis(other.pose.R * push), gear(p[drive_number::gear]),
          along(dot(axis, apart)) {
        const T rod = p[drive_number::rod];
        const T square = along * along + rod * rod - dot(apart, apart);
        const Mask<T> reaches = square > T{};
        root = sqrt(select(reaches, square, T{}));
        inverse = select(reaches, inverse_of(select(reaches, root, broadcast<T>(1.0))), T{});
        rest = 1.0 - along * inverse;
    }

    TD_INLINE Vec3<T> by_apart() const { return gear * (rest * axis + inverse * apart); }
    TD_INLINE Vec3<T> by_axis() const { return (gear * rest) * apart; }

    TD_INLINE T length(Pull<T> *pulls) const {
        const Vec3<T> force = by_apart();
        pulls[0] = {force, cross(arm, in_own(force))};
        pulls[1] = {-force, cross(push, in_other(by_axis())) - cross(other_arm, in_other(force))};
        return gear * (along - root);
    }

    TD_INLINE void pull_back(const T &by_length, const Pull<T> *c, Pull<T> *by) const {
        const Vec3<T> swing = cross(c[0].torque, arm);
        const Vec3<T> other_swing = cross(c[1].torque, other_arm);
        const Vec3<T> turned = cross(c[1].torque, push);
        const Vec3<T> d = apart;
        const Vec3<T> force = by_apart();
        const Vec3<T> on_axis = by_axis();
        const Vec3<T> V = c[0].force + own.pose.R * swing - c[1].force - other.pose.R * other_swing;
        const Vec3<T> B = other.pose.R * turned;
        const T sigma = dot(axis, V) + dot(B, d);
        const T moved = (along * sigma - dot(d, V)) * inverse;  // S'
        const T by_along = (moved * along * inverse - sigma) * inverse;
        const Vec3<T> by_d = gear * (rest * B + by_along * axis + inverse * V - (moved * inverse * inverse) * d) + by_length * force;
        const Vec3<T> by_a = gear * (rest * V + by_along * d) + by_length * on_axis;
        by[0] = {Vec3<T>{}, cross(swing, in_own(force))};
        by[1] = {Vec3<T>{}, cross(turned, in_other(on_axis)) + cross(push, in_other(by_a)) - cross(other_swing, in_other(force))};
        add_apart(by_d, by);
    }
};

}  // namespace torchdojo
