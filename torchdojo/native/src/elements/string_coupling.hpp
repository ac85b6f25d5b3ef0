// Couplings of the lengths of two strings (string_coupling.py): y⁺ − p(x⁺) = 0 with the length y of a follower, and the one of a leader less a
// constant, x. The row is a node of its own in the condensed matrix, as of other couplings, whose law, switch and softness it has
// (coupling.hpp).
//
// The multiplier λ acts along the gradient g_y of y, and −λ p′(x) along the gradient g_x, at the current configuration. With multipliers α of
// the balance of momentum and μ of the row, −λᵀ∂r has the derivatives of
//
//     λ (g_y·α − p′(x) g_x·α) − μ (y⁺ − p(x⁺)).
#pragma once

#include "elements/coupling.hpp"
#include "elements/tendon.hpp"

namespace torchdojo {

template <class T>
struct StringCouplings {
    static void prepare(Problem<T> &problem) {
        each(problem.mechanism, [&](const CouplingTable &coupling, int number) { prepare(problem, coupling, problem.couplings[number]); });
    }

    template <bool condensed, bool derived>
    static void linearize(Problem<T> &problem, const T *w) {
        each(problem.mechanism,
             [&](const CouplingTable &coupling, int number) { linearize(problem, coupling, problem.couplings[number], w); });
    }

    static void condense(Problem<T> &) {}

    template <class R>
    static void differentiate(AdjointState<T, R> &, const Problem<T> &, const T *) {}

    template <class R>
    static void multiply(AdjointState<T, R> &adjoint, const Problem<T> &problem, const T *w) {
        each(problem.mechanism, [&](const CouplingTable &coupling, int number) {
            multiply(adjoint, problem, coupling, problem.couplings[number], w[coupling.row]);
        });
    }

    static void add_parameters(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint, const T *w) {
        each(problem.mechanism, [&](const CouplingTable &coupling, int number) {
            add_parameters(to, problem, adjoint, coupling, problem.couplings[number], w[coupling.row]);
        });
    }

private:
    template <class F>
    static TD_INLINE void each(const MechanismTable &m, F &&f) {
        for (int c = 0; c < m.num_couplings; ++c)
            if (m.couplings[c].strings >= 0) f(m.couplings[c], c);
    }

    // The strings: the follower, and the leader, which has the same places.
    static const TendonTable &string(const MechanismTable &m, const CouplingTable &coupling, int which) {
        return m.strings[coupling.strings + which];
    }
    static const TendonTable &follower(const MechanismTable &m, const CouplingTable &coupling) { return string(m, coupling, 0); }
    static const TendonTable &leader(const MechanismTable &m, const CouplingTable &coupling) { return string(m, coupling, 1); }
    static int body(const MechanismTable &m, const TendonTable &string, int place) { return m.tendon_bodies[string.first_body + place]; }

    static TendonPath<T> path_of(const Problem<T> &problem, const TendonTable &string, bool next) {
        return {problem.mechanism, string, problem.parameters.data(),
                [&](int body) -> const BodyPose<T> & { return next ? problem.bodies[body].next : problem.bodies[body].pose; }};
    }

    // Both lengths, the leader's less its constant, and their pulls. Cold code is kept small: not inlined, once for each purpose.
    static __attribute__((noinline)) void lengths(const Problem<T> &problem, const CouplingTable &coupling, bool next, T *length,
                                                  Pull<T> *const *pulls) {
        for (const int which : {0, 1})
            length[which] = path_of(problem, string(problem.mechanism, coupling, which), next).length(pulls[which]);
        length[1] -= problem.parameters[leader(problem.mechanism, coupling).offset];
    }

    static void prepare(Problem<T> &problem, const CouplingTable &coupling, CouplingData<T> &data) {
        const TendonTable &own = follower(problem.mechanism, coupling);
        const CouplingLaw<T> law(problem, coupling);
        const T *p = &problem.parameters[coupling.parameters];
        data.on = 1.0 - p[parameter::coupling::off];
        Pull<T> *pulls[2] = {&problem.pulls[own.first_body], &problem.leader_pulls[own.first_body]};
        T length[2];
        lengths(problem, coupling, false, length, pulls);
        data.leading = length[1];
        data.gap_now = length[0] - law(data.leading);
        data.given = p[parameter::coupling::compliance] * problem.inverse_timestep;
        data.stretched = 1.0 + data.given * p[parameter::coupling::damping];
    }

    // Per place, the pull of the follower minus `slope` times the pull of the leader.
    static TD_INLINE Pull<T> both(const T &scale, const Pull<T> &own, const T &slope, const Pull<T> &led) {
        return {scale * (own.force - slope * led.force), scale * (own.torque - slope * led.torque)};
    }

    static __attribute__((noinline)) void linearize(Problem<T> &problem, const CouplingTable &coupling, CouplingData<T> &data, const T *w) {
        const MechanismTable &m = problem.mechanism;
        const TendonTable &own = follower(m, coupling);
        const CouplingLaw<T> law(problem, coupling);
        const T h = problem.timestep();
        const T lambda = w[coupling.row];
        const T &off = problem.parameters[coupling.parameters + parameter::coupling::off];
        Pull<T> next[2][most_tendon_bodies], *pulls[2] = {next[0], next[1]};
        T length[2];
        lengths(problem, coupling, true, length, pulls);
        data.following_next = length[0];
        data.leading_next = length[1];
        data.gap =
            data.stretched * (data.following_next - law(data.leading_next)) - (data.stretched - 1.0) * data.gap_now + data.given * lambda;
        problem.residual[coupling.row] = data.on * data.gap + h * off * lambda;
        problem.values[coupling.diagonal] = h * off + data.on * data.given;
        const T slope = law.slope(data.leading);
        const T slope_next = law.slope(data.leading_next);
        const T weight = data.on * data.stretched;
        for (int k = 0; k < own.num_bodies; ++k) {
            const int number = body(m, own, k);
            if (number == m.num_bodies) continue;
            const int place = own.first_body + k;
            const Pull<T> push = both(data.on, problem.pulls[place], slope, problem.leader_pulls[place]);
            const Pull<T> row = problem.row_pulls[place] = both(weight, next[0][k], slope_next, next[1][k]);
            T *column = &problem.values[m.tendon_blocks[own.first_block + 2 * k]];
            T *entries = &problem.values[m.tendon_blocks[own.first_block + 2 * k + 1]];
            add3(column, -push.force);
            add3(column + 3, -push.torque);
            add3(entries, h * row.force);
            add3(entries + 3, transposed_times(problem.bodies[number].M, row.torque));
            add3(&problem.residual[6 * number], -(lambda * push.force));
            add3(&problem.residual[6 * number + 3], -(lambda * push.torque));
        }
    }

    // g·α of the follower and of the leader.
    template <class R>
    static void powers(const AdjointState<T, R> &adjoint, const Problem<T> &problem, const TendonTable &own, R *power) {
        const MechanismTable &m = problem.mechanism;
        power[0] = power[1] = R{};
        for (int k = 0; k < own.num_bodies; ++k) {
            const int number = body(m, own, k);
            if (number == m.num_bodies) continue;
            const R *alpha = &adjoint.multiplier[6 * number];
            const Pull<T> *pulls[2] = {&problem.pulls[own.first_body + k], &problem.leader_pulls[own.first_body + k]};
            for (const int which : {0, 1})
                power[which] += dot(load3(alpha), pulls[which]->force) + dot(load3(alpha + 3), pulls[which]->torque);
        }
    }

    // Per place, c = scale α.
    template <class R>
    static void along(const AdjointState<T, R> &adjoint, const MechanismTable &m, const TendonTable &own, const T &scale, Pull<R> *c) {
        for (int k = 0; k < own.num_bodies; ++k) {
            const int number = body(m, own, k);
            c[k] = Pull<R>{};
            if (number == m.num_bodies) continue;
            const R *alpha = &adjoint.multiplier[6 * number];
            c[k].force = scale * load3(alpha);
            c[k].torque = scale * load3(alpha + 3);
        }
    }

    template <class R>
    static __attribute__((noinline)) void multiply(AdjointState<T, R> &adjoint, const Problem<T> &problem, const CouplingTable &coupling,
                                                   const CouplingData<T> &data, const T &lambda) {
        const MechanismTable &m = problem.mechanism;
        const TendonTable &own = follower(m, coupling);
        const CouplingLaw<T> law(problem, coupling);
        const R mu = adjoint.multiplier[coupling.row];
        for (int k = 0; k < own.num_bodies; ++k) {
            const int number = body(m, own, k);
            if (number == m.num_bodies) continue;
            const Pull<T> &row = problem.row_pulls[own.first_body + k];
            adjoint.x_next[number] = adjoint.x_next[number] - mu * row.force;
            adjoint.phi_next[number] = adjoint.phi_next[number] - mu * row.torque;
        }
        R power[2];
        powers(adjoint, problem, own, power);
        const T slope = law.slope(data.leading);
        const T pushed = data.on * lambda;
        const R by_follower = (data.on * (data.stretched - 1.0)) * mu;
        const R by_length[2] = {by_follower, -(slope * by_follower) - (pushed * law.bend(data.leading)) * power[1]};
        for (const int which : {0, 1}) {
            Pull<R> c[most_tendon_bodies];
            along(adjoint, m, own, which ? -(slope * pushed) : pushed, c);
            const std::vector<Pull<T>> &pulls = which ? problem.leader_pulls : problem.pulls;
            Tendons<T>::pull_back(adjoint, problem, string(m, coupling, which), &pulls[own.first_body], by_length[which], c);
        }
    }

    static __attribute__((noinline)) void add_parameters(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint,
                                                         const CouplingTable &coupling, const CouplingData<T> &data, const T &lambda) {
        namespace field = parameter::coupling;
        const MechanismTable &m = problem.mechanism;
        const TendonTable &own = follower(m, coupling);
        const TendonTable &led = leader(m, coupling);
        const CouplingLaw<T> law(problem, coupling);
        const T mu = adjoint.multiplier[coupling.row];
        const T x = data.leading;
        const T next = data.leading_next;
        const T *p = &problem.parameters[coupling.parameters];
        const T slope = law.slope(x);
        const T slope_next = law.slope(next);
        T power[2];
        powers(adjoint, problem, own, power);
        T *sum = &to.sum[coupling.parameters];
        const T held = data.on * mu;
        const T pushed = data.on * lambda;
        const T pushes = pushed * power[1];
        const T stretched = data.stretched;
        const T loose = stretched - 1.0;
        sum[field::offset] += held;
        sum[field::ratio] += held * (stretched * next - loose * x) - pushes;
        T x_power = x;
        T next_power = next * next;
        for (int i = 0; i < 3; ++i) {
            sum[field::curve + i] += held * (stretched * next_power - loose * (x * x_power)) - (2.0 + i) * (pushes * x_power);
            x_power = x_power * x;
            next_power = next_power * next;
        }
        sum[field::off] += mu * data.gap - lambda * (power[0] - slope * power[1]) - problem.timestep() * mu * lambda;
        to.by_timestep -= p[field::off] * mu * lambda;
        const T moving = problem.inverse_timestep * ((data.following_next - law(next)) - data.gap_now);  // (c⁺ − c)/h
        const T by_alpha = held * (p[field::damping] * moving + problem.inverse_timestep * lambda);
        sum[field::compliance] -= by_alpha;
        sum[field::damping] -= held * p[field::compliance] * moving;
        to.by_timestep += problem.inverse_timestep * p[field::compliance] * by_alpha;
        const T by_follower = loose * held;
        const T by_leader = -(slope * by_follower) - pushes * law.bend(x);
        // Sums by string, at the current configuration and at the next.
        const T by_length[2][2] = {{by_follower, -(held * stretched)}, {by_leader, held * stretched * slope_next}};
        to.sum[led.offset] -= by_length[1][0] + by_length[1][1];
        for (const int which : {0, 1})
            for (const int next : {0, 1}) {
                Pull<T> c[most_tendon_bodies];
                along(adjoint, m, own, next ? T{} : which ? -(slope * pushed) : pushed, c);
                path_of(problem, string(m, coupling, which), next).add_parameters(by_length[which][next], c, to.sum.data());
            }
    }
};

}  // namespace torchdojo
