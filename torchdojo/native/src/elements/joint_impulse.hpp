// Impulses of joints at the current configuration, in the joint frame, as products with derivatives need them (adjoint.hpp and
// parameter_gradient.hpp).
#pragma once

#include "elements/coupling.hpp"
#include "elements/free.hpp"

namespace torchdojo {

template <class T>
struct JointImpulse {
    Vec3<T> force;
    Vec3<T> held, turned, pushes;     // multipliers m of held rotations, torques along free ones, impulses along components of `angle`
    const RotationVector<T> *angle;   // of p; null where nothing pushes along it

    // ½ (p_w m + p_v × m), and J_l⁻ᵀ of what pushes along the rotation vector.
    TD_INLINE Vec3<T> torque(const Quat<T> &p) const {
        const Vec3<T> sum = 0.5 * (p.w * held + cross(p.v, held)) + turned;
        return angle ? sum + right_jacobian_inverse(*angle, pushes) : sum;
    }
};

// Whether anything acts along the free directions.
inline bool free_acts(const JointTable &joint) { return joint.has_spring || joint.has_damper || joint.input >= 0 || joint.free_data >= 0; }

// Direction k of the joint frame: held ones first, then the free ones.
template <class T>
TD_INLINE Vec3<T> joint_direction(const Problem<T> &problem, const JointTable &joint, int k, bool &translation) {
    const bool is_free = k >= joint.held();
    const int i = is_free ? k - joint.held() : k, split = is_free ? joint.free_t() : joint.held_t;
    translation = i < split;
    const int row = translation ? (is_free ? joint.held_t : 0) + i : (is_free ? joint.held_r : 0) + i - split;
    return load3(&problem.parameters[joint.parameters] + (translation ? parameter::translations : parameter::rotations) + 3 * row);
}

// Of its multipliers in w, and of what acts along its free directions.
template <class T>
TD_INLINE JointImpulse<T> joint_impulse(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const T *w) {
    JointImpulse<T> sum{};
    for (int k = 0; k < (free_acts(joint) ? 6 : joint.held()); ++k) {
        bool translation;
        const Vec3<T> f = joint_direction(problem, joint, k, translation);
        const int i = k - joint.held();
        T impulse = i < 0 ? w[joint.row + k] : data.free_force[i];
        if (i >= 0 && (joint.has_damper || joint.free_data >= 0)) impulse += data.impulse[i];
        Vec3<T> &to = translation ? sum.force : i < 0 ? sum.held : sum.turned;
        to = to + impulse * f;
    }
    if (!joint.extra) return sum;
    const FreeData<T> &from = problem.free[joint.free_data];
    sum.angle = &from.now;
    for (int e = 0; e < joint.extra; ++e) {
        bool translation;
        sum.pushes = sum.pushes + from.extra_impulse[e] * joint_direction(problem, joint, joint.held() + joint.free_t() + e, translation);
    }
    return sum;
}

// Of the multiplier λ of a coupling, at one of its ends.
template <class T>
TD_INLINE JointImpulse<T> coupling_impulse(const CouplingEnd<T> &end, const CouplingData<T> &data, int which, const T &lambda) {
    JointImpulse<T> impulse{};
    (end.translation ? impulse.force : end.turns() ? impulse.turned : impulse.pushes) = (data.weight[which] * lambda) * end.f;
    if (!end.translation && !end.turns()) impulse.angle = &data.angle[which];
    return impulse;
}

// An impulse of a joint, or of an end of a coupling, in the frames in which products need it: of the parent (a) and of the child (b).
template <class T>
struct ImpulseInFrames {
    JointImpulse<T> impulse;
    Vec3<T> f_a, tau_a, f_b, tau_b;

    void set(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const JointImpulse<T> &of) {
        impulse = of;
        const Mat3<T> &Ra = problem.bodies[joint.parent].pose.R, &Rb = problem.bodies[joint.child].pose.R;
        f_a = data.offset * of.force, tau_a = data.offset * of.torque(data.now.p);
        f_b = transposed_times(Rb, Ra * f_a), tau_b = transposed_times(Rb, Ra * tau_a);
    }
};

// Gradient by θ of σ·J_l⁻ᵀf = σ·(f + ½ θ × f + c θ × (θ × f)), c(s) = (1 − y)/s with s = |θ|² and y = (|θ|/2) cot(|θ|/2).
template <class T, class R>
Vec3<R> push_gradient(const RotationVector<T> &angle, const Vec3<T> &f, const Vec3<R> &sigma) {
    const Vec3<T> &theta = angle.theta;
    const T s = dot(theta, theta), y = 1.0 - angle.curvature * s, safe = max(s, broadcast<T>(1e-2));
    const T slope = select(s < 1e-2, 1.0 / 720.0 + s * (1.0 / 15120.0 + s * (1.0 / 403200.0 + s / 11975040.0)),
                           -(y - y * y - 0.25 * s) / (2.0 * safe * safe) - angle.curvature / safe);
    const R along = dot(sigma, theta), across = dot(sigma, f);
    const T inside = dot(theta, f);
    return 0.5 * cross(f, sigma) + angle.curvature * (inside * sigma + along * f - (2.0 * across) * theta) +
           (2.0 * slope * (along * inside - s * across)) * theta;
}

}  // namespace torchdojo
