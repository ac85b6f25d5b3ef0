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

// The motion of a body at the end of a step, and what its points share.
template <class T>
struct FarBody {
    Vec3<T> x, v, spin;  // spin: angular velocity in world axes
    Mat3<T> R;
    T kappa, least_gap;
};

// A point of such a body. number(k): number k of its contact, in the order of `parameter`.
template <class T>
struct FarImpulse {
    T gap, gamma, slope{};  // slope: a bound of the derivative of the impulse by displacements in the step
    Vec3<T> xi, eta, impulse, lever;

    template <class F>
    TD_INLINE FarImpulse(const F &number, const FarBody<T> &body, bool rubs, const T &inverse_h) {
        const auto vector = [&](int k) { return Vec3<T>{number(k), number(k + 1), number(k + 2)}; };
        const Vec3<T> normal = vector(parameter::normal), arm = body.R * vector(parameter::point);
        const T radius = number(parameter::radius);
        gap = max(dot(normal, body.x + arm) - number(parameter::offset) - radius, body.least_gap);
        const T inverse = inverse_of(gap);
        gamma = body.kappa * inverse;
        slope = gamma * inverse;
        lever = arm - radius * normal;
        impulse = gamma * normal;
        if (!rubs) return;
        const Vec3<T> t1 = vector(parameter::tangents), t2 = vector(parameter::tangents + 3), u = body.v + cross(body.spin, lever);
        const T mu = number(parameter::friction), ratio = quotient(gap, mu), s1 = dot(t1, u), s2 = dot(t2, u);
        const T first_slack = 0.5 * (ratio + root(ratio * ratio + 4.0 * (s1 * s1 + s2 * s2)));
        const T height = mu * gamma, scale = quotient(height, first_slack);
        xi = {height, -scale * s1, -scale * s2};
        eta = {first_slack, s1, s2};
        impulse = impulse + xi.y * t1 + xi.z * t2;
        slope += scale * inverse_h;
    }
};

template <class T>
struct FarPoints {
    // Adds the impulses at w, at which the bodies have been placed, to the balance of the bodies.
    static void add(Problem<T> &problem, const T *w) {
        FarField<T> &far = problem.far;
        if (!far.call) return;
        far.slope = T{};
        for (size_t first = 0, end; first < far.weights.size(); first = end) {
            const int body = far.call->points[first].body;
            for (end = first + 1; end < far.weights.size() && far.call->points[end].body == body;) ++end;
            add_body(problem, body, first, end, w);
        }
    }

private:
    static void add_body(Problem<T> &problem, int number, size_t first, size_t end, const T *w) {
        FarField<T> &far = problem.far;
        const BodyPose<T> &next = problem.bodies[number].next;
        const T kappa = broadcast<T>(problem.kappa), mass = problem.body_parameters(number)[parameter::mass];
        const FarBody<T> body{next.x,
                              load3(w + 6 * number),
                              next.R * load3(w + 6 * number + 3),
                              next.R,
                              kappa,
                              0.5 * far_margin(kappa, problem.timestep(), mass)};
        Vec3<T> force{}, torque{};
        T slope{};
        for (size_t k = first; k < end; ++k) {
            const T *p = &far.values[k * PartCall::size], &weight = far.weights[k];
            const FarImpulse<T> point([&](int i) { return p[i]; }, body, far.call->points[k].rubs, problem.inverse_timestep);
            slope += weight * point.slope;
            force = force + weight * point.impulse;
            torque = torque + weight * cross(point.lever, point.impulse);
        }
        far.slope = max(far.slope, slope);
        add3(&problem.residual[6 * number], -force);
        add3(&problem.residual[6 * number + 3], -transposed_times(next.R, torque));
    }
};

}  // namespace torchdojo
