// All contacts: spheres on half-spaces (contact.hpp), pairs of bodies and of shapes (pair.hpp), and their torsional and rolling friction
// (couple_friction.hpp).
#pragma once

#include "elements/contact.hpp"
#include "elements/far_points.hpp"
#include "elements/pair.hpp"

namespace torchdojo {

template <class T>
struct Contacts {
    static void prepare(Problem<T> &problem) {
        problem.overlaps = false;
        for (const ContactTable &contact : problem.mechanism.contacts) {
            if (contact.pair < 0) HalfSpace<T>::prepare_law(problem, contact);
            else prepare_pair_law(problem, contact);
        }
    }

    template <bool condensed, bool derived>
    static void linearize(Problem<T> &problem, const T *w) {
        for (int c = 0; c < problem.mechanism.num_contacts; ++c) {
            const ContactTable &contact = problem.mechanism.contacts[c];
            if (contact.pair < 0) HalfSpace<T>::template linearize<derived>(problem, contact, problem.contacts[c], w);
            else linearize_pair<derived>(problem, contact, problem.contacts[c], w);
            if constexpr (condensed) condense(problem, c);
        }
        if constexpr (condensed) condense_couples(problem);
        FarPoints<T>::add(problem, w);
    }

    static void condense(Problem<T> &problem) {
        for (int c = 0; c < problem.mechanism.num_contacts; ++c) condense(problem, c);
        condense_couples(problem);
    }

    template <class R>
    static void differentiate(AdjointState<T, R> &adjoint, const Problem<T> &problem, const T *w) {
        for (int c = 0; c < problem.mechanism.num_contacts; ++c) {
            const ContactTable &contact = problem.mechanism.contacts[c];
            if (contact.pair < 0) adjoint.by_turn[c] = HalfSpace<T>::differentiate(problem, contact, problem.contacts[c], w);
        }
    }

    template <class R>
    static void multiply(AdjointState<T, R> &adjoint, const Problem<T> &problem, const T *w) {
        for (int c = 0; c < problem.mechanism.num_contacts; ++c) {
            const ContactTable &contact = problem.mechanism.contacts[c];
            if (contact.pair < 0) HalfSpace<T>::multiply(adjoint, problem, contact, problem.contacts[c], w);
            else pair_product(adjoint, problem, contact, w);
        }
    }

    static void add_parameters(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint, const T *w) {
        for (int c = 0; c < problem.mechanism.num_contacts; ++c) {
            const ContactTable &contact = problem.mechanism.contacts[c];
            const TouchGradient<T> g = touch_gradient(to, problem, adjoint, c, w);
            // weight of the current distance
            const T by_now = GapLaw<T>::differentiate(problem, contact, g.distance, w[contact.impulse], to.sum.data(), to.by_timestep);
            if (contact.pair < 0) HalfSpace<T>::add_parameters(to, problem, contact, g, by_now);
            else pair_parameters(to, problem, contact, problem.mechanism.pairs[contact.pair], g, by_now);
        }
    }

private:
    static TD_INLINE void condense(Problem<T> &problem, int c) {
        const ContactTable &contact = problem.mechanism.contacts[c];
        if (contact.pair < 0) HalfSpace<T>::condense(problem, contact, problem.contacts[c]);
        else condense_pair(problem, contact, problem.contacts[c]);
    }

    static void condense_couples(Problem<T> &problem) {
        for (int c = 0; c < problem.mechanism.num_couples; ++c) condense_couple(problem, problem.mechanism.couples[c], problem.couples[c]);
    }

    // With P = γ n + Tᵀβ, the couple c = τ n + Tᵀρ, and ± for the body and the other one, V is
    //
    //     Σ ± (α_v·P + F α_ω·(l × P + c)) − ν_φ gap − ν_tᵀ T u − ν_τ n·σ − ν_ρᵀ T σ,    u = Σ ± (v + F ω × l),  σ = Σ ± F ω.
    //
    // The gap is φ⁺ + shift + softness γ, or h n·(u + e u⁻) for an impact that bounces. F turns vectors from body frames into the world
    // frame. The heights μγ of friction cones enter the rows ξ₁ − μγ, or μγ − 1ᵀβ − sψ, which give the gradients of the coefficients.
    static TouchGradient<T> touch_gradient(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint, int number,
                                           const T *w) {
        const ContactTable &contact = problem.mechanism.contacts[number];
        const ContactData<T> &data = problem.contacts[number];
        const PairData<T> *pair = contact.pair < 0 ? nullptr : &problem.pairs[contact.pair];
        const int other = other_body(problem.mechanism, contact);
        const bool alone = other == problem.mechanism.num_bodies;
        const T *p = &problem.parameters[contact.parameters];
        const T gamma = w[contact.impulse];
        const Vec3<T> &nu = adjoint.touching[number];
        const Vec3<T> n = pair ? pair->n : load3(p + parameter::normal);
        const Vec3<T> t1 = pair ? pair->t1 : load3(p + parameter::tangents), t2 = pair ? pair->t2 : load3(p + parameter::tangents + 3);
        const Vec3<T> levers[2] = {pair ? pair->lever[0] : problem.bodies[contact.body].next.R * data.lever, pair ? pair->lever[1] : n};
        Vec3<T> force = gamma * n, slip{};
        if (contact.friction) {
            force = force + data.beta[0] * t1 + data.beta[1] * t2;
            slip = nu.y * t1 + nu.z * t2;
        }
        const bool bounces = Restitution<T>::acts(contact);
        const auto [law, e, free] = Restitution<T>::weights(problem, contact);
        const T bounce = law * nu.x;

        TouchGradient<T> g{};
        Vec3<T> push{}, turn{};                      // Σ ± (α_v + F α_ω × l) and Σ ± F α_ω
        Vec3<T> velocity{}, spin{}, arriving{};      // u, σ and u⁻
        for (int i = 0; i < (alone ? 1 : 2); ++i) {
            const int body = i ? other : contact.body;
            const double sign = i ? -1.0 : 1.0;
            const Vec3<T> &lever = levers[i];
            const Mat3<T> &frame = alone ? problem.bodies[body].next.R : problem.bodies[body].pose.R;
            const Vec3<T> alpha = frame * load3(&adjoint.multiplier[6 * body + 3]), omega = frame * load3(w + 6 * body + 3);
            push = push + sign * (load3(&adjoint.multiplier[6 * body]) + cross(alpha, lever));
            turn = turn + sign * alpha;
            velocity = velocity + sign * (load3(w + 6 * body) + cross(omega, lever));
            spin = spin + sign * omega;
            Vec3<T> by_lever = cross(force, alpha) - cross(slip, omega);
            if (bounces) {
                const T *state = &problem.z[state_size * body];
                const Vec3<T> omega_before = problem.bodies[body].pose.R * load3(state + 10);
                arriving = arriving + sign * (load3(state + 3) + cross(omega_before, lever));
                by_lever = by_lever - bounce * cross(n, omega + e * omega_before);
            }
            g.lever[i] = sign * by_lever;
        }
        g.distance = -nu.x;
        g.n = gamma * push;
        if (contact.friction) {
            to.sum[contact.parameters + parameter::friction] += by_coefficient(adjoint, contact, gamma);
            g.t1 = data.beta[0] * push - nu.y * velocity;
            g.t2 = data.beta[1] * push - nu.z * velocity;
        }
        add_couples(to, problem, adjoint, contact, w, turn, spin, g);
        if (bounces) {
            const Vec3<T> leaving = velocity + e * arriving;
            g.distance = free * g.distance;
            g.n = g.n - bounce * leaving;
            to.sum[contact.restitution] -= bounce * dot(n, arriving);
            to.by_timestep -= bounce * dot(n, leaving) / problem.timestep();
        }
        return g;
    }

    // Adds the gradients of couples by their axes and coefficients. turn: Σ ± F α_ω. spin: σ.
    static TD_INLINE void add_couples(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint,
                                      const ContactTable &contact, const T *w, const Vec3<T> &turn, const Vec3<T> &spin,
                                      TouchGradient<T> &g) {
        for (int k = contact.first_couple; k < contact.first_couple + contact.num_couples; ++k) {
            const CoupleTable &couple = problem.mechanism.couples[k];
            const T *impulse = w + couple.friction.friction_impulse();
            to.sum[couple.parameter] += by_coefficient(adjoint, couple.friction, w[contact.impulse]);
            for (int a = 0; a < couple.num_axes(); ++a) {
                const T along = couple.friction.is_pyramid() ? impulse[1] - impulse[2] : impulse[1 + a];
                Vec3<T> &axis = couple.first_axis() + a == 0 ? g.n : couple.first_axis() + a == 1 ? g.t1 : g.t2;
                axis = axis + along * turn - adjoint.turning[2 * k + a] * spin;
            }
        }
    }

    // Gradient by the coefficient μ of a friction, whose cone has the height μγ.
    static TD_INLINE T by_coefficient(const AdjointState<T, T> &adjoint, const ContactTable &friction, const T &gamma) {
        return (friction.is_pyramid() ? -gamma : gamma) * adjoint.multiplier[friction.friction_impulse()];
    }
};

}  // namespace torchdojo
