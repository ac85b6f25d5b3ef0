// Torsional and rolling friction (NonlinearContact in contacts.py): couples about axes d of the contact frame, the normal or both tangents.
//
// With the frames F of pair.hpp, an impulse c along d is a torque F_aᵀ(c d) on the body and −F_bᵀ(c d) on the other. This impulse resists
// the spin σ = d·(F_a ω_a − F_b ω_b).
//
// These impulses obey the equations of sliding friction, with spins in the place of slips and in cones of the heights μ_t γ and μ_r γ. So
// they are condensed as sliding friction is (contact_cone.hpp). Let C_n be the row of the gap, C the rows of spins and B the torques. The
// block of the bodies gains  B (μ (γ/s) m C_n + N C).
//
// Where a contact fades with the gap, its couples fade with the same weight (near_slot.hpp). Spins do not.
#pragma once

#include "elements/friction.hpp"

namespace torchdojo {

// Calls f(side, its body) for the bodies of a contact that are not the world.
template <class F>
TD_INLINE void for_each_side(const MechanismTable &m, const ContactTable &contact, const F &f) {
    f(0, contact.body);
    if (const int other = other_body(m, contact); other < m.num_bodies) f(1, other);
}

// Spins and torques for axes (n, t1, t2) and frames, both with derivatives by the next poses. `chain` turns these into derivatives by
// the twists. fading: weight of the couple, null where it is 1. Returns the couple on the body; the caller adds its derivatives.
template <class T, class Chain>
Vec3<Dual<T>> linearize_couples(Problem<T> &problem, const ContactTable &contact, const Vec3<Dual<T>> *axes, const Mat3<Dual<T>> *frames,
                                const Vec3<T> *omega, const T *w, const Dual<T> *fading, const Chain &chain) {
    using S = Dual<T>;
    const MechanismTable &m = problem.mechanism;
    Vec3<S> total{S(T{}), S(T{}), S(T{})}, velocity = total;
    Mat3<T> frame[2];
    for_each_side(m, contact, [&](int i, int) {
        const auto turning = frames[i] * omega[i];
        velocity = i ? velocity - turning : velocity + turning;
        for (int k = 0; k < 9; ++k) frame[i].m[k] = frames[i].m[k].v;
    });
    for (int c = contact.first_couple; c < contact.first_couple + contact.num_couples; ++c) {
        const CoupleTable &couple = m.couples[c];
        CoupleData<T> &data = problem.couples[c];
        const int place = couple.friction.friction_impulse();
        const T *impulse = w + place, *slack = w + couple.friction.friction_slack();
        data.weight = fading ? fading->v : broadcast<T>(1.0);
        T spin[2] = {T{}, T{}};
        for (int a = 0; a < couple.num_axes(); ++a) {
            const Vec3<S> &axis = axes[couple.first_axis() + a];
            const S along = dot(axis, velocity);
            total = total + (couple.friction.is_pyramid() ? impulse[1] - impulse[2] : impulse[1 + a]) * axis;
            spin[a] = along.v;
            for (int k = 0; k < dual_size; ++k) data.next[a][k] = along.d[k];
            chain(data.next[a], data.rows[a]);
            for_each_side(m, contact, [&](int i, int) {
                const Vec3<T> direction{axis.x.v, axis.y.v, axis.z.v};
                data.torque[a][i] = (i ? -1.0 : 1.0) * transposed_times(frame[i], direction);
                add3(data.rows[a] + 6 * i + 3, data.torque[a][i]);
            });
        }
        friction_rows(couple.friction, problem.parameters[couple.parameter] * w[contact.impulse], impulse, slack, spin[0], spin[1],
                      &problem.residual[place]);
    }
    if (fading) total = *fading * total;
    Vec3<T> &couple = problem.pairs[contact.pair].couple;
    couple = {total.x.v, total.y.v, total.z.v};
    for_each_side(m, contact,
                  [&](int i, int body) { add3(&problem.residual[6 * body + 3], (i ? 1.0 : -1.0) * transposed_times(frame[i], couple)); });
    return total;
}

template <class T>
void condense_couple(Problem<T> &problem, const CoupleTable &couple, const CoupleData<T> &data) {
    const ContactTable &contact = problem.mechanism.contacts[couple.contact];
    for_each_side(problem.mechanism, contact, [&](int j, int) {
        const T *gap = j ? problem.pairs[contact.pair].other_rows : problem.contacts[couple.contact].rows;
        T KC[2][6];
        for (int a = 0; a < couple.num_axes(); ++a)
            for (int k = 0; k < 6; ++k) {
                KC[a][k] = data.coupling[a] * gap[k];
                for (int b = 0; b < couple.num_axes(); ++b) KC[a][k] += data.compliance[2 * a + b] * data.rows[b][6 * j + k];
            }
        for_each_side(problem.mechanism, contact, [&](int i, int) {
            T *block = &problem.values[problem.pair_block(contact, i, j)] + 18;
            for (int a = 0; a < couple.num_axes(); ++a)
                for (int r = 0; r < 3; ++r)
                    for (int k = 0; k < 6; ++k) block[6 * r + k] += data.weight * data.torque[a][i][r] * KC[a][k];
        });
    });
}

// Calls f(axis, place of a body in rows of the matrix, torque per impulse, derivative of the spin by the twist) for couple c.
template <class T, class F>
TD_INLINE void for_each_arm(const Problem<T> &problem, int c, const F &f) {
    const CoupleTable &couple = problem.mechanism.couples[c];
    const CoupleData<T> &data = problem.couples[c];
    for_each_side(problem.mechanism, problem.mechanism.contacts[couple.contact], [&](int i, int body) {
        for (int a = 0; a < couple.num_axes(); ++a)
            f(a, problem.mechanism.bodies[body].right, data.weight * data.torque[a][i], data.rows[a] + 6 * i);
    });
}

// Torques of impulses `along` the axes, added to vectors x by rows of the matrix, and the transpose: their powers for multipliers x.
template <class T>
void couple_push(const Problem<T> &problem, int c, const T *along, T *x) {
    for_each_arm(problem, c, [&](int a, int place, const Vec3<T> &torque, const T *) { add3(x + place + 3, along[a] * torque); });
}
template <class T, class R>
void couple_power(const Problem<T> &problem, int c, const R *x, R *power) {
    for_each_arm(problem, c, [&](int a, int place, const Vec3<T> &torque, const T *) { power[a] += dot(torque, load3(x + place + 3)); });
}

// Changes of the spins along the direction x, and the transpose: y −= (derivative of the spins)ᵀ ν.
template <class T>
void couple_spin(const Problem<T> &problem, int c, const T *x, T *spin) {
    for_each_arm(problem, c, [&](int a, int place, const Vec3<T> &, const T *row) {
        for (int k = 0; k < 6; ++k) spin[a] += row[k] * x[place + k];
    });
}
template <class T, class R>
void couple_subtract(const Problem<T> &problem, int c, const R *nu, R *y) {
    for_each_arm(problem, c, [&](int a, int place, const Vec3<T> &, const T *row) {
        for (int k = 0; k < 6; ++k) y[place + k] -= row[k] * nu[a];
    });
}

// Derivative of −ν·(spins) by the next poses (added to g), and by the current orientations where these are the frames:
// δ(d·R ω) = (ω × Rᵀd)·φ.
template <class T, class R>
void couple_product(const Problem<T> &problem, int c, const R *nu, const T *w, R *g, std::vector<Vec3<R>> &phi) {
    const CoupleTable &couple = problem.mechanism.couples[c];
    const CoupleData<T> &data = problem.couples[c];
    const ContactTable &contact = problem.mechanism.contacts[couple.contact];
    const bool world = problem.mechanism.pairs[contact.pair].other == problem.mechanism.num_bodies;
    for (int a = 0; a < couple.num_axes(); ++a) {
        for (int k = 0; k < dual_size; ++k) g[k] -= data.next[a][k] * nu[a];
        if (world) continue;
        for_each_side(problem.mechanism, contact,
                      [&](int i, int body) { phi[body] = phi[body] - nu[a] * cross(load3(w + 6 * body + 3), data.torque[a][i]); });
    }
}

// Reduced mean moment of inertia of the bodies of a contact (NonlinearContact.effective_mass).
template <class T>
T couple_mass(const Problem<T> &problem, const ContactTable &contact) {
    T mobility{};
    for_each_side(problem.mechanism, contact, [&](int, int body) {
        const T *J = problem.body_parameters(body) + parameter::inertia;
        mobility += 3.0 / (J[0] + J[4] + J[8]);
    });
    return 1.0 / mobility;
}

}  // namespace torchdojo
