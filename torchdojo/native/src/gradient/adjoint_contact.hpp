// Contacts in the transposed system, and their products with the derivatives of the residual by the data: members of Adjoint, which see.
#pragma once

#include "gradient/adjoint.hpp"

namespace torchdojo {

// The part of the other body of a pair in x (by rows of the matrix), or null.
template <class T, class R>
const R *Adjoint<T, R>::other_body(const ContactTable &contact, const R *x) const {
    if (!x || contact.pair < 0 || mechanism.pairs[contact.pair].other == mechanism.num_bodies) return nullptr;
    return x + mechanism.bodies[mechanism.pairs[contact.pair].other].right;
}

// (ν_φ, ν_t) of contact c from g and λ = x (null: zero); those of the rows of its friction are added to `multiplier`, of its couples' spins
// to `turning`. Columns of the transposed system:
//   γ: s ν_s − μ ν_μ = g_γ + b_n     s: ν_φ = γ ν_s     ξ, η: ν_t = Nᵀ q, ν_μ = g_ξ₁ + m·q with q = g_ξ₂₃ + b_t
template <class T, class R>
TD_INLINE Vec3<R> Adjoint<T, R>::contact_multiplier(const Problem<T> &problem, int c, const R *g, const R *x) {
    const ContactTable &contact = mechanism.contacts[c];
    const ContactData<T> &data = problem.contacts[c];
    Vec3<R> b{};  // Bᵀ α
    auto add = [&](const T *wrench, const R *body) {
        for (int r = 0; r < 6; ++r) b.x += wrench[3 * r] * body[r];
        if (!contact.friction) return;
        for (int r = 0; r < 6; ++r) b.y += wrench[3 * r + 1] * body[r], b.z += wrench[3 * r + 2] * body[r];
    };
    if (x) add(data.wrench, x + mechanism.bodies[contact.body].right);
    if (const R *other = other_body(contact, x)) add(problem.pairs[contact.pair].other_wrench, other);
    R n = g[contact.impulse] + b.x, nu[2] = {b.y, b.z};
    if (contact.friction) n += problem.parameters[contact.parameters + parameter::friction] * friction_multiplier(contact, data, g, nu);
    for (int k = contact.first_couple; k < contact.first_couple + contact.num_couples; ++k) {
        const CoupleTable &couple = mechanism.couples[k];
        R spin[2] = {R{}, R{}};
        if (x) couple_power(problem, k, x, spin);
        n += problem.parameters[couple.parameter] * friction_multiplier(couple.friction, problem.couples[k], g, spin);
        turning[2 * k] += spin[0], turning[2 * k + 1] += spin[1];
    }
    return {data.stiffness * n, nu[0], nu[1]};
}

// ν_t from b_t, in place. Returns what the multiplier of the cone's height adds to the column of γ, per μ.
template <class T, class R>
TD_INLINE R Adjoint<T, R>::friction_multiplier(const ContactTable &friction, const FrictionData<T> &data, const R *g, R *nu) {
    const int impulse = friction.friction_impulse();
    R *rows = &multiplier[impulse];
    if (friction.is_pyramid()) {
        const Pyramid<T> pyramid{friction};
        R own[1 + most_facets];
        pyramid.multipliers(point + impulse, point + friction.friction_slack(), g + impulse, nu, own);
        pyramid.tangential(own + 1, nu);
        for (int k = 0; k < friction.friction_size(); ++k) rows[k] += own[k];
        return -own[0];
    }
    const R q[2] = {nu[0] + g[impulse + 1], nu[1] + g[impulse + 2]};
    const R height = g[impulse] + data.cone_coupling[0] * q[0] + data.cone_coupling[1] * q[1];
    rows[0] += height;
    for (const int i : {0, 1}) nu[i] = data.compliance[i] * q[0] + data.compliance[2 + i] * q[1], rows[1 + i] += nu[i];
    return height;
}

// y −= Cᵀ ν for the ν of contact c
template <class T, class R>
TD_INLINE void Adjoint<T, R>::subtract_contact(const Problem<T> &problem, int c, R *y) const {
    const ContactTable &contact = mechanism.contacts[c];
    const Vec3<R> &nu = touching[c];
    auto subtract = [&](const T *C, R *to) {
        for (int k = 0; k < 6; ++k) to[k] -= C[k] * nu.x;
        if (!contact.friction) return;
        for (int k = 0; k < 6; ++k) to[k] = to[k] - C[6 + k] * nu.y - C[12 + k] * nu.z;
    };
    subtract(problem.contacts[c].rows, y + mechanism.bodies[contact.body].right);
    for (int k = contact.first_couple; k < contact.first_couple + contact.num_couples; ++k) couple_subtract(problem, k, &turning[2 * k], y);
    if (!other_body(contact, y)) return;
    const PairTable &pair = mechanism.pairs[contact.pair];
    subtract(problem.pairs[contact.pair].other_rows, y + mechanism.bodies[pair.other].right);
}

// W and the capacitance matrix, with columns in lanes.
template <class T, class R>
void Adjoint<T, R>::find_capacitance(const Problem<T> &problem) {
    const int size = capacitance.size, num_rows = mechanism.schedule.num_rows;
    auto each_row = [&](auto &&f) {  // f(contact, which of its rows, number of that row)
        int row = 0;
        for (const int c : capacitance.contacts)
            for (int k = 0; k < capacitance.rows(c); ++k) f(c, k, row++);
    };
    for (int first = 0; first < size; first += lanes<R>) {
        const int count = std::min(lanes<R>, size - first);
        std::fill(right.begin(), right.end(), R{});
        std::fill(touching.begin(), touching.end(), Vec3<R>{});
        each_row([&](int c, int k, int row) {
            if (row >= first && row < first + count) set(touching[c][k], row - first, -1.0);
        });
        for (const int c : capacitance.contacts) subtract_contact(problem, c, right.data());
        ldu_solve_transposed<T, R>(mechanism.schedule, problem.values.data(), right.data(), true);
        for (int r = 0; r < num_rows; ++r)
            for (int lane = 0; lane < count; ++lane) capacitance.spread[size_t(size) * r + first + lane] = get(right[r], lane);
        for (const int c : capacitance.contacts) touching[c] = contact_multiplier(problem, c, nothing.data(), right.data());
        each_row([&](int c, int k, int row) {
            for (int lane = 0; lane < count; ++lane) capacitance.set_entry(row, first + lane, get(touching[c][k], lane));
        });
    }
    if (size) capacitance.factor();
}

// The contacts that were left out into the solution without them.
template <class T, class R>
void Adjoint<T, R>::add_left_out(const Problem<T> &problem, const R *g) {
    if (!capacitance.size) return;
    R *row = contact_rows.data();
    for (const int c : capacitance.contacts) {
        const Vec3<R> nu = contact_multiplier(problem, c, g, right.data());
        for (int k = 0; k < capacitance.rows(c); ++k) *row++ = nu[k];
    }
    capacitance.solve(contact_rows.data(), contact_solution.data());
    capacitance.subtract_spread(contact_solution.data(), right.data());
    row = contact_solution.data();
    for (const int c : capacitance.contacts)
        for (int k = 0; k < capacitance.rows(c); ++k) touching[c][k] = *row++;
}

template <class T, class R>
ContactByTurn<T> Adjoint<T, R>::differentiate_contact(const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data,
                                                      const T *w) const {
    const T *p = &problem.parameters[contact.parameters], &radius = p[parameter::radius];
    const Vec3<T> omega = load3(w + 6 * contact.body + 3), sweep = cross(omega, data.lever);
    Vec3<T> force = w[contact.impulse] * data.n;
    ContactByTurn<T> by;
    by.gap = cross(load3(p + parameter::point), data.n);
    if (contact.friction) {
        force = force + data.beta[0] * data.t1 + data.beta[1] * data.t2;
        by.slip[0] = Problem<T>::slip_gradient(data, data.t1, omega, sweep, radius);
        by.slip[1] = Problem<T>::slip_gradient(data, data.t2, omega, sweep, radius);
    }
    by.torque = Problem<T>::torque_gradient(data, force, radius);
    return by;
}

template <class T, class R>
void Adjoint<T, R>::contact_product(const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data, const T *w) {
    if (contact.pair >= 0) return pair_product(problem, contact, data, w);
    const int number = int(&contact - mechanism.contacts.data()), body = contact.body;
    const ContactByTurn<T> &by = by_turn[number];
    const R nu = multiplier[contact.impulse];
    R direct = nu;  // of φ⁺ + shift
    Vec3<R> phi{};
    if (contact.restitution >= 0) direct = bounce_product(problem, contact, data, load3(w + 6 * body + 3), nu, phi);
    phi = phi - direct * by.gap;
    if (contact.recovery >= 0 || contact.stiffness >= 0) shift_product(problem, contact, direct);
    if (contact.friction) phi = phi - touching[number].y * by.slip[0] - touching[number].z * by.slip[1];
    phi = phi + transposed_times(by.torque, load3(&multiplier[6 * body + 3]));
    phi_next[body] = phi_next[body] + phi;
    x_next[body] = x_next[body] - direct * load3(&problem.parameters[contact.parameters] + parameter::normal);
}

// −ν·shift by the current poses.
template <class T, class R>
void Adjoint<T, R>::shift_product(const Problem<T> &problem, const ContactTable &contact, const R &nu) {
    const R weight = nu * law_slope(problem, contact);
    const T *row = problem.laws[contact.law].distance_row;
    auto add = [&](int body, const T *row) {
        gradient.x[body] = gradient.x[body] + weight * load3(row);
        gradient.phi[body] = gradient.phi[body] + weight * load3(row + 3);
    };
    add(contact.body, row);
    if (contact.pair >= 0 && mechanism.pairs[contact.pair].other < mechanism.num_bodies) add(mechanism.pairs[contact.pair].other, row + 6);
}

// −ν times Newton's law where it rules the gap, by the next orientation (added to `phi`) and the incoming velocity; ν where it does not.
template <class T, class R>
TD_INLINE R Adjoint<T, R>::bounce_product(const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data,
                                          const Vec3<T> &omega, const R &nu, Vec3<R> &phi) {
    const T h = problem.timestep(), e = problem.parameters[contact.restitution], one = broadcast<T>(1.0);
    const T *p = &problem.parameters[contact.parameters];
    const BodyData<T> &body = problem.bodies[contact.body];
    const T law = select(problem.laws[contact.law].bouncing, h, T{});
    const Vec3<T> spin = transposed_times(body.next.R, problem.laws[contact.law].spin);
    phi = phi - nu * (law * Problem<T>::bounce_gradient(data, omega + e * spin, e * spin, p[parameter::radius]));
    // e n·(u⁻ with u⁻ = v + (R ω) × l⁺): of the current orientation and of the velocities in the state
    const Vec3<T> torque = transposed_times(body.pose.R, body.next.R * cross(data.lever, data.n));
    const R weight = nu * (law * e);
    const int i = contact.body;
    gradient.v[i] = gradient.v[i] - weight * load3(p + parameter::normal);
    gradient.omega[i] = gradient.omega[i] - weight * torque;
    gradient.phi[i] = gradient.phi[i] - weight * cross(load3(&problem.z[state_size * i + 10]), torque);
    return nu * select(problem.laws[contact.law].bouncing, T{}, one);
}

// Contacts between bodies or shapes: V = α_a·wrench_a + α_b·wrench_b − ν_φ gap − ν_t·slip, by the next poses (from linearize_pair) and
// by what the current ones do besides: Δ in the levers, and the frames of torques and angular velocities.
template <class T, class R>
void Adjoint<T, R>::pair_product(const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data, const T *w) {
    const PairTable &pair = mechanism.pairs[contact.pair];
    const PairData<T> &from = problem.pairs[contact.pair];
    const bool world = pair.other == mechanism.num_bodies;
    const int bodies[2] = {contact.body, pair.other};
    const Vec3<R> &nu = touching[&contact - mechanism.contacts.data()];
    const T one = broadcast<T>(1.0), zero{}, h = problem.timestep();
    const bool has_law = contact.restitution >= 0;
    const T law = has_law ? select(problem.laws[contact.law].bouncing, h, zero) : zero;
    const T e = has_law ? problem.parameters[contact.restitution] : zero;
    if (contact.recovery >= 0 || contact.stiffness >= 0)
        shift_product(problem, contact, has_law ? nu.x * select(problem.laws[contact.law].bouncing, zero, one) : nu.x);
    R g[12] = {};
    for (const int i : {0, 1}) {
        if (i && world) continue;
        for (int r = 0; r < 6; ++r)
            for (int k = 0; k < 12; ++k) g[k] += from.wrench[i][r][k] * multiplier[6 * bodies[i] + r];
    }
    for (int r = 0; r < (contact.friction ? 3 : 1); ++r)
        for (int k = 0; k < 12; ++k) g[k] -= from.rows[r][k] * nu[r];
    for (int k = contact.first_couple; k < contact.first_couple + contact.num_couples; ++k)
        couple_product(problem, k, &turning[2 * k], w, g, gradient.phi);
    // −(what u⁺ and u⁻ are multiplied with)
    const Vec3<R> slip = contact.friction ? nu.y * from.t1 + nu.z * from.t2 : Vec3<R>{};
    const Vec3<R> leaving = -slip - nu.x * (law * from.n), arriving = -nu.x * (law * e * from.n);
    Vec3<R> by_lever[2] = {};
    for (const int i : {0, 1}) {
        if (i && world) continue;
        const double sign = i ? -1.0 : 1.0;
        const int body = bodies[i];
        const T *state = &problem.z[state_size * body];
        const Mat3<T> &pose = problem.bodies[body].pose.R;
        const Vec3<T> before = load3(state + 10), &lever = from.lever[i];
        x_next[body] = x_next[body] + Vec3<R>{g[6 * i], g[6 * i + 1], g[6 * i + 2]};
        phi_next[body] = phi_next[body] + Vec3<R>{g[6 * i + 3], g[6 * i + 4], g[6 * i + 5]};
        const Vec3<R> pull = sign * transposed_times(pose, cross(lever, arriving));  // of R ω⁻ × l
        gradient.v[body] = gradient.v[body] + sign * arriving;
        gradient.omega[body] = gradient.omega[body] + pull;
        gradient.phi[body] = gradient.phi[body] + cross(before, pull);
        if (world) continue;
        const Vec3<T> omega = load3(w + 6 * body + 3), spin = pose * omega;
        const Vec3<R> alpha = load3(&multiplier[6 * body + 3]);
        Vec3<T> moment = cross(lever, from.force);
        if (contact.num_couples) moment = moment + from.couple;
        const Vec3<T> torque = transposed_times(pose, moment);
        by_lever[i] = sign * (cross(from.force, pose * alpha) + cross(leaving, spin) + cross(arriving, pose * before));
        // δ(Rᵀ X) = (Rᵀ X) × φ, δ(R ω) = R (φ × ω)
        const Vec3<R> turned = cross(alpha, torque) + cross(omega, transposed_times(pose, cross(lever, leaving)));
        gradient.phi[body] = gradient.phi[body] + sign * turned;
    }
    if (world) return;
    const Vec3<R> shift = 0.5 * (by_lever[1] - by_lever[0]);
    gradient.x[bodies[0]] = gradient.x[bodies[0]] + shift;
    gradient.x[bodies[1]] = gradient.x[bodies[1]] - shift;
}

}  // namespace torchdojo
