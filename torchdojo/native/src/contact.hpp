// Contacts of spheres on bodies with half-spaces of the world (contacts.py). Contacts between bodies or shapes: see pair.hpp.
//
// The sphere of radius r around the point c of a body touches at the end of its lever l = c − r n, with the normal n in the next body frame.
#pragma once

#include "law.hpp"

namespace torchdojo {

// Derivative of the slip along t (both in the next body frame) with respect to φ⁺: (ω × l) × t − r (t × ω) × n.
template <class T>
TD_INLINE Vec3<T> slip_gradient(const ContactData<T> &data, const Vec3<T> &t, const Vec3<T> &omega, const Vec3<T> &sweep, const T &radius) {
    return cross(sweep, t) - radius * cross(cross(t, omega), data.n);
}

// Derivative of n·(w × l) with respect to φ⁺, for w = ω + s of which s is fixed in the world: (w × l) × n + (l × n) × s − r (w − (n·w) n).
template <class T>
TD_INLINE Vec3<T> bounce_gradient(const ContactData<T> &data, const Vec3<T> &turning, const Vec3<T> &spin, const T &radius) {
    return cross(cross(turning, data.lever), data.n) + cross(cross(data.lever, data.n), spin) -
           radius * (turning - dot(data.n, turning) * data.n);
}

// Derivative of l × P with respect to φ⁺: P lᵀ − (l·P) I + r (n Pᵀ − (n·P) I), all in the next body frame.
template <class T>
TD_INLINE Mat3<T> torque_gradient(const ContactData<T> &data, const Vec3<T> &force, const T &radius) {
    const T trace = dot(data.lever, force) + radius * dot(data.n, force);
    Mat3<T> S;
    for (int r = 0; r < 3; ++r)
        for (int c = 0; c < 3; ++c) {
            const T value = force[r] * data.lever[c] + radius * data.n[r] * force[c];
            S.m[3 * r + c] = r == c ? value - trace : value;
        }
    return S;
}

// ω + e s and e s of Newton's law, with s the angular velocity that led here, in the next body frame.
template <class T>
struct Bounce {
    Vec3<T> turning, spin;
    TD_INLINE Bounce(const Problem<T> &problem, const ContactTable &contact, const Vec3<T> &omega)
        : spin(problem.parameters[contact.restitution] *
               transposed_times(problem.bodies[contact.body].next.R, problem.laws[contact.law].spin)) {
        turning = omega + spin;
    }
};

template <class T>
void evaluate_contact(Problem<T> &problem, const ContactTable &contact, ContactData<T> &data, const T *w) {
    const T h = problem.timestep();
    const T *p = &problem.parameters[contact.parameters];
    const BodyData<T> &body = problem.bodies[contact.body];
    const Vec3<T> point = load3(p + parameter::point), normal = load3(p + parameter::normal);
    const Vec3<T> v = load3(w + 6 * contact.body), omega = load3(w + 6 * contact.body + 3);
    const T radius = p[parameter::radius];
    const T *impulse = w + contact.impulse, *slack = w + contact.slack;
    T *row = &problem.residual[contact.impulse], *B = data.wrench;
    data.n = transposed_times(body.next.R, normal);
    data.lever = point - radius * data.n;
    auto store_column = [&](int column, const Vec3<T> &direction, const Vec3<T> &local) {
        const Vec3<T> torque = cross(data.lever, local);
        for (int r = 0; r < 3; ++r) B[3 * r + column] = direction[r], B[3 * (3 + r) + column] = torque[r];
        return torque;
    };
    const Vec3<T> torque = store_column(0, normal, data.n);
    T gap = dot(normal, body.next.x) + dot(data.n, point) - p[parameter::offset] - radius;
    if (contact.recovery >= 0 || contact.stiffness >= 0)
        gap += problem.laws[contact.law].shift + problem.laws[contact.law].softness * impulse[0];
    if (contact.restitution >= 0) {
        // Newton's law h n·(u⁺ + e u⁻), where that is less
        LawData<T> &law = problem.laws[contact.law];
        const T speed = dot(normal, v + problem.parameters[contact.restitution] * law.incoming) +
                        dot(torque, Bounce<T>(problem, contact, omega).turning);
        law.bouncing = select_mask(law.bounces, h * speed < gap, Mask<T>{});
        gap = select(law.bouncing, h * speed, gap);
    }
    row[0] = gap - slack[0];
    if (contact.friction) {
        data.beta[0] = impulse[2], data.beta[1] = impulse[3];
        if (contact.is_pyramid()) {
            data.beta[0] = data.beta[1] = T{};
            for (int i = 0; i < contact.facets; ++i)
                data.beta[0] += contact.direction_x(i) * impulse[2 + i], data.beta[1] += contact.direction_y(i) * impulse[2 + i];
        }
        T slip[2];
        for (const int i : {0, 1}) {
            const Vec3<T> world = load3(p + parameter::tangents + 3 * i), t = transposed_times(body.next.R, world);
            (i ? data.t2 : data.t1) = t;
            slip[i] = dot(world, v) + dot(store_column(1 + i, world, t), omega);
        }
        problem.friction_rows(contact, p[parameter::friction] * impulse[0], impulse + 1, slack + 1, slip[0], slip[1], row + 1);
    }
    for (int r = 0; r < 6; ++r) {
        T sum = B[3 * r] * impulse[0];
        if (contact.friction) sum += B[3 * r + 1] * data.beta[0] + B[3 * r + 2] * data.beta[1];
        problem.residual[6 * contact.body + r] -= sum;
    }
}

// After `evaluate_contact`.
template <class T>
void differentiate_contact(Problem<T> &problem, const ContactTable &contact, ContactData<T> &data, const T *w) {
    const T h = problem.timestep();
    const T *p = &problem.parameters[contact.parameters], *B = data.wrench;
    const BodyData<T> &body = problem.bodies[contact.body];
    const Vec3<T> point = load3(p + parameter::point), normal = load3(p + parameter::normal), omega = load3(w + 6 * contact.body + 3);
    const T radius = p[parameter::radius];
    T *C = data.rows;
    auto torque = [&](int column) { return Vec3<T>{B[9 + column], B[12 + column], B[15 + column]}; };
    store3(C, h * normal), store3(C + 3, transposed_times(body.M, cross(point, data.n)));
    if (contact.restitution >= 0) {
        const Bounce<T> bounce(problem, contact, omega);
        const Vec3<T> turned = h * (torque(0) + transposed_times(body.M, bounce_gradient(data, bounce.turning, bounce.spin, radius)));
        for (int k = 0; k < 3; ++k) C[3 + k] = select(problem.laws[contact.law].bouncing, turned[k], C[3 + k]);
    }
    Vec3<T> force = w[contact.impulse] * data.n;  // in the next body frame
    if (contact.friction) {
        const Vec3<T> sweep = cross(omega, data.lever);
        for (const int i : {0, 1}) {
            const Vec3<T> &t = i ? data.t2 : data.t1, turn = slip_gradient(data, t, omega, sweep, radius);
            store3(C + 6 * (1 + i), load3(p + parameter::tangents + 3 * i));
            store3(C + 6 * (1 + i) + 3, torque(1 + i) + transposed_times(body.M, turn));
            force = force + data.beta[i] * t;
        }
    }
    // The torque l × R⁺ᵀP turns with the body: its derivative is S M.
    const Mat3<T> SM = torque_gradient(data, force, radius) * body.M;
    T *D = &problem.values[problem.mechanism.bodies[contact.body].diagonal];
    for (int r = 0; r < 3; ++r)
        for (int c = 0; c < 3; ++c) D[21 + 6 * r + c] -= SM.m[3 * r + c];
}

}  // namespace torchdojo
