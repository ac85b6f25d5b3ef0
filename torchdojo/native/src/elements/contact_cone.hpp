// Contacts inside the interior-point method: their complementarity conditions, linearized, and condensed into the body.
//
// Unknowns of a contact: impulses (γ, ξ), slacks (s, η). Its rows, with derivatives J_n, J_t of distance and slip by the twist δ:
//
//     J_n δ − δs = −r₁       δξ₁ − μ δγ = −r₂       J_t δ − δη₂₃ = −r₃₄       s δγ + γ δs = ρ₀       δη + H δξ = q
//
// Elimination leaves (δγ, δξ₂₃) = (γ̂, ξ̂₂₃) − K (J_n, J_t) δ with N = H₂₂⁻¹, m = −N H₂₁, K = [[γ/s, 0], [μ (γ/s) m, N]]. The body's
// block gains B K J, and δη₁ = p + a·δη₂₃ − b·δξ. The last row is λ∘(W δξ + W⁻¹ δη) = ρ or ξ∘δη + η∘δξ = ρ:
//   Nesterov-Todd scaled (off the path):  H = W²,  q = W (λ⁻¹∘ρ); a, b, p from the first row of H⁻¹δη + δξ = W⁻¹(λ⁻¹∘ρ).
//   plain (on the path of any κ, at less cost):  H = A(ξ)⁻¹A(η) with the arrow matrices A,  q = A(ξ)⁻¹ρ. In closed form, with
//     Y = (I + η₂₃ξ₂₃ᵀ/(ξ₁η₁ − ξ₂₃·η₂₃))/η₁:  Nᵀ = (ξ₁ I − ξ₂₃ξ₂₃ᵀ/ξ₁) Y,  m = −Yᵀ (η₂₃ − η₁ξ₂₃/ξ₁); a = −ξ₂₃/ξ₁, b = η/ξ₁, p = ρ₁/ξ₁.
// Vandenberghe 2010, "The CVXOPT linear and quadratic cone program solvers", section 4.2; Nocedal and Wright 2006, section 19.3.
#pragma once

#include "elements/friction.hpp"
#include "elements/pair.hpp"
#include "elements/path.hpp"
#include "solver/cone_state.hpp"

namespace torchdojo {

// The normal pair of a contact, its friction, and its torsional and rolling friction. Frictions are numbered as in MechanismTable.
template <class T>
struct ContactCones {
    // Sets K of all contacts at w.
    static void condense(ConeState<T> &cones, Problem<T> &problem, const T *w) {
        const MechanismTable &m = problem.mechanism;
        const bool some_scaled = any(cones.scaled);
        for (int c = 0; c < m.num_contacts; ++c) {
            const ContactTable &contact = m.contacts[c];
            const T gamma = w[contact.impulse], s = w[contact.slack];
            ContactData<T> &data = problem.contacts[c];
            data.inverse = inverse_of(contact.stiffness < 0 ? s : s + gamma * problem.laws[contact.law].softness);
            data.stiffness = gamma * data.inverse;
        }
        cones.for_each_friction([&](const ContactTable &friction, int c) {
            FrictionData<T> &data = friction_data(problem, c);
            const T *impulse = w + friction.friction_impulse(), *slack = w + friction.friction_slack();
            if (friction.is_pyramid()) {
                Pyramid<T>{friction}.condense(impulse, slack, data.compliance, data.cone_coupling);
            } else {
                // The plain form comes first in all lanes: no lane may depend on whether others are scaled.
                Disc<T>::condense(load3(impulse), load3(slack), data);
                if (some_scaled) {
                    FrictionData<T> other;
                    cones.scaling[c] = cone_scaling(load3(impulse), load3(slack));
                    Disc<T>::condense(cones.scaling[c], other);
                    data.take(cones.scaled, other);
                }
            }
            const T scale = coefficient(problem, c) * problem.contacts[contact_of(m, c)].stiffness;
            for (int i = 0; i < 2; ++i) data.coupling[i] = scale * data.cone_coupling[i];
        });
    }

    // Right-hand sides of the bodies, and, once they are solved, the directions of the cones (see TwistSystem in solver/cones.hpp).
    template <class System>
    static void begin(ConeState<T> &cones, Problem<T> &problem, const T *w, const T *residual, System &system) {
        const MechanismTable &m = problem.mechanism;
        for (int c = 0; c < m.num_contacts; ++c) {
            const ContactTable &contact = m.contacts[c];
            eliminate(cones, problem, w, c, residual, Vec3<T>{});
            T beta[2];
            if (contact.friction) tangential(contact, &cones.direction[contact.friction_impulse()], beta);
            system.press(c, cones.direction[contact.impulse], beta);
        }
        for (int k = 0; k < m.num_couples; ++k) {
            const T still[2] = {T{}, T{}};
            eliminate_couple(cones, problem, w, k, residual, still);
            T along[2];
            tangential(m.couples[k].friction, &cones.direction[m.couples[k].friction.friction_impulse()], along);
            couple_push(problem, k, along, system.x);
        }
    }

    template <class System>
    static void finish(ConeState<T> &cones, Problem<T> &problem, const T *w, const T *residual, const System &system) {
        const MechanismTable &m = problem.mechanism;
        for (int c = 0; c < m.num_contacts; ++c) {
            const ContactTable &contact = m.contacts[c];
            Vec3<T> move{};  // change of the gap and the slip
            auto add = [&](int body, const T *C) {
                const T *twist = system.solution(body);
                for (int r = 0; r < (contact.friction ? 3 : 1); ++r)
                    for (int k = 0; k < 6; ++k) move[r] += C[6 * r + k] * twist[k];
            };
            add(contact.body, system.contact_rows(c));
            if (const int other = other_body(m, contact); other < m.num_bodies) add(other, problem.pairs[contact.pair].other_rows);
            eliminate(cones, problem, w, c, residual, move);
        }
        for (int k = 0; k < m.num_couples; ++k) {
            T move[2] = {T{}, T{}};
            couple_spin(problem, k, system.x, move);
            eliminate_couple(cones, problem, w, k, residual, move);
        }
    }

    static void start(const ConeState<T> &, const Problem<T> &problem, T *w, const T &level, const Mask<T> &mask) {
        const MechanismTable &m = problem.mechanism;
        for (const ContactTable &contact : m.contacts) {
            T values[2 * half];
            Vec3<T> v[2], omega[2];
            const int bodies[2] = {contact.body, other_body(m, contact)};
            for (const int i : {0, 1})
                if (bodies[i] < m.num_bodies) {
                    v[i] = load3(w + 6 * bodies[i]);
                    omega[i] = load3(w + 6 * bodies[i] + 3);
                }
            start(problem, contact, v, omega, level, values);
            store(m, contact, values, mask, w);
        }
    }

    // Contacts of bodies in `flying`, which loses the lanes where a contact is not far from touching. Returns the lanes that some keep.
    static Mask<T> forecast(const ConeState<T> &, const Problem<T> &problem, T *w, const T &kappa, std::vector<Mask<T>> &flying) {
        const MechanismTable &mechanism = problem.mechanism;
        const T h = problem.timestep();
        auto fall = [&](const ContactTable &contact, T *values) {
            const T inverse = 1.0 / problem.body_parameters(contact.body)[parameter::mass];
            const T *state = &problem.z[state_size * contact.body];
            const Vec3<T> force = inverse * load3(&problem.wrench[6 * contact.body]);
            const Vec3<T> drift = h * (load3(&problem.parameters[parameter::gravity]) + force);
            const Vec3<T> v = load3(state + 3) + drift, omega = load3(state + 10);
            start(problem, contact, &v, &omega, kappa, values);
            return constant::distant * sqrt(kappa * h * inverse);
        };
        T values[2 * half];
        for (const ContactTable &contact : mechanism.contacts) {
            if (!mechanism.is_free[contact.body]) continue;
            const T wide = fall(contact, values);
            const Mask<T> far = select_mask(w[contact.slack] > wide, values[half] > wide, Mask<T>{});
            flying[contact.body] = select_mask(far, flying[contact.body], Mask<T>{});
        }
        Mask<T> some{};
        for (const ContactTable &contact : mechanism.contacts) {
            const Mask<T> &in_flight = flying[contact.body];
            if (!mechanism.is_free[contact.body] || !any(in_flight)) continue;
            fall(contact, values);
            store(mechanism, contact, values, in_flight, w);
            some = select_mask(in_flight, in_flight, some);
        }
        return some;
    }

    static void project(const ConeState<T> &cones, const Problem<T> &problem, const T &kappa, const Mask<T> &mask, T *w, T *before,
                        const Mask<T> &known) {
        const MechanismTable &mechanism = problem.mechanism;
        const T contact_scale = 1.0 / (1.0 / constant::impulse_weight * problem.timestep());
        auto put = [&](int k, const T &value) { w[k] = select(mask, value, w[k]); };
        auto heavier = [&](const ContactTable &contact) { return mechanism.is_free[contact.body] ? Mask<T>{} : known; };
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            const T gamma = w[contact.impulse], gap = w[contact.slack];
            PathWeight<T> weight;
            weight.add(change(before[contact.impulse], gamma), change(before[contact.slack], gap));
            const T a = weight(contact_scale * mass(problem, contact), heavier(contact)),
                    on_path = orthant_on_path(gamma - a * gap, a, kappa);
            put(contact.impulse, on_path);
            put(contact.slack, quotient(kappa, on_path));
        }
        constexpr int width = 4;
        typename Disc<T>::Point points[width];
        const ContactTable *discs[width];
        int waiting = 0;
        auto finish = [&] {
            Disc<T>::Point::template project<width>(points, kappa, [&](int i, const Vec3<T> &xi, const Vec3<T> &eta) {
                if (i >= waiting) return;
                for (int k = 0; k < 3; ++k) {
                    put(discs[i]->friction_impulse() + k, xi[k]);
                    put(discs[i]->friction_slack() + k, eta[k]);
                }
            });
            waiting = 0;
        };
        cones.for_each_friction([&](const ContactTable &friction, int c) {
            const ContactTable &contact = mechanism.contacts[contact_of(mechanism, c)];
            const T height = coefficient(problem, c) * w[contact.impulse];
            const int impulse = friction.friction_impulse(), slack = friction.friction_slack();
            // Slips of a pyramid are η − ψ.
            const T psi = friction.is_pyramid() ? change(before[impulse], w[impulse]) : T{};
            PathWeight<T> weight;
            for (int k = 1; k < friction.friction_size(); ++k)
                weight.add(change(before[impulse + k], w[impulse + k]), change(before[slack + k], w[slack + k]) - psi);
            const T nominal = c < mechanism.num_contacts ? mass(problem, contact) : couple_mass(problem, contact);
            const T stiff = weight(nominal, heavier(contact), most_weight(cones, friction, c, w, kappa));
            if (friction.is_pyramid()) {
                T values[2][1 + most_facets];
                for (int k = 0; k < friction.friction_size(); ++k) {
                    values[0][k] = w[impulse + k];
                    values[1][k] = w[slack + k];
                }
                Pyramid<T>{friction}.project(height, kappa, stiff, values[0], values[1]);
                for (int k = 0; k < friction.friction_size(); ++k) {
                    put(impulse + k, values[0][k]);
                    put(slack + k, values[1][k]);
                }
            } else {
                points[waiting] = disc_point(w + impulse, w + slack, height, nominal, stiff);
                discs[waiting++] = &friction;
                if (waiting == width) finish();
            }
        });
        if (!waiting) return;
        for (int i = waiting; i < width; ++i) points[i] = points[0];
        finish();
    }

    // The transposed system: ν of the contacts grows by the multipliers that follow from the gradient g and from λ = x (null: zero).
    template <class R>
    static void add_multipliers(AdjointState<T, R> &adjoint, const Problem<T> &problem, const R *g, const R *x) {
        for (int c = 0; c < problem.mechanism.num_contacts; ++c)
            if (!adjoint.left_out[c]) adjoint.touching[c] = adjoint.touching[c] + multipliers(adjoint, problem, c, g, x);
    }

    // y −= Cᵀ ν
    template <class R>
    static void subtract(const AdjointState<T, R> &adjoint, const Problem<T> &problem, R *y) {
        for (int c = 0; c < problem.mechanism.num_contacts; ++c) subtract(adjoint, problem, c, y);
    }

    // Calls f(place of an impulse, its ν) for every impulse that has compliance in hard gradients.
    template <class R, class F>
    static void each_held(const AdjointState<T, R> &adjoint, const F &f) {
        const MechanismTable &m = adjoint.mechanism;
        for (int c = 0; c < m.num_contacts; ++c) f(m.contacts[c].impulse, adjoint.touching[c].x);
        for (const ContactTable &friction : m.frictions)
            for (int k = 1; k < friction.friction_size(); ++k)
                f(friction.friction_impulse() + k, adjoint.multiplier[friction.friction_impulse() + k]);
    }

    template <class R>
    static void store_multipliers(AdjointState<T, R> &adjoint, const Problem<T> &, const T *, const R *) {
        for (int c = 0; c < adjoint.mechanism.num_contacts; ++c)
            adjoint.multiplier[adjoint.mechanism.contacts[c].impulse] = adjoint.touching[c].x;
    }

    // (ν_φ, ν_t) of contact c from g and λ = x (null: zero). Adds the multipliers of its friction to `multiplier` and the multipliers of
    // its couples to `turning`. Columns of the transposed system:
    //   γ: s ν_s − μ ν_μ = g_γ + b_n     s: ν_φ = γ ν_s     ξ, η: ν_t = Nᵀ q, ν_μ = g_ξ₁ + m·q with q = g_ξ₂₃ + b_t
    template <class R>
    static TD_INLINE Vec3<R> multipliers(AdjointState<T, R> &adjoint, const Problem<T> &problem, int c, const R *g, const R *x) {
        const MechanismTable &m = problem.mechanism;
        const ContactTable &contact = m.contacts[c];
        const ContactData<T> &data = problem.contacts[c];
        Vec3<R> b{};  // Bᵀ α
        auto add = [&](const T *wrench, const R *body) {
            for (int r = 0; r < 6; ++r) b.x += wrench[3 * r] * body[r];
            if (!contact.friction) return;
            for (int r = 0; r < 6; ++r) {
                b.y += wrench[3 * r + 1] * body[r];
                b.z += wrench[3 * r + 2] * body[r];
            }
        };
        if (x) add(data.wrench, x + m.bodies[contact.body].right);
        if (const int other = other_body(m, contact); x && other < m.num_bodies)
            add(problem.pairs[contact.pair].other_wrench, x + m.bodies[other].right);
        R n = g[contact.impulse] + b.x, nu[2] = {b.y, b.z};
        if (contact.friction)
            n += problem.parameters[contact.parameters + parameter::friction] * friction_multiplier(adjoint, contact, data, g, nu);
        for (int k = contact.first_couple; k < contact.first_couple + contact.num_couples; ++k) {
            const CoupleTable &couple = m.couples[k];
            R spin[2] = {R{}, R{}};
            if (x) couple_power(problem, k, x, spin);
            n += problem.parameters[couple.parameter] * friction_multiplier(adjoint, couple.friction, problem.couples[k], g, spin);
            adjoint.turning[2 * k] += spin[0];
            adjoint.turning[2 * k + 1] += spin[1];
        }
        return {data.stiffness * n, nu[0], nu[1]};
    }

    // y −= Cᵀ ν for the ν of contact c
    template <class R>
    static TD_INLINE void subtract(const AdjointState<T, R> &adjoint, const Problem<T> &problem, int c, R *y) {
        const MechanismTable &m = problem.mechanism;
        const ContactTable &contact = m.contacts[c];
        const Vec3<R> &nu = adjoint.touching[c];
        auto take = [&](const T *C, R *to) {
            for (int k = 0; k < 6; ++k) to[k] -= C[k] * nu.x;
            if (!contact.friction) return;
            for (int k = 0; k < 6; ++k) to[k] = to[k] - C[6 + k] * nu.y - C[12 + k] * nu.z;
        };
        take(problem.contacts[c].rows, y + m.bodies[contact.body].right);
        for (int k = contact.first_couple; k < contact.first_couple + contact.num_couples; ++k)
            couple_subtract(problem, k, &adjoint.turning[2 * k], y);
        if (const int other = other_body(m, contact); other < m.num_bodies)
            take(problem.pairs[contact.pair].other_rows, y + m.bodies[other].right);
    }

    // The contact of a friction.
    static TD_INLINE int contact_of(const MechanismTable &m, int c) {
        return c < m.num_contacts ? c : m.couples[c - m.num_contacts].contact;
    }

    // Reduced mass of the two bodies.
    static TD_INLINE T mass(const Problem<T> &problem, const ContactTable &contact) {
        const T mass = problem.body_parameters(contact.body)[parameter::mass];
        const int body = other_body(problem.mechanism, contact);
        if (body == problem.mechanism.num_bodies) return mass;
        const T other = problem.body_parameters(body)[parameter::mass];
        return mass * other / (mass + other);
    }

private:
    static constexpr int half = 2 + most_facets;  // places for the impulses of one contact, and for its slacks

    // Condensed form and coefficient μ of a friction.
    static TD_INLINE FrictionData<T> &friction_data(Problem<T> &problem, int c) {
        const int contacts = problem.mechanism.num_contacts;
        if (c < contacts) return problem.contacts[c];
        return problem.couples[c - contacts];
    }
    static TD_INLINE const T &coefficient(const Problem<T> &problem, int c) {
        const MechanismTable &m = problem.mechanism;
        if (c < m.num_contacts) return problem.parameters[m.contacts[c].parameters + parameter::friction];
        return problem.parameters[m.couples[c - m.num_contacts].parameter];
    }

    // The largest weight of a friction's projection, relative to the nominal one.
    static TD_INLINE T most_weight(const ConeState<T> &cones, const ContactTable &friction, int c, const T *w, const T &kappa) {
        const T most = broadcast<T>(constant::most_weight);
        if (!cones.mechanism.is_braced[c] || friction.is_pyramid()) return most;
        const T off_path = abs(dot(load3(w + friction.friction_impulse()), load3(w + friction.friction_slack())) - kappa);
        return select(select_mask(cones.early, off_path > constant::off_path * kappa, Mask<T>{}), broadcast<T>(constant::squeezing_weight),
                      most);
    }

    // The point of a disc to project, for impulses ξ and slacks η. From outside the disc, the slip grows to at most about twice the slip of
    // Newton's point (disc_on_path in path_maps.py).
    static TD_INLINE typename Disc<T>::Point disc_point(const T *xi, const T *eta, const T &height, const T &nominal, const T &stiff) {
        const auto length = [](const T *x) {
            return root(max(x[1] * x[1] + x[2] * x[2], broadcast<T>(std::numeric_limits<double>::min())));
        };
        const T radius = max(height, broadcast<T>(constant::least_height));
        const T excess = length(xi) - radius, slip = length(eta);
        const T m = max(min(constant::return_weight * nominal, quotient(excess, slip)), stiff);
        return {radius, m, xi[1] - m * eta[1], xi[2] - m * eta[2]};
    }

    // ν_t from b_t, in place. Returns the multiplier of the cone's height, which μ times adds to the column of γ.
    template <class R>
    static TD_INLINE R friction_multiplier(AdjointState<T, R> &adjoint, const ContactTable &friction, const FrictionData<T> &data,
                                           const R *g, R *nu) {
        const int impulse = friction.friction_impulse();
        R *rows = &adjoint.multiplier[impulse];
        if (friction.is_pyramid()) {
            const Pyramid<T> pyramid{friction};
            R multipliers[1 + most_facets];
            pyramid.multipliers(adjoint.point + impulse, adjoint.point + friction.friction_slack(), g + impulse, nu, multipliers);
            pyramid.tangential(multipliers + 1, nu);
            for (int k = 0; k < friction.friction_size(); ++k) rows[k] += multipliers[k];
            return -multipliers[0];
        }
        const R q[2] = {nu[0] + g[impulse + 1], nu[1] + g[impulse + 2]};
        const R height = g[impulse] + data.cone_coupling[0] * q[0] + data.cone_coupling[1] * q[1];
        rows[0] += height;
        for (const int i : {0, 1}) {
            nu[i] = data.compliance[i] * q[0] + data.compliance[2 + i] * q[1];
            rows[1 + i] += nu[i];
        }
        return height;
    }

    // Impulses and slacks of one contact: (γ, ξ, …), and (s, η, …) from `half` on.
    static TD_INLINE void start(const Problem<T> &problem, const ContactTable &contact, const Vec3<T> *twist_v, const Vec3<T> *twist_omega,
                                const T &level, T *values) {
        const T *p = &problem.parameters[contact.parameters];
        if (contact.pair >= 0) {
            const PairMotion<T> motion = pair_motion(problem, contact, twist_v, twist_omega);
            start_normal(motion.distance, level, values);
            start_friction(contact, p[parameter::friction] * values[0], motion.slip[0], motion.slip[1], level, values + 1);
            for (int k = 0; k < contact.num_couples; ++k) {
                const CoupleTable &couple = problem.mechanism.couples[contact.first_couple + k];
                const T *spin = motion.spin + couple.first_axis();
                start_friction(couple.friction, problem.parameters[couple.parameter] * values[0], spin[0],
                               couple.num_axes() > 1 ? spin[1] : T{}, level, values + 1 + contact.friction_size() + 3 * k);
            }
            return;
        }
        const Vec3<T> &v = *twist_v, &omega = *twist_omega;
        const T h = problem.timestep();
        const BodyPose<T> next = pose_after(problem.bodies[contact.body].pose, h, v, omega);
        const Vec3<T> arm = next.R * load3(p + parameter::point), normal = load3(p + parameter::normal);
        const T distance = dot(normal, next.x + arm) - p[parameter::offset] - p[parameter::radius];
        const Vec3<T> velocity = v + cross(next.R * omega, arm - p[parameter::radius] * normal);
        const T s1 = dot(load3(p + parameter::tangents), velocity), s2 = dot(load3(p + parameter::tangents + 3), velocity);
        start_normal(distance, level, values);
        start_friction(contact, p[parameter::friction] * values[0], s1, s2, level, values + 1);
    }

    static TD_INLINE void start_normal(const T &distance, const T &level, T *values) {
        values[half] = max(distance, sqrt(level));
        values[0] = level / values[half];
    }
    static TD_INLINE void start_friction(const ContactTable &friction, const T &height, const T &s1, const T &s2, const T &level,
                                         T *values) {
        if (friction.is_pyramid()) Pyramid<T>{friction}.start(height, s1, s2, level, values, values + half);
        else if (friction.friction) Disc<T>::start(height, s1, s2, level, values, values + half);
    }

    // Copies `start` into w.
    static TD_INLINE void store(const MechanismTable &mechanism, const ContactTable &contact, const T *values, const Mask<T> &mask, T *w) {
        auto put = [&](int impulse, int slack, int k) {
            w[impulse] = select(mask, values[k], w[impulse]);
            w[slack] = select(mask, values[half + k], w[slack]);
        };
        put(contact.impulse, contact.slack, 0);
        int next = 1;
        for (int k = 0; k < contact.friction_size(); ++k) put(contact.friction_impulse() + k, contact.friction_slack() + k, next++);
        for (int c = contact.first_couple; c < contact.first_couple + contact.num_couples; ++c) {
            const ContactTable &friction = mechanism.couples[c].friction;
            for (int k = 0; k < 3; ++k) put(friction.friction_impulse() + k, friction.friction_slack() + k, next++);
        }
    }

    // Direction of contact c for the derivatives `move` of distance and slip along the body's direction.
    static TD_INLINE void eliminate(ConeState<T> &cones, const Problem<T> &problem, const T *w, int c, const T *residual,
                                    const Vec3<T> &move) {
        const ContactTable &contact = problem.mechanism.contacts[c];
        T &gamma = cones.direction[contact.impulse], &slack = cones.direction[contact.slack];
        slack = move.x + *cones.rows(residual, contact.impulse);
        gamma = problem.contacts[c].inverse * (cones.right[contact.slack] - w[contact.impulse] * slack);
        if (contact.stiffness >= 0) slack += problem.laws[contact.law].softness * gamma;
        if (contact.friction)
            eliminate_friction(cones, contact, w, problem.contacts[c], coefficient(problem, c) * gamma, residual, move.y, move.z);
    }

    // Direction of couple k for changes `move` of its spins, and the direction of its contact.
    static void eliminate_couple(ConeState<T> &cones, const Problem<T> &problem, const T *w, int k, const T *residual, const T *move) {
        const CoupleTable &couple = problem.mechanism.couples[k];
        const T &gamma = cones.direction[problem.mechanism.contacts[couple.contact].impulse];
        eliminate_friction(cones, couple.friction, w, problem.couples[k], problem.parameters[couple.parameter] * gamma, residual, move[0],
                           move[1]);
    }

    // Direction of the cone for a change `height` of its height and for changes of the slip.
    static TD_INLINE void eliminate_friction(ConeState<T> &cones, const ContactTable &friction, const T *w, const FrictionData<T> &data,
                                             const T &height, const T *residual, const T &m0, const T &m1) {
        const int impulse = friction.friction_impulse(), slack = friction.friction_slack();
        const T *row = cones.rows(residual, impulse), *q = &cones.right[slack];
        T *xi = &cones.direction[impulse], *eta = &cones.direction[slack];
        if (friction.is_pyramid()) {
            Pyramid<T>{friction}.eliminate(w + impulse, w + slack, q, row, height, m0, m1, xi, eta);
        } else {
            const T *N = data.compliance;
            xi[0] = height - row[0];
            eta[1] = m0 + row[1];
            eta[2] = m1 + row[2];
            const T b0 = q[1] - eta[1], b1 = q[2] - eta[2];
            xi[1] = N[0] * b0 + N[1] * b1 + data.cone_coupling[0] * xi[0];
            xi[2] = N[2] * b0 + N[3] * b1 + data.cone_coupling[1] * xi[0];
            eta[0] = q[0] + data.eta_slip[0] * eta[1] + data.eta_slip[1] * eta[2] - dot(data.eta_xi, load3(xi));
        }
    }
};

}  // namespace torchdojo
