// Contacts inside the interior-point method: their complementarity conditions, linearized, and condensed into the body.
//
// Unknowns of a contact: impulses (γ, ξ), slacks (s, η). Its rows, with J_n, J_t the derivatives of distance and slip by the body's twist δ:
//     J_n δ − δs = −r₁       δξ₁ − μ δγ = −r₂       J_t δ − δη₂₃ = −r₃₄       s δγ + γ δs = ρ₀       δη + H δξ = q
// Elimination leaves (δγ, δξ₂₃) = (γ̂, ξ̂₂₃) − K (J_n, J_t) δ with N = H₂₂⁻¹, m = −N H₂₁, K = [[γ/s, 0], [μ (γ/s) m, N]], and the
// body's block gains B K J; then δη₁ = p + a·δη₂₃ − b·δξ. The last row, for λ∘(W δξ + W⁻¹ δη) = ρ or for ξ∘δη + η∘δξ = ρ:
//   Nesterov-Todd scaled (off the path):  H = W²,  q = W (λ⁻¹∘ρ); a, b, p from the first row of H⁻¹δη + δξ = W⁻¹(λ⁻¹∘ρ).
//   plain (on the path, of whatever κ, the same for less):  H = A(ξ)⁻¹A(η) with the arrow matrices A,  q = A(ξ)⁻¹ρ. In closed form, with
//     Y = (I + η₂₃ξ₂₃ᵀ/(ξ₁η₁ − ξ₂₃·η₂₃))/η₁:  Nᵀ = (ξ₁ I − ξ₂₃ξ₂₃ᵀ/ξ₁) Y,  m = −Yᵀ (η₂₃ − η₁ξ₂₃/ξ₁); a = −ξ₂₃/ξ₁, b = η/ξ₁, p = ρ₁/ξ₁.
// Vandenberghe 2010, "The CVXOPT linear and quadratic cone program solvers", section 4.2; Nocedal and Wright 2006, section 19.3.
#pragma once

#include "elements/coupling.hpp"
#include "elements/disc.hpp"
#include "elements/law.hpp"
#include "elements/pyramid.hpp"

namespace torchdojo {

// Right-hand side of the complementarity rows of one contact: ρ₀, and (p, q₂₃) of the cone (see `eliminate`). Couples have the latter.
template <class T>
struct ContactRight {
    T rho;
    Vec3<T> q;
};

template <class T>
struct ContactDirection {
    T gamma, slack;
    Vec3<T> xi, eta;                  // of a pyramid, ξ₂₃ is the tangential impulse
};

template <class T>
struct Cones {
    const MechanismTable &mechanism;
    // By contact, then by couple (those of `MechanismTable::frictions`).
    std::vector<ConeScaling<T>> scaling;  // in the lanes of `scaled`
    std::vector<ContactRight<T>> right;
    std::vector<ContactDirection<T>> direction;
    Mask<T> scaled{};                 // lanes whose products are linearized in scaled variables, the others plainly
    std::vector<Mask<T>> flying;      // per body
    std::vector<T> facet_right, facet_direction;  // of pyramids, in the places of w: right-hand sides of the products, and direction

    explicit Cones(const MechanismTable &m)
        : mechanism(m), scaling(m.frictions.size()), right(scaling.size()), direction(scaling.size()), flying(m.num_bodies),
          facet_right(m.has_pyramids() ? m.num_unknowns : 0), facet_direction(facet_right) {}

    // K of all contacts at w, scaled in the lanes of `inside`.
    void condense(Problem<T> &problem, const T *w, const Mask<T> &inside = Mask<T>{}) {
        scaled = inside;
        const bool some_scaled = any(scaled);
        JointCones<T>::condense(problem, w);
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            ContactData<T> &data = problem.contacts[c];
            const T gamma = w[contact.impulse], s = w[contact.slack];
            data.stiffness = gamma / (contact.stiffness < 0 ? s : s + gamma * problem.laws[contact.law].softness);
        }
        for_each_friction([&](const ContactTable &friction, int c) {
            FrictionData<T> &data = friction_data(problem, c);
            const T *impulse = w + friction.friction_impulse(), *slack = w + friction.friction_slack();
            if (friction.is_pyramid()) {
                Pyramid<T>{friction}.condense(impulse, slack, data.compliance, data.cone_coupling);
            } else {
                // (the plain one always: lanes must not depend on whether others are scaled)
                Disc<T>::condense(load3(impulse), load3(slack), data);
                if (some_scaled) {
                    FrictionData<T> other;
                    scaling[c] = cone_scaling(load3(impulse), load3(slack));
                    Disc<T>::condense(scaling[c], other);
                    data.take(scaled, other);
                }
            }
            const T scale = coefficient(problem, c) * problem.contacts[contact_of(c)].stiffness;
            for (int i = 0; i < 2; ++i) data.coupling[i] = scale * data.cone_coupling[i];
        });
    }

    // Products aimed at: `target` e, minus the second-order term of `second` where that is not null (0 or 1 per lane in `weight`).
    void aim(Problem<T> &problem, const T *w, const T &target, const T *weight) {
        JointCones<T>::aim(problem, w, target, weight);
        const bool some_scaled = any(scaled);
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            const ContactDirection<T> &d = direction[c];
            right[c].rho = target - w[contact.impulse] * w[contact.slack];
            if (weight) right[c].rho -= *weight * d.gamma * d.slack;
        }
        for_each_friction([&](const ContactTable &friction, int c) {
            for_each_facet(friction, [&](int impulse, int slack) {
                facet_right[slack] = target - w[impulse] * w[slack];
                if (weight) facet_right[slack] -= *weight * facet_direction[impulse] * facet_direction[slack];
            });
            if (friction.is_pyramid()) return;
            const Vec3<T> xi = load3(w + friction.friction_impulse());
            Vec3<T> rho = -cone_product(xi, load3(w + friction.friction_slack()));
            rho.x += target;
            right[c].q = aim_plain(xi, rho);
            if (!some_scaled) return;
            const ConeScaling<T> &s = scaling[c];
            const ContactDirection<T> &d = direction[c];
            rho = -cone_product(s.point, s.point);
            rho.x += target;
            if (weight) rho = rho - *weight * cone_product(s.weigh(d.xi), s.unweigh(d.eta));
            const Vec3<T> q = s.aim(rho);
            for (int k = 0; k < 3; ++k) right[c].q[k] = select(scaled, q[k], right[c].q[k]);
        });
    }

    // Products that should become −delta, plainly linearized.
    void aim_at(Problem<T> &problem, const T *w, const T *delta) {
        JointCones<T>::aim_at(problem, delta);
        for (int c = 0; c < mechanism.num_contacts; ++c) right[c].rho = -delta[mechanism.contacts[c].slack];
        for_each_friction([&](const ContactTable &friction, int c) {
            for_each_facet(friction, [&](int, int slack) { facet_right[slack] = -delta[slack]; });
            if (friction.is_pyramid()) return;
            right[c].q = aim_plain(load3(w + friction.friction_impulse()), -load3(delta + friction.friction_slack()));
        });
    }

    // With the matrix of the problem, which is factored first where it is not yet: x becomes the direction of bodies and multipliers,
    // `direction` that of the contacts. It removes `residual` (in the places of w; null: the equations are left as they are) and fills
    // `right`.
    void solve(Problem<T> &problem, const T *w, const T *residual, T *x, bool factored) {
        for (int i = 0; i < mechanism.num_bodies; ++i)
            for (int k = 0; k < 6; ++k) x[mechanism.bodies[i].right + k] = residual ? -residual[6 * i + k] : T{};
        for (const JointTable &joint : mechanism.joints)
            for (int k = joint.held(); k < joint.size; ++k) x[joint.right + k] = T{};
        for (const MultiplierTable &row : mechanism.multipliers) x[row.right] = residual ? -residual[row.row] : T{};
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            const ContactData<T> &data = problem.contacts[c];
            eliminate(problem, w, c, residual, Vec3<T>{});
            const ContactDirection<T> &d = direction[c];
            T *b = x + mechanism.bodies[contact.body].right;
            for (int r = 0; r < 6; ++r) {
                b[r] += data.wrench[3 * r] * d.gamma;
                if (contact.friction) b[r] += data.wrench[3 * r + 1] * d.xi.y + data.wrench[3 * r + 2] * d.xi.z;
            }
            if (!has_other(contact)) continue;
            const T *B = problem.pairs[contact.pair].other_wrench;
            b = x + mechanism.bodies[mechanism.pairs[contact.pair].other].right;
            for (int r = 0; r < 6; ++r) {
                b[r] += B[3 * r] * d.gamma;
                if (contact.friction) b[r] += B[3 * r + 1] * d.xi.y + B[3 * r + 2] * d.xi.z;
            }
        }
        for (int k = 0; k < mechanism.num_couples; ++k) {
            eliminate_couple(problem, w, k, residual, nullptr);
            const Vec3<T> &xi = direction[mechanism.num_contacts + k].xi;
            const T along[2] = {xi.y, xi.z};
            couple_push(problem, k, along, x);
        }
        JointCones<T>::begin(problem, w, residual, x);
        if (factored) ldu_solve(mechanism.schedule, problem.values.data(), x);
        else ldu_factor_and_solve(mechanism.schedule, problem.values.data(), x);
        JointCones<T>::finish(problem, w, residual, x);
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            const T *C = problem.contacts[c].rows, *b = x + mechanism.bodies[contact.body].right;
            Vec3<T> move{};
            for (int r = 0; r < (contact.friction ? 3 : 1); ++r)
                for (int k = 0; k < 6; ++k) move[r] += C[6 * r + k] * b[k];
            if (has_other(contact)) {
                C = problem.pairs[contact.pair].other_rows, b = x + mechanism.bodies[mechanism.pairs[contact.pair].other].right;
                for (int r = 0; r < (contact.friction ? 3 : 1); ++r)
                    for (int k = 0; k < 6; ++k) move[r] += C[6 * r + k] * b[k];
            }
            eliminate(problem, w, c, residual, move);
        }
        for (int k = 0; k < mechanism.num_couples; ++k) eliminate_couple(problem, w, k, residual, x);
    }

    void set_direction(Problem<T> &problem, const T *delta) {
        JointCones<T>::set_direction(problem, delta);
        for (int c = 0; c < mechanism.num_contacts; ++c)
            direction[c].gamma = delta[mechanism.contacts[c].impulse], direction[c].slack = delta[mechanism.contacts[c].slack];
        for_each_friction([&](const ContactTable &friction, int c) {
            for_each_facet(friction, [&](int impulse, int slack) {
                facet_direction[impulse] = delta[impulse], facet_direction[slack] = delta[slack];
            });
            if (friction.is_pyramid()) return;
            direction[c].xi = load3(delta + friction.friction_impulse()), direction[c].eta = load3(delta + friction.friction_slack());
        });
    }

    // put(place in w, value)
    template <class Put>
    void store_direction(const Problem<T> &problem, const Put &put) const {
        JointCones<T>::store_direction(problem, put);
        for (int c = 0; c < mechanism.num_contacts; ++c)
            put(mechanism.contacts[c].impulse, direction[c].gamma), put(mechanism.contacts[c].slack, direction[c].slack);
        for_each_friction([&](const ContactTable &friction, int c) {
            for_each_facet(friction, [&](int impulse, int slack) {
                put(impulse, facet_direction[impulse]), put(slack, facet_direction[slack]);
            });
            if (friction.is_pyramid()) return;
            for (int k = 0; k < 3; ++k)
                put(friction.friction_impulse() + k, direction[c].xi[k]), put(friction.friction_slack() + k, direction[c].eta[k]);
        });
    }

    // Largest inverse step to the boundary of the cones along `direction`.
    T inverse_step(const Problem<T> &problem, const T *w) const {
        T inverse{};
        JointCones<T>::for_each_pair(problem, [&](const JointConeTable &, const JointConeData<T> &d, int k, int impulse, int slack) {
            inverse = max(inverse, max(-d.impulse[k] / w[impulse], -d.slack[k] / w[slack]));
        });
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            inverse = max(inverse, max(-direction[c].gamma / w[contact.impulse], -direction[c].slack / w[contact.slack]));
        }
        for_each_friction([&](const ContactTable &friction, int c) {
            const ContactDirection<T> &d = direction[c];
            for_each_facet(friction, [&](int impulse, int slack) {
                inverse = max(inverse, max(-facet_direction[impulse] / w[impulse], -facet_direction[slack] / w[slack]));
            });
            if (friction.is_pyramid()) return;
            const Vec3<T> xi = load3(w + friction.friction_impulse()), eta = load3(w + friction.friction_slack());
            inverse = max(inverse, max(cone_limit(xi, d.xi), cone_limit(eta, d.eta)));
        });
        return inverse;
    }

    // Mean over cones of impulseᵀ slack at w + α·direction (α null: at w).
    T mean_product(const Problem<T> &problem, const T *w, const T *alpha) const {
        T sum{};
        JointCones<T>::for_each_pair(problem, [&](const JointConeTable &, const JointConeData<T> &d, int k, int impulse, int slack) {
            sum += alpha ? (w[impulse] + *alpha * d.impulse[k]) * (w[slack] + *alpha * d.slack[k]) : w[impulse] * w[slack];
        });
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            T gamma = w[mechanism.contacts[c].impulse], s = w[mechanism.contacts[c].slack];
            if (alpha) gamma += *alpha * direction[c].gamma, s += *alpha * direction[c].slack;
            sum += gamma * s;
        }
        for_each_friction([&](const ContactTable &friction, int c) {
            for_each_facet(friction, [&](int impulse, int slack) {
                sum += alpha ? (w[impulse] + *alpha * facet_direction[impulse]) * (w[slack] + *alpha * facet_direction[slack])
                             : w[impulse] * w[slack];
            });
            if (friction.is_pyramid()) return;
            Vec3<T> xi = load3(w + friction.friction_impulse()), eta = load3(w + friction.friction_slack());
            if (alpha) xi = xi + *alpha * direction[c].xi, eta = eta + *alpha * direction[c].eta;
            sum += dot(xi, eta);
        });
        return sum / double(mechanism.num_cones > 0 ? mechanism.num_cones : 1);
    }

    // Largest deviation of the products from `target` e, and the sum of all of them (not finite where one is not).
    T violation(const Problem<T> &problem, const T *w, const T &target, T &sum) const {
        T worst{};
        auto add = [&](const T &gap) { worst = max(worst, abs(gap)), sum += gap; };
        JointCones<T>::for_each_pair(problem, [&](const JointConeTable &, const JointConeData<T> &, int, int impulse, int slack) {
            add(w[impulse] * w[slack] - target);
        });
        for (const ContactTable &contact : mechanism.contacts) add(w[contact.impulse] * w[contact.slack] - target);
        for_each_friction([&](const ContactTable &friction, int) {
            for_each_facet(friction, [&](int impulse, int slack) { add(w[impulse] * w[slack] - target); });
            if (friction.is_pyramid()) return;
            Vec3<T> p = cone_product(load3(w + friction.friction_impulse()), load3(w + friction.friction_slack()));
            p.x -= target;
            worst = max(worst, max(abs(p.x), max(abs(p.y), abs(p.z)))), sum += p.x + p.y + p.z;
        });
        return worst;
    }

    // The same of the scaled products: how far they are from being alike.
    T spread(const Problem<T> &problem, const T *w, const T &target) const {
        T worst{};
        auto add = [&](const T &product) { worst = max(worst, abs(product - target)); };
        JointCones<T>::for_each_pair(problem, [&](const JointConeTable &, const JointConeData<T> &, int, int impulse, int slack) {
            add(w[impulse] * w[slack]);
        });
        for (const ContactTable &contact : mechanism.contacts) add(w[contact.impulse] * w[contact.slack]);
        for_each_friction([&](const ContactTable &friction, int c) {
            for_each_facet(friction, [&](int impulse, int slack) { add(w[impulse] * w[slack]); });
            if (friction.is_pyramid()) return;
            const Vec3<T> p = cone_product(scaling[c].point, scaling[c].point);
            worst = max(worst, max(abs(p.x - target), max(abs(p.y), abs(p.z))));
        });
        return worst;
    }

    // Cone variables for the velocities in w with products of about `level`, so that every equation but the balance of momentum nearly
    // holds (NonlinearContact.start), in the lanes of `mask`.
    void start(Problem<T> &problem, T *w, const T &level, const Mask<T> &mask) const {
        JointCones<T>::start(problem, w, level, mask);
        for (const ContactTable &contact : mechanism.contacts) {
            T values[2 * half];
            Vec3<T> v[2], omega[2];
            for (const int i : {0, 1}) {
                const T *twist = w + 6 * (i ? mechanism.pairs[contact.pair].other : contact.body);
                v[i] = load3(twist), omega[i] = load3(twist + 3);
                if (!has_other(contact)) break;
            }
            start(problem, contact, v, omega, level, values);
            store(contact, values, mask, w);
        }
    }

    // Contacts of flying bodies at the gap and slip that gravity and the wrench alone lead to (forecast_flight in path_newton.py).
    void forecast(const Problem<T> &problem, T *w, const T &kappa, const Mask<T> &mask) {
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
        std::fill(flying.begin(), flying.end(), mask);
        T values[2 * half];
        for (const ContactTable &contact : mechanism.contacts) {
            if (!mechanism.is_free[contact.body]) continue;
            const T wide = fall(contact, values);
            const Mask<T> far = select_mask(w[contact.slack] > wide, values[half] > wide, Mask<T>{});
            flying[contact.body] = select_mask(far, flying[contact.body], Mask<T>{});
        }
        for (const ContactTable &contact : mechanism.contacts) {
            if (!mechanism.is_free[contact.body] || !any(flying[contact.body])) continue;
            fall(contact, values);
            store(contact, values, flying[contact.body], w);
        }
    }

    // The cone variables of w moved onto the central path, in the lanes of `mask`: a smoothed projection.
    //   orthant: with c = γ − a s, γ = (c + √(c² + 4κa))/2 and s = κ/γ (Chen and Harker 1993; Kanzow 1996; Smale 1987);
    //   friction: with the height ξ₁ = μγ given, t = β − b η₂₃ is split into β inside the disc of that radius and the slip.
    // a and b only decide how far an impulse jumps where a contact opens or closes, sticks or slips: they are at least a = m/3h and b = m
    // (of the body), and more where other bodies hold it and the last two of Newton's points say so (weight_of in path_maps.py).
    // `before`: in the places of w, Newton's points of the call before, of use in the lanes of `known`; becomes those of w as given.
    void project(Problem<T> &problem, const T &kappa, const Mask<T> &mask, T *w, T *before, const Mask<T> &known) const {
        JointCones<T>::project(problem, kappa, mask, w, before, known);
        const T worth = 1.0 / (1.0 / constant::impulse_weight * problem.timestep());
        auto put = [&](int k, const T &value) { w[k] = select(mask, value, w[k]); };
        auto heavier = [&](const ContactTable &contact) { return mechanism.is_free[contact.body] ? Mask<T>{} : known; };
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            const T gamma = w[contact.impulse], gap = w[contact.slack];
            PathWeight<T> weight;
            weight.add(change(before[contact.impulse], gamma), change(before[contact.slack], gap));
            const T a = weight(worth * contact_mass(problem, contact), heavier(contact)), on_path = orthant_on_path(gamma - a * gap, a, kappa);
            put(contact.impulse, on_path), put(contact.slack, kappa / on_path);
        }
        constexpr int width = 4;
        typename Disc<T>::Point points[width];
        const ContactTable *discs[width];
        int waiting = 0;
        auto finish = [&] {
            Disc<T>::Point::template project<width>(points, kappa, [&](int i, const Vec3<T> &xi, const Vec3<T> &eta) {
                if (i >= waiting) return;
                for (int k = 0; k < 3; ++k) put(discs[i]->friction_impulse() + k, xi[k]), put(discs[i]->friction_slack() + k, eta[k]);
            });
            waiting = 0;
        };
        for_each_friction([&](const ContactTable &friction, int c) {
            const ContactTable &contact = mechanism.contacts[contact_of(c)];
            const T height = coefficient(problem, c) * w[contact.impulse];
            const int impulse = friction.friction_impulse(), slack = friction.friction_slack();
            // (of a pyramid, slips are η − ψ)
            const T psi = friction.is_pyramid() ? change(before[impulse], w[impulse]) : T{};
            PathWeight<T> weight;
            for (int k = 1; k < friction.friction_size(); ++k)
                weight.add(change(before[impulse + k], w[impulse + k]), change(before[slack + k], w[slack + k]) - psi);
            const T nominal = c < mechanism.num_contacts ? contact_mass(problem, contact) : couple_mass(problem, contact);
            const T mass = weight(nominal, heavier(contact));
            if (friction.is_pyramid()) {
                T values[2][1 + most_facets];
                for (int k = 0; k < friction.friction_size(); ++k) {
                    values[0][k] = w[impulse + k], values[1][k] = w[slack + k];
                }
                Pyramid<T>{friction}.project(height, kappa, mass, values[0], values[1]);
                for (int k = 0; k < friction.friction_size(); ++k) put(impulse + k, values[0][k]), put(slack + k, values[1][k]);
            } else {
                const T *xi = w + impulse, *eta = w + slack, radius = max(height, broadcast<T>(constant::least_height));
                // (from outside the disc at no more than about twice the slip of Newton's point: disc_on_path in path_maps.py)
                const T excess = sqrt(xi[1] * xi[1] + xi[2] * xi[2]) - radius, slip = sqrt(eta[1] * eta[1] + eta[2] * eta[2]);
                const T m = max(min(constant::return_weight * nominal, excess / slip), mass);
                points[waiting] = {radius, m, xi[1] - m * eta[1], xi[2] - m * eta[2]};
                discs[waiting++] = &friction;
                if (waiting == width) finish();
            }
        });
        if (!waiting) return;
        for (int i = waiting; i < width; ++i) points[i] = points[0];
        finish();
    }

    // f(friction, its number) of contacts and couples.
    template <class F>
    TD_INLINE void for_each_friction(const F &f) const {
        for (size_t c = 0; c < mechanism.frictions.size(); ++c)
            if (mechanism.frictions[c].friction) f(mechanism.frictions[c], int(c));
    }
    // f(place of the impulse, place of the slack) for the pairs of a pyramid's ψ and β.
    template <class F>
    static TD_INLINE void for_each_facet(const ContactTable &friction, const F &f) {
        if (friction.is_pyramid())
            for (int k = 0; k < friction.friction_size(); ++k) f(friction.friction_impulse() + k, friction.friction_slack() + k);
    }

    // Contact to which a friction belongs.
    TD_INLINE int contact_of(int c) const { return c < mechanism.num_contacts ? c : mechanism.couples[c - mechanism.num_contacts].contact; }

    // Reduced mass of the bodies.
    TD_INLINE T contact_mass(const Problem<T> &problem, const ContactTable &contact) const {
        const T mass = problem.body_parameters(contact.body)[parameter::mass];
        if (!has_other(contact)) return mass;
        const T other = problem.body_parameters(mechanism.pairs[contact.pair].other)[parameter::mass];
        return mass * other / (mass + other);
    }

private:
    const T blank[2 + most_facets] = {};
    static constexpr int half = 2 + most_facets;  // places for the impulses of one contact, and for its slacks

    // Contact, condensed form and coefficient μ of a friction.
    TD_INLINE FrictionData<T> &friction_data(Problem<T> &problem, int c) const {
        if (c < mechanism.num_contacts) return problem.contacts[c];
        return problem.couples[c - mechanism.num_contacts];
    }
    TD_INLINE const T &coefficient(const Problem<T> &problem, int c) const {
        if (c < mechanism.num_contacts) return problem.parameters[mechanism.contacts[c].parameters + parameter::friction];
        return problem.parameters[mechanism.couples[c - mechanism.num_contacts].parameter];
    }

    // (γ, ξ, …, s, η, …) of one contact.
    TD_INLINE void start(const Problem<T> &problem, const ContactTable &contact, const Vec3<T> *twist_v, const Vec3<T> *twist_omega,
                         const T &level, T *values) const {
        const T *p = &problem.parameters[contact.parameters];
        if (contact.pair >= 0) {
            const PairMotion<T> motion = pair_motion(problem, contact, twist_v, twist_omega);
            start_normal(motion.distance, level, values);
            start_friction(contact, p[parameter::friction] * values[0], motion.slip[0], motion.slip[1], level, values + 1);
            for (int k = 0; k < contact.num_couples; ++k) {
                const CoupleTable &couple = mechanism.couples[contact.first_couple + k];
                const T *spin = motion.spin + couple.first_axis();
                start_friction(couple.friction, problem.parameters[couple.parameter] * values[0], spin[0],
                               couple.num_axes() > 1 ? spin[1] : T{}, level, values + 1 + contact.friction_size() + 3 * k);
            }
            return;
        }
        const Vec3<T> &v = *twist_v, &omega = *twist_omega;
        const T h = problem.timestep();
        const BodyPose<T> &pose = problem.bodies[contact.body].pose;
        const Vec3<T> a = (0.5 * h) * omega, normal = load3(p + parameter::normal);
        const Mat3<T> R = rotation_matrix(pose.q * Quat<T>{sqrt(1.0 - dot(a, a)), a});
        const Vec3<T> arm = R * load3(p + parameter::point);
        const T distance = dot(normal, pose.x + h * v + arm) - p[parameter::offset] - p[parameter::radius];
        const Vec3<T> velocity = v + cross(R * omega, arm - p[parameter::radius] * normal);
        const T s1 = dot(load3(p + parameter::tangents), velocity), s2 = dot(load3(p + parameter::tangents + 3), velocity);
        start_normal(distance, level, values);
        start_friction(contact, p[parameter::friction] * values[0], s1, s2, level, values + 1);
    }

    static TD_INLINE void start_normal(const T &distance, const T &level, T *values) {
        values[half] = max(distance, sqrt(level)), values[0] = level / values[half];
    }
    static TD_INLINE void start_friction(const ContactTable &friction, const T &height, const T &s1, const T &s2, const T &level,
                                         T *values) {
        if (friction.is_pyramid()) Pyramid<T>{friction}.start(height, s1, s2, level, values, values + half);
        else if (friction.friction) Disc<T>::start(height, s1, s2, level, values, values + half);
    }

    // q of a plainly linearized product that should change by ρ.
    static TD_INLINE Vec3<T> aim_plain(const Vec3<T> &xi, const Vec3<T> &rho) {
        const Vec3<T> q = arrow_solve(xi, rho);
        return {rho.x / xi.x, q.y, q.z};
    }

    bool has_other(const ContactTable &contact) const {
        return contact.pair >= 0 && mechanism.pairs[contact.pair].other < mechanism.num_bodies;
    }

    // From `start` to w.
    TD_INLINE void store(const ContactTable &contact, const T *values, const Mask<T> &mask, T *w) const {
        auto put = [&](int impulse, int slack, int k) {
            w[impulse] = select(mask, values[k], w[impulse]), w[slack] = select(mask, values[half + k], w[slack]);
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
    TD_INLINE void eliminate(const Problem<T> &problem, const T *w, int c, const T *residual, const Vec3<T> &move) {
        const ContactTable &contact = mechanism.contacts[c];
        ContactDirection<T> &d = direction[c];
        d.slack = move.x + (residual ? residual[contact.impulse] : T{});
        d.gamma = right[c].rho - w[contact.impulse] * d.slack;
        if (contact.stiffness < 0) {
            d.gamma = d.gamma / w[contact.slack];
        } else {
            const T &softness = problem.laws[contact.law].softness;
            d.gamma = d.gamma / (w[contact.slack] + w[contact.impulse] * softness);
            d.slack += softness * d.gamma;
        }
        if (contact.friction)
            eliminate_friction(contact, c, w, problem.contacts[c], problem.parameters[contact.parameters + parameter::friction] * d.gamma,
                               residual, move.y, move.z);
    }

    // Of couple k for the direction x of the bodies (null: they stay), and that of its contact.
    void eliminate_couple(const Problem<T> &problem, const T *w, int k, const T *residual, const T *x) {
        const CoupleTable &couple = mechanism.couples[k];
        T move[2] = {T{}, T{}};
        if (x) couple_spin(problem, k, x, move);
        eliminate_friction(couple.friction, mechanism.num_contacts + k, w, problem.couples[k],
                           problem.parameters[couple.parameter] * direction[couple.contact].gamma, residual, move[0], move[1]);
    }

    // For a change `height` of the cone's height, and changes of the slip.
    TD_INLINE void eliminate_friction(const ContactTable &friction, int c, const T *w, const FrictionData<T> &data, const T &height,
                                      const T *residual, const T &m0, const T &m1) {
        ContactDirection<T> &d = direction[c];
        const int impulse = friction.friction_impulse(), slack = friction.friction_slack();
        const T *row = residual ? residual + impulse : blank;
        if (friction.is_pyramid()) {
            T *d_impulse = &facet_direction[impulse], beta[2];
            const Pyramid<T> pyramid{friction};
            pyramid.eliminate(w + impulse, w + slack, &facet_right[slack], row, height, m0, m1, d_impulse, &facet_direction[slack]);
            pyramid.tangential(d_impulse + 1, beta);
            d.xi.y = beta[0], d.xi.z = beta[1];
            return;
        }
        const Vec3<T> &q = right[c].q;
        const T *N = data.compliance;
        d.xi.x = height - row[0];
        d.eta.y = m0 + row[1], d.eta.z = m1 + row[2];
        const T b0 = q.y - d.eta.y, b1 = q.z - d.eta.z;
        d.xi.y = N[0] * b0 + N[1] * b1 + data.cone_coupling[0] * d.xi.x;
        d.xi.z = N[2] * b0 + N[3] * b1 + data.cone_coupling[1] * d.xi.x;
        d.eta.x = q.x + data.eta_slip[0] * d.eta.y + data.eta_slip[1] * d.eta.z - dot(data.eta_xi, d.xi);
    }
};

}  // namespace torchdojo
