// Points of bodies that are far from the half-spaces of the world, in closed form.
//
// On the path, a point at the gap φ⁺ whose slip is u has the normal impulse γ = κ/φ⁺, and its friction ξ₁ = μγ, β = −ξ₁u/η₁ with
// η₁ = (φ⁺/μ + √(φ⁺²/μ² + 4|u|²))/2, which ξ∘η = κe and η₂₃ = u give. Where φ⁺ is large, the derivatives of these impulses are tiny beside
// the masses: beyond half of `far_margin`, that of γ is at most 4.5e-5 of its body's mass. So such points need no unknowns, no cones and no place
// in the matrix, and Newton's method finds the same solution in as many iterations. The call chooses which points are far
// (abi/near_points.hpp). Gaps below half of the margin count as that: iterates may pass there, and solutions that end there are not accepted.
#pragma once

#include "solver/problem.hpp"

namespace torchdojo {

namespace constant {
constexpr double least_margin = 5e-3;  // [m]
constexpr double far_ratio = 300.0;  // multiple of √(κh/m), the gap at which the derivative of γ is the mass
}  // namespace constant

// Gap above which points of a body may count as far.
template <class T>
TD_INLINE T far_margin(const T &kappa, const T &h, const T &mass) {
    return max(broadcast<T>(constant::least_margin), constant::far_ratio * root(kappa * h * inverse_of(mass)));
}

// Whether a contact has the closed form: with a half-space, and without a law that changes its gap or its cone.
inline bool may_be_far(const ContactTable &contact) {
    return contact.pair < 0 && contact.restitution < 0 && contact.stiffness < 0 && contact.recovery_speed < 0 && !contact.num_couples &&
           !contact.is_pyramid();
}

template <class T>
struct FarPoints {
    // Computes impulses and slacks at w, at which the bodies have been placed, and adds them to the balance of the bodies.
    static void add(Problem<T> &problem, const T *w) {
        const MechanismTable &m = problem.mechanism;
        problem.far_stiffness = T{};
        for (size_t first = 0, end; first < m.far.size(); first = end) {
            for (end = first + 1; end < m.far.size() && m.far[end].body == m.far[first].body;) ++end;
            add_body(problem, m.far[first].body, first, end, w);
        }
    }

    // One lane of impulses and slacks as a solution has them.
    static void keep(const Problem<T> &problem, int lane, double *w) {
        const MechanismTable &m = problem.mechanism;
        for (size_t k = 0; k < m.far.size(); ++k) {
            const ContactTable &contact = m.far[k];
            const FarData<T> &data = problem.far[k];
            w[contact.impulse] = get(data.gamma, lane);
            w[contact.slack] = get(data.gap, lane);
            for (int i = 0; i < contact.friction_size(); ++i) {
                w[contact.friction_impulse() + i] = get(data.xi[i], lane);
                w[contact.friction_slack() + i] = get(data.eta[i], lane);
            }
        }
    }

private:
    static void add_body(Problem<T> &problem, int body, size_t first, size_t end, const T *w) {
        const BodyPose<T> &next = problem.bodies[body].next;
        const T kappa = broadcast<T>(problem.kappa), mass = problem.body_parameters(body)[parameter::mass];
        const T floor = 0.5 * far_margin(kappa, problem.timestep(), mass);
        const Vec3<T> v = load3(w + 6 * body), omega = next.R * load3(w + 6 * body + 3);
        Vec3<T> force{}, torque{};
        T stiffness{};
        for (size_t k = first; k < end; ++k) {
            const ContactTable &contact = problem.mechanism.far[k];
            FarData<T> &data = problem.far[k];
            const T *p = &problem.parameters[contact.parameters];
            const Vec3<T> normal = load3(p + parameter::normal), arm = next.R * load3(p + parameter::point);
            data.gap = max(dot(normal, next.x + arm) - p[parameter::offset] - p[parameter::radius], floor);
            const T inverse = inverse_of(data.gap);
            data.gamma = kappa * inverse;
            stiffness += data.gamma * inverse;
            const Vec3<T> lever = arm - p[parameter::radius] * normal;
            Vec3<T> impulse = data.gamma * normal;
            if (contact.friction) {
                const T mu = p[parameter::friction], ratio = quotient(data.gap, mu);
                const Vec3<T> t1 = load3(p + parameter::tangents), t2 = load3(p + parameter::tangents + 3), u = v + cross(omega, lever);
                const T s1 = dot(t1, u), s2 = dot(t2, u), first_slack = 0.5 * (ratio + root(ratio * ratio + 4.0 * (s1 * s1 + s2 * s2)));
                const T height = mu * data.gamma, scale = -quotient(height, first_slack);
                data.xi = {height, scale * s1, scale * s2};
                data.eta = {first_slack, s1, s2};
                impulse = impulse + data.xi.y * t1 + data.xi.z * t2;
            }
            force = force + impulse;
            torque = torque + cross(lever, impulse);
        }
        problem.far_stiffness = max(problem.far_stiffness, stiffness);
        add3(&problem.residual[6 * body], -force);
        add3(&problem.residual[6 * body + 3], -transposed_times(next.R, torque));
    }
};

}  // namespace torchdojo
