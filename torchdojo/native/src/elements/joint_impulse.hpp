// Impulses of joints at the current configuration, in the joint frame, as products with derivatives need them (joint_adjoint.hpp,
// joint_parameters.hpp and coupling.hpp).
#pragma once

#include "gradient/adjoint_state.hpp"

namespace torchdojo {

// Whether anything acts along the free directions.
inline bool free_acts(const JointTable &joint) { return joint.has_spring || joint.has_damper || joint.input >= 0 || joint.free_data >= 0; }

// Impulse of a joint: from its multipliers in w, and from the impulses along its free directions.
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
    if (joint.has_spring && joint.has_vector()) {
        sum.angle = &data.angle;
        sum.pushes = data.pull;
    }
    if (!joint.extra) return sum;
    const FreeData<T> &from = problem.free[joint.free_data];
    sum.angle = &from.now;
    if (joint.cone >= 0) {
        sum.coned = true;
        sum.cone = from.extra_impulse[0] / problem.parameters[joint.cone];
        sum.turned = sum.turned + sum.cone * from.now.theta;
        return sum;
    }
    for (int e = 0; e < joint.extra; ++e) {
        bool translation;
        sum.pushes = sum.pushes + from.extra_impulse[e] * joint_direction(problem, joint, joint.held() + joint.free_t() + e, translation);
    }
    return sum;
}

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

// The same of all impulses along the rotation vector, with the torque of a cone.
template <class T, class R>
TD_INLINE Vec3<R> push_gradient(const JointImpulse<T> &impulse, const Vec3<R> &sigma) {
    const Vec3<R> g = push_gradient(*impulse.angle, impulse.pushes, sigma);
    return impulse.coned ? g + impulse.cone * sigma : g;
}

// Impulses at the current configuration: force f and torque τ in the joint frame, V = λᵀ(impulses),
//   V = F·(β_v − α_v + R_b(β_ω × p_b)) + R_b β_ω·Q τ − α_ω·R_off τ − y_a·((R_off f) × α_ω),   F = Q f,   y_a = R_aᵀ y.
template <class T, class R>
void impulse_product(AdjointState<T, R> &adjoint, const Problem<T> &problem, const JointTable &joint, const JointData<T> &data,
                     const ImpulseInFrames<T> &in) {
    const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
    const bool world = joint.parent == problem.mechanism.num_bodies;
    const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
    const Vec3<R> a_v = world ? Vec3<R>{} : load3(&adjoint.multiplier[6 * joint.parent]);
    const Vec3<R> a_w = world ? Vec3<R>{} : load3(&adjoint.multiplier[6 * joint.parent + 3]);
    const Vec3<R> b_v = load3(&adjoint.multiplier[6 * joint.child]), b_w = load3(&adjoint.multiplier[6 * joint.child + 3]);
    const JointImpulse<T> &impulse = in.impulse;
    const Quat<T> &rel = data.now.p;
    const Mat3<T> &Ra = parent.pose.R, &Rb = child.pose.R;
    const Vec3<R> swing = cross(b_w, anchor);
    const Vec3<R> apart = b_v - a_v + Rb * swing, turn = Rb * b_w, k = cross(in.f_a, a_w);
    const Vec3<R> world_k = Ra * k, turn_a = transposed_times(Ra, turn);
    Vec3<R> phi_a = cross(in.f_a, transposed_times(Ra, apart)) + cross(in.tau_a, turn_a) - cross(k, data.now.y_parent);
    Vec3<R> phi_b = cross(swing, in.f_b) + cross(b_w, in.tau_b) - cross(anchor, transposed_times(Rb, world_k));
    // σ = ∂V/∂τ, for the part of τ that depends on the relative orientation.
    const Vec3<R> sigma = transposed_times(data.offset, turn_a - a_w);
    const R s0 = 0.5 * dot(impulse.held, sigma);
    const Vec3<R> sv = 0.5 * cross(impulse.held, sigma);
    const Vec3<R> straight = s0 * rel.v - rel.w * sv;
    phi_b = phi_b - 0.5 * (straight - cross(sv, rel.v));
    phi_a = phi_a + data.offset * (0.5 * (straight - cross(rel.v, sv)));
    if (impulse.angle) {
        const Vec3<R> g = push_gradient(impulse, sigma);
        phi_b = phi_b + left_jacobian_inverse(*impulse.angle, g);
        phi_a = phi_a - data.offset * right_jacobian_inverse(*impulse.angle, g);
    }
    adjoint.gradient.phi[joint.parent] = adjoint.gradient.phi[joint.parent] + phi_a;
    adjoint.gradient.phi[joint.child] = adjoint.gradient.phi[joint.child] + phi_b;
    adjoint.gradient.x[joint.parent] = adjoint.gradient.x[joint.parent] + world_k;
    adjoint.gradient.x[joint.child] = adjoint.gradient.x[joint.child] - world_k;
}

}  // namespace torchdojo
