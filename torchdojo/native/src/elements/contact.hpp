// Contacts of a sphere on a body with a half-space of the world.
#pragma once

#include "elements/friction.hpp"
#include "elements/gap_law.hpp"

namespace torchdojo {

// Derivative of l × P with respect to φ⁺: P lᵀ − (l·P) I + r (n Pᵀ − (n·P) I), all in the next body frame, or all in world axes.
template <class T>
TD_INLINE Mat3<T> torque_by_turn(const Vec3<T> &lever, const Vec3<T> &n, const Vec3<T> &force, const T &radius) {
    const T trace = dot(lever, force) + radius * dot(n, force);
    Mat3<T> S;
    for (int r = 0; r < 3; ++r)
        for (int c = 0; c < 3; ++c) {
            const T value = force[r] * lever[c] + radius * n[r] * force[c];
            S.m[3 * r + c] = r == c ? value - trace : value;
        }
    return S;
}

template <class T>
struct HalfSpace {
    static void prepare_law(Problem<T> &problem, const ContactTable &contact) {
        const T *p = &problem.parameters[contact.parameters];
        const Vec3<T> point = load3(p + parameter::point), normal = load3(p + parameter::normal);
        GapLaw<T>::prepare(
            problem, contact, problem.mechanism.num_bodies,
            [&](const BodyPose<T> &body, const BodyPose<T> &) -> T {
                return dot(normal, body.x + body.R * point) - p[parameter::offset] - p[parameter::radius];
            },
            [&](T *row) {
                store3(row, normal);
                store3(row + 3, cross(point, transposed_times(problem.bodies[contact.body].pose.R, normal)));
            });
    }

    template <bool derived>
    static void linearize(Problem<T> &problem, const ContactTable &contact, ContactData<T> &data, const T *w) {
        const T h = problem.timestep();
        const T *p = &problem.parameters[contact.parameters];
        const BodyData<T> &body = problem.bodies[contact.body];
        const Vec3<T> point = load3(p + parameter::point), normal = load3(p + parameter::normal), omega = load3(w + 6 * contact.body + 3);
        const Vec3<T> v = load3(w + 6 * contact.body);
        const T radius = p[parameter::radius];
        const T *impulse = w + contact.impulse, *slack = w + contact.slack;
        T *row = &problem.residual[contact.impulse];
        data.n = transposed_times(body.next.R, normal);
        data.lever = point - radius * data.n;
        T gap = dot(normal, body.next.x) + dot(data.n, point) - p[parameter::offset] - radius;
        if (problem.overlaps && problem.laws[contact.law].overlaps) gap += GapLaw<T>::shift(problem, contact, impulse[0]);

        T *D = &problem.values[problem.mechanism.bodies[contact.body].diagonal], *B = data.wrench, *C = data.rows;
        auto store_column = [&](int column, const Vec3<T> &direction, const Vec3<T> &local) {
            const Vec3<T> torque = cross(data.lever, local);
            for (int r = 0; r < 3; ++r) {
                B[3 * r + column] = direction[r];
                B[3 * (3 + r) + column] = torque[r];
            }
            return torque;
        };
        store_column(0, normal, data.n);
        if constexpr (derived) {
            store3(C, h * normal);
            store3(C + 3, transposed_times(body.M, cross(point, data.n)));
        }
        if (Restitution<T>::acts(contact)) Restitution<T>::linearize(problem, contact, data, v, omega, gap, C + 3);
        row[0] = gap - slack[0];
        Vec3<T> force = impulse[0] * data.n;  // in the next body frame
        if (contact.friction) {
            const Vec3<T> world[2] = {load3(p + parameter::tangents), load3(p + parameter::tangents + 3)};
            const Vec3<T> sweep = cross(omega, data.lever);
            T slip[2];
            tangential(contact, impulse + 1, data.beta);
            for (int i = 0; i < 2; ++i) {
                const Vec3<T> t = transposed_times(body.next.R, world[i]);
                (i ? data.t2 : data.t1) = t;
                const Vec3<T> moment = store_column(1 + i, world[i], t);
                slip[i] = dot(world[i], v) + dot(moment, omega);
                if constexpr (!derived) continue;
                const Vec3<T> turn = slip_gradient(data, t, omega, sweep, radius);
                store3(C + 6 * (1 + i), world[i]);
                store3(C + 6 * (1 + i) + 3, moment + transposed_times(body.M, turn));
                force = force + data.beta[i] * t;
            }
            friction_rows(contact, p[parameter::friction] * impulse[0], impulse + 1, slack + 1, slip[0], slip[1], row + 1);
        }
        for (int r = 0; r < 6; ++r) {
            T sum = B[3 * r] * impulse[0];
            if (contact.friction) sum += B[3 * r + 1] * data.beta[0] + B[3 * r + 2] * data.beta[1];
            problem.residual[6 * contact.body + r] -= sum;
        }
        if constexpr (!derived) return;
        // The torque l × R⁺ᵀP turns with the body: its derivative is S M.
        const Mat3<T> S = torque_gradient(data, force, radius), SM = S * body.M;
        for (int r = 0; r < 3; ++r)
            for (int c = 0; c < 3; ++c) D[21 + 6 * r + c] -= SM.m[3 * r + c];
    }

    // The condensed cones: B K C.
    static TD_INLINE void condense(Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data) {
        T *__restrict D = &problem.values[problem.mechanism.bodies[contact.body].diagonal];
        const T *__restrict B = data.wrench, *__restrict C = data.rows;
        T KC[18];
        stiffen(contact, data, C, KC);
        if (!contact.friction) {
            for (int r = 0; r < 6; ++r)
                for (int c = 0; c < 6; ++c) D[6 * r + c] += B[3 * r] * KC[c];
            return;
        }
        for (int r = 0; r < 6; ++r) {
            const T normal = B[3 * r], first = B[3 * r + 1], second = B[3 * r + 2];
#pragma GCC unroll 6
            for (int c = 0; c < 6; ++c) {
                T sum = normal * KC[c];
                sum += first * KC[6 + c] + second * KC[12 + c];
                D[6 * r + c] += sum;
            }
        }
    }

    static ContactByTurn<T> differentiate(const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data, const T *w) {
        const T *p = &problem.parameters[contact.parameters], &radius = p[parameter::radius];
        const Vec3<T> omega = load3(w + 6 * contact.body + 3), sweep = cross(omega, data.lever);
        Vec3<T> force = w[contact.impulse] * data.n;
        ContactByTurn<T> by;
        by.gap = cross(load3(p + parameter::point), data.n);
        if (contact.friction) {
            force = force + data.beta[0] * data.t1 + data.beta[1] * data.t2;
            by.slip[0] = slip_gradient(data, data.t1, omega, sweep, radius);
            by.slip[1] = slip_gradient(data, data.t2, omega, sweep, radius);
        }
        by.torque = torque_gradient(data, force, radius);
        return by;
    }

    // Derivatives of −λᵀr by both configurations.
    template <class R>
    static void multiply(AdjointState<T, R> &adjoint, const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data,
                         const T *w) {
        const int number = int(&contact - problem.mechanism.contacts.data()), body = contact.body;
        const ContactByTurn<T> &by = adjoint.by_turn[number];
        R direct = adjoint.multiplier[contact.impulse];  // multiplier of φ⁺ + shift
        Vec3<R> phi{};
        if (Restitution<T>::acts(contact)) {
            Restitution<T>::multiply(adjoint, problem, contact, data, load3(w + 6 * body + 3), direct, phi);
            direct = direct * Restitution<T>::weights(problem, contact).gap;
        }
        phi = phi - direct * by.gap;
        GapLaw<T>::multiply(adjoint, problem, contact, problem.mechanism.num_bodies, direct);
        if (contact.friction) phi = phi - adjoint.touching[number].y * by.slip[0] - adjoint.touching[number].z * by.slip[1];
        phi = phi + transposed_times(by.torque, load3(&adjoint.multiplier[6 * body + 3]));
        adjoint.phi_next[body] = adjoint.phi_next[body] + phi;
        adjoint.x_next[body] = adjoint.x_next[body] - direct * load3(&problem.parameters[contact.parameters] + parameter::normal);
    }

    // by_now: weight of the current distance.
    static void add_parameters(ParameterSum<T> &to, const Problem<T> &problem, const ContactTable &contact, const TouchGradient<T> &g,
                               const T &by_now) {
        // φ⁺ = n·(x⁺ + R⁺c) − o − r,  l = R⁺c − r n
        const BodyData<T> &body = problem.bodies[contact.body];
        const T *p = &problem.parameters[contact.parameters];
        T *out = &to.sum[contact.parameters];
        const Vec3<T> point = load3(p + parameter::point), n = load3(p + parameter::normal);
        const Vec3<T> by_point = transposed_times(body.next.R, g.lever[0] + g.distance * n) + by_now * transposed_times(body.pose.R, n);
        const Vec3<T> by_normal = g.n - p[parameter::radius] * g.lever[0] + g.distance * (body.next.x + body.next.R * point) +
                                  by_now * (body.pose.x + body.pose.R * point);
        add3(out + parameter::point, by_point);
        out[parameter::radius] -= g.distance + by_now + dot(n, g.lever[0]);
        out[parameter::offset] -= g.distance + by_now;
        add3(out + parameter::normal, by_normal);
        if (contact.friction) {
            add3(out + parameter::tangents, g.t1);
            add3(out + parameter::tangents + 3, g.t2);
        }
    }

private:
    // Derivative of the slip along t (both in the next body frame) with respect to φ⁺: (ω × l) × t − r (t × ω) × n.
    static TD_INLINE Vec3<T> slip_gradient(const ContactData<T> &data, const Vec3<T> &t, const Vec3<T> &omega, const Vec3<T> &sweep,
                                           const T &radius) {
        return cross(sweep, t) - radius * cross(cross(t, omega), data.n);
    }
    static TD_INLINE Mat3<T> torque_gradient(const ContactData<T> &data, const Vec3<T> &force, const T &radius) {
        return torque_by_turn(data.lever, data.n, force, radius);
    }
};

}  // namespace torchdojo
