// A ball of a body on a plane of the world, as a pair with derivatives by hand. Feet with torsional and rolling friction are such pairs, and a
// robot has several of them in every step.
//
// With the center c of the ball in the body, the lever l = c − r n and all vectors in the next body frame, where n and the tangents turn
// with Rᵀ alone, a turn φ of the body changes the terms of pair.hpp by
//
//     gap φ·(c × n),   slip φ·(ω × (l × t) + c × (t × ω)),   torque τ × φ + (φ × c) × P,   spin φ·(ω × d).
#pragma once

#include "elements/couple_friction.hpp"
#include "elements/gap_law.hpp"

namespace torchdojo {

template <class T>
struct BallOnPlane {
    static bool is(const MechanismTable &m, const ContactTable &contact) {
        const PairTable &pair = m.pairs[contact.pair];
        return pair.other == m.num_bodies && pair.kind_a == geometry::sphere && pair.kind_b == geometry::surface && contact.restitution < 0;
    }

    // n, t1, t2: normal and tangents of the plane, in world axes.
    static void linearize(Problem<T> &problem, const ContactTable &contact, ContactData<T> &data, const T *w, const Vec3<T> &n,
                          const Vec3<T> &t1, const Vec3<T> &t2) {
        PairData<T> &out = problem.pairs[contact.pair];
        const PairTable &pair = problem.mechanism.pairs[contact.pair];
        const BodyData<T> &body = problem.bodies[contact.body];
        const T *ball = &problem.parameters[pair.shape_a], *plane = &problem.parameters[pair.shape_b];
        const T *impulse = w + contact.impulse, *slack = w + contact.slack, &radius = ball[parameter::shape::radius];
        const T h = problem.timestep();
        const Mat3<T> &R = body.next.R;
        const Vec3<T> v = load3(w + 6 * contact.body), omega = load3(w + 6 * contact.body + 3), center = load3(ball);
        const Vec3<T> axes[3] = {n, t1, t2};
        Vec3<T> local[3];  // in the next body frame
        for (int i = 0; i < 3; ++i) local[i] = transposed_times(R, axes[i]);
        const Vec3<T> lever = center - radius * local[0];
        out.n = n;
        out.t1 = t1;
        out.t2 = t2;
        out.lever[0] = R * lever;

        T rows[3] = {dot(n, body.next.x - problem.bodies[pair.other].pose.x) + dot(local[0], center) - plane[parameter::surface::offset] -
                     radius};
        if (problem.overlaps && problem.laws[contact.law].overlaps) rows[0] += GapLaw<T>::shift(problem, contact, impulse[0]);
        for (int i = 0; i < 3; ++i) {
            const Vec3<T> moment = cross(lever, local[i]);
            if (i) rows[i] = dot(axes[i], v) + dot(moment, omega);
            const Vec3<T> turn = i ? cross(omega, moment) + cross(center, cross(local[i], omega)) : cross(center, local[0]);
            std::fill_n(out.rows[i], dual_size, T{});
            store3(out.rows[i], i ? Vec3<T>{} : n);
            store3(out.rows[i] + 3, turn);
            const Vec3<T> twist = transposed_times(body.M, turn);
            store3(data.rows + 6 * i, i ? axes[i] : h * n);
            store3(data.rows + 6 * i + 3, i ? twist + moment : twist);
            for (int r = 0; r < 3; ++r) {
                data.wrench[3 * r + i] = axes[i][r];
                data.wrench[3 * (3 + r) + i] = moment[r];
            }
        }

        data.beta[0] = data.beta[1] = T{};
        if (contact.friction) tangential(contact, impulse + contact.cone, data.beta);
        const Vec3<T> force = impulse[0] * local[0] + data.beta[0] * local[1] + data.beta[1] * local[2];
        const Vec3<T> push = cross(lever, force), couple = linearize_couples(problem, contact, local, omega, w, body.M);
        out.force = impulse[0] * n + data.beta[0] * t1 + data.beta[1] * t2;
        out.couple = R * couple;
        T *residual = &problem.residual[6 * contact.body];
        add3(residual, -out.force);
        add3(residual + 3, -(push + couple));
        Mat3<T> turned{};
        add_skew(turned, push + couple);
        add_diagonal(turned, -dot(center, force));
        add_outer(turned, center, force);
        const Mat3<T> by_omega = turned * body.M;
        T *D = &problem.values[problem.mechanism.bodies[contact.body].diagonal];
        for (int r = 0; r < 6; ++r) std::fill_n(out.wrench[0][r], dual_size, T{});
        for (int r = 0; r < 3; ++r)
            for (int c = 0; c < 3; ++c) {
                out.wrench[0][3 + r][3 + c] = turned.m[3 * r + c];
                D[21 + 6 * r + c] -= by_omega.m[3 * r + c];
            }

        T *row = &problem.residual[contact.impulse];
        row[0] = rows[0] - slack[0];
        friction_rows(contact, problem.parameters[contact.parameters + parameter::friction] * impulse[0], impulse + contact.cone,
                      slack + contact.cone, rows[1], rows[2], row + contact.cone);
    }

private:
    // Spins and torques of torsional and rolling friction. Returns the couple, in the next body frame.
    static TD_INLINE Vec3<T> linearize_couples(Problem<T> &problem, const ContactTable &contact, const Vec3<T> *axes, const Vec3<T> &omega,
                                               const T *w, const Mat3<T> &M) {
        Vec3<T> total{};
        for (int c = contact.first_couple; c < contact.first_couple + contact.num_couples; ++c) {
            const CoupleTable &couple = problem.mechanism.couples[c];
            CoupleData<T> &data = problem.couples[c];
            data.weight = broadcast<T>(1.0);
            const T *impulse = w + couple.friction.friction_impulse(), *slack = w + couple.friction.friction_slack();
            T spin[2] = {T{}, T{}};
            for (int a = 0; a < couple.num_axes(); ++a) {
                const Vec3<T> &axis = axes[couple.first_axis() + a], turn = cross(omega, axis);
                spin[a] = dot(axis, omega);
                total = total + (couple.friction.is_pyramid() ? impulse[1] - impulse[2] : impulse[1 + a]) * axis;
                data.torque[a][0] = axis;
                std::fill_n(data.next[a], dual_size, T{});
                std::fill_n(data.rows[a], dual_size, T{});
                store3(data.next[a] + 3, turn);
                store3(data.rows[a] + 3, transposed_times(M, turn) + axis);
            }
            friction_rows(couple.friction, problem.parameters[couple.parameter] * w[contact.impulse], impulse, slack, spin[0], spin[1],
                          &problem.residual[couple.friction.friction_impulse()]);
        }
        return total;
    }
};

}  // namespace torchdojo
