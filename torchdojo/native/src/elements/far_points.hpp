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

// The motion of a body at the end of a step.
template <class T>
struct FarBody {
    Vec3<T> x, v, omega;  // omega: in the frame of the body
    Mat3<T> R;
    T kappa, least_gap;
};

// A half-space as a body sees it: what all points have in common that touch it. number(k): number k of one of their contacts, in the order of
// `parameter`.
template <class T>
struct SeenPlane {
    Vec3<T> normal, t1, t2;  // in the frame of the body
    Vec3<T> along1, along2;  // slips by the place of a point
    T height, speed1, speed2, roll1, roll2, kappa, least_gap;

    template <class F>
    TD_INLINE SeenPlane(const F &number, const FarBody<T> &body) : kappa(body.kappa), least_gap(body.least_gap) {
        const auto vector = [&](int k) { return Vec3<T>{number(k), number(k + 1), number(k + 2)}; };
        const Vec3<T> up = vector(parameter::normal), first = vector(parameter::tangents), second = vector(parameter::tangents + 3);
        normal = transposed_times(body.R, up);
        t1 = transposed_times(body.R, first);
        t2 = transposed_times(body.R, second);
        height = dot(up, body.x);
        speed1 = dot(first, body.v);
        speed2 = dot(second, body.v);
        along1 = cross(t1, body.omega);
        along2 = cross(t2, body.omega);
        roll1 = dot(along1, normal);
        roll2 = dot(along2, normal);
    }

    TD_INLINE T gap(const Vec3<T> &point, const T &offset, const T &radius) const { return height + dot(normal, point) - offset - radius; }
};

// Impulses and slacks of a point.
template <class T>
struct FarImpulse {
    T gap, gamma, slope;  // slope: a bound of the derivative of the impulse by displacements in the step
    Vec3<T> xi{}, eta{};

    template <class F>
    TD_INLINE FarImpulse(const F &number, const SeenPlane<T> &plane, bool rubs, const T &inverse_h) {
        const Vec3<T> point{number(parameter::point), number(parameter::point + 1), number(parameter::point + 2)};
        const T radius = number(parameter::radius);
        gap = max(plane.gap(point, number(parameter::offset), radius), plane.least_gap);
        const T inverse = inverse_of(gap);
        gamma = plane.kappa * inverse;
        slope = gamma * inverse;
        if (!rubs) return;
        const T mu = number(parameter::friction), ratio = quotient(gap, mu);
        const T s1 = plane.speed1 + dot(plane.along1, point) - radius * plane.roll1;
        const T s2 = plane.speed2 + dot(plane.along2, point) - radius * plane.roll2;
        const T first_slack = 0.5 * (ratio + root(ratio * ratio + 4.0 * (s1 * s1 + s2 * s2)));
        const T height = mu * gamma, scale = quotient(height, first_slack);
        xi = {height, -scale * s1, -scale * s2};
        eta = {first_slack, s1, s2};
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
            if (far.call->value_stride) add_body(problem, body, first, end, w, far.values.data());
            else add_body(problem, body, first, end, w, far.call->values);
        }
    }

    // A bound of the distance of a point from the origin of its body.
    static double reach_of(const double *p) {
        const Vec3<double> at = load3(p + parameter::point);
        return std::fabs(at.x) + std::fabs(at.y) + std::fabs(at.z) + p[parameter::radius];
    }

private:
    static TD_INLINE const T &number_of(const T &number) { return number; }
    template <class N>
    static TD_INLINE std::enable_if_t<!std::is_same_v<N, T>, T> number_of(const N &number) {
        return broadcast<T>(number);
    }

    // N: double where all environments share the numbers of points, else T.
    template <class N>
    static void add_body(Problem<T> &problem, int number, size_t first, size_t end, const T *w, const N *values) {
        FarField<T> &far = problem.far;
        const BodyPose<T> &next = problem.bodies[number].next;
        const T kappa = broadcast<T>(problem.kappa), mass = problem.body_parameters(number)[parameter::mass];
        const T least_gap = 0.5 * far_margin(kappa, problem.timestep(), mass);
        const FarBody<T> body{next.x, load3(w + 6 * number), load3(w + 6 * number + 3), next.R, kappa, least_gap};
        Vec3<T> force{}, torque{};
        T slope{};
        for (size_t k = first; k < end;) {
            const N *numbers = values + k * PartCall::size;
            const SeenPlane<T> plane([&](int i) { return number_of(numbers[i]); }, body);
            // Sums of impulses along the normal and the tangents, and of these times the places at which they act.
            T up{}, rub1{}, rub2{}, roll1{}, roll2{};
            Vec3<T> at_up{}, at1{}, at2{};
            do {
                const N *p = values + k * PartCall::size;
                const T &weight = far.weights[k];
                const bool rubs = far.call->points[k].rubs;
                const FarImpulse<T> impulse([&](int i) { return number_of(p[i]); }, plane, rubs, problem.inverse_timestep);
                const Vec3<T> point{number_of(p[parameter::point]), number_of(p[parameter::point + 1]), number_of(p[parameter::point + 2])};
                const T radius = number_of(p[parameter::radius]);
                slope += weight * impulse.slope;
                const T push = weight * impulse.gamma;
                up += push;
                at_up = at_up + push * point;
                if (!rubs) continue;
                const T push1 = weight * impulse.xi.y, push2 = weight * impulse.xi.z;
                rub1 += push1;
                rub2 += push2;
                roll1 += radius * push1;
                roll2 += radius * push2;
                at1 = at1 + push1 * point;
                at2 = at2 + push2 * point;
            } while (++k < end && far.call->points[k].goes_on);
            force = force + up * plane.normal + rub1 * plane.t1 + rub2 * plane.t2;
            torque = torque + cross(at_up, plane.normal) + cross(at1, plane.t1) + cross(at2, plane.t2) -
                     cross(plane.normal, roll1 * plane.t1 + roll2 * plane.t2);
        }
        far.slope = max(far.slope, slope);
        add3(&problem.residual[6 * number], -(next.R * force));
        add3(&problem.residual[6 * number + 3], -torque);
    }
};

}  // namespace torchdojo
