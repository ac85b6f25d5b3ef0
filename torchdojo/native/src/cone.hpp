// Contacts inside the interior-point method: their complementarity conditions, linearized, and condensed into the body.
//
// Unknowns of a contact: impulses (γ, ξ), slacks (s, η). Its rows, with J_n, J_t the derivatives of distance and slip by the body's twist δ:
//     J_n δ − δs = −r₁       δξ₁ − μ δγ = −r₂       J_t δ − δη₂₃ = −r₃₄       s δγ + γ δs = ρ₀       δη + H δξ = q
// Elimination leaves (δγ, δξ₂₃) = (γ̂, ξ̂₂₃) − K (J_n, J_t) δ with N = H₂₂⁻¹, m = −N H₂₁, K = [[γ/s, 0], [μ (γ/s) m, N]], and the
// body's block gains B K J; then δη₁ = p + a·δη₂₃ − b·δξ. The last row, for λ∘(W δξ + W⁻¹ δη) = ρ or for ξ∘δη + η∘δξ = ρ:
//   Nesterov-Todd scaled (directions):  H = W²,  q = W (λ⁻¹∘ρ); a, b, p from the first row of H⁻¹δη + δξ = W⁻¹(λ⁻¹∘ρ).
//   plain (derivatives, continuation; on the path the same):  H = A(ξ)⁻¹A(η) with the arrow matrices A,  q = A(ξ)⁻¹ρ. In closed form, with
//     Y = (I + η₂₃ξ₂₃ᵀ/(ξ₁η₁ − ξ₂₃·η₂₃))/η₁:  Nᵀ = (ξ₁ I − ξ₂₃ξ₂₃ᵀ/ξ₁) Y,  m = −Yᵀ (η₂₃ − η₁ξ₂₃/ξ₁); a = −ξ₂₃/ξ₁, b = η/ξ₁, p = ρ₁/ξ₁.
// Vandenberghe 2010, "The CVXOPT linear and quadratic cone program solvers", section 4.2; Nocedal and Wright 2006, section 19.3.
#pragma once

#include "pair.hpp"
#include "pyramid.hpp"

namespace torchdojo {

// √(x₁² − |x₂₃|²) of an interior point
template <class T>
TD_INLINE T hyperbolic_norm(const Vec3<T> &x) {
    const T tail = sqrt(x.y * x.y + x.z * x.z);
    return sqrt(max((x.x - tail) * (x.x + tail), broadcast<T>(std::numeric_limits<double>::min())));
}

template <class T>
TD_INLINE Vec3<T> cone_product(const Vec3<T> &a, const Vec3<T> &b) {
    return {dot(a, b), a.x * b.y + b.x * a.y, a.x * b.z + b.x * a.z};
}

// y with x∘y = ρ
template <class T>
TD_INLINE Vec3<T> arrow_solve(const Vec3<T> &x, const Vec3<T> &rho) {
    const T inverse = 1.0 / x.x, y = (x.x * rho.x - x.y * rho.y - x.z * rho.z) / (x.x * x.x - x.y * x.y - x.z * x.z);
    return {y, (rho.y - y * x.y) * inverse, (rho.z - y * x.z) * inverse};
}

template <class T>
struct ConeScaling {
    Vec3<T> v, middle, point;         // W = θ (2 v vᵀ − diag(1, −1, −1)), H = θ² (2 m mᵀ − diag(1, −1, −1)), λ = W ξ
    T theta;

    TD_INLINE Vec3<T> weigh(const Vec3<T> &x) const {
        const T twice = 2.0 * dot(v, x);
        return {theta * (twice * v.x - x.x), theta * (twice * v.y + x.y), theta * (twice * v.z + x.z)};
    }
    TD_INLINE Vec3<T> unweigh(const Vec3<T> &x) const {  // W⁻¹ x
        const T twice = 2.0 * (v.x * x.x - v.y * x.y - v.z * x.z), inverse = 1.0 / theta;
        return {inverse * (twice * v.x - x.x), inverse * (x.y - twice * v.y), inverse * (x.z - twice * v.z)};
    }
};

template <class T>
TD_INLINE ConeScaling<T> cone_scaling(const Vec3<T> &xi, const Vec3<T> &eta) {
    ConeScaling<T> s;
    const T xi_norm = hyperbolic_norm(xi), eta_norm = hyperbolic_norm(eta);
    const Vec3<T> a = (1.0 / xi_norm) * xi, b = (1.0 / eta_norm) * eta;
    const T inverse = 1.0 / sqrt(2.0 * (1.0 + dot(a, b)));
    s.middle.y = (b.y - a.y) * inverse, s.middle.z = (b.z - a.z) * inverse;
    s.middle.x = sqrt(1.0 + s.middle.y * s.middle.y + s.middle.z * s.middle.z);
    const T root = 1.0 / sqrt(2.0 * (s.middle.x + 1.0));
    s.v = {(s.middle.x + 1.0) * root, s.middle.y * root, s.middle.z * root};
    s.theta = sqrt(eta_norm / xi_norm);
    s.point = s.weigh(xi);
    return s;
}

// Right-hand side of the complementarity rows of one contact: ρ₀, and (p, q₂₃) of the cone (see `eliminate`).
template <class T>
struct ContactRight {
    T rho;
    Vec3<T> q;
};

template <class T>
struct ContactDirection {
    T gamma, slack;
    Vec3<T> xi, eta;
};

namespace constant {
constexpr double distant = 100.0;       // times √(κ h/m) is wide (DISTANT in path_newton.py)
}

template <class T>
struct Cones {
    const MechanismTable &mechanism;
    std::vector<ConeScaling<T>> scaling;
    std::vector<ContactRight<T>> right;
    std::vector<ContactDirection<T>> direction;
    std::vector<Mask<T>> flying;      // per body
    std::vector<T> facet_right, facet_direction;  // of pyramids, in the places of w: right-hand sides of the products, and direction

    explicit Cones(const MechanismTable &m)
        : mechanism(m), scaling(m.num_contacts), right(m.num_contacts), direction(m.num_contacts), flying(m.num_bodies),
          facet_right(m.num_unknowns), facet_direction(m.num_unknowns) {}

    // K of all contacts at w; the plain one for derivatives, the scaled one for directions.
    template <bool plain>
    void condense(Problem<T> &problem, const T *w) {
        JointCones<T>::condense(problem, w);
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            ContactData<T> &data = problem.contacts[c];
            const T gamma = w[contact.impulse], s = w[contact.slack];
            data.stiffness = gamma / (contact.stiffness < 0 ? s : s + gamma * problem.laws[contact.law].softness);
            if (!contact.friction) continue;
            const T mu = problem.parameters[contact.parameters + parameter::friction];
            if (contact.is_pyramid()) {
                Pyramid<T>{contact}.condense(w + contact.impulse + 1, w + contact.slack + 1, data.compliance, data.cone_coupling);
                for (int i = 0; i < 2; ++i) data.coupling[i] = mu * data.stiffness * data.cone_coupling[i];
                continue;
            }
            const Vec3<T> xi = load3(w + contact.impulse + 1), eta = load3(w + contact.slack + 1);
            T m[2], *N = data.compliance;
            if constexpr (plain) {
                const T scale = 1.0 / eta.x, y = scale / (xi.x * eta.x - xi.y * eta.y - xi.z * eta.z), ratio = 1.0 / xi.x;
                const T Y[4] = {scale + y * eta.y * xi.y, y * eta.y * xi.z, y * eta.z * xi.y, scale + y * eta.z * xi.z};
                const T P[4] = {xi.x - ratio * xi.y * xi.y, -ratio * xi.y * xi.z, -ratio * xi.y * xi.z, xi.x - ratio * xi.z * xi.z};
                for (int i = 0; i < 2; ++i)
                    for (int j = 0; j < 2; ++j) N[2 * j + i] = P[2 * i] * Y[j] + P[2 * i + 1] * Y[2 + j];
                const T g[2] = {eta.y - eta.x * ratio * xi.y, eta.z - eta.x * ratio * xi.z};
                for (int i = 0; i < 2; ++i) m[i] = -(Y[i] * g[0] + Y[2 + i] * g[1]);
                data.eta_slip[0] = -ratio * xi.y, data.eta_slip[1] = -ratio * xi.z;
                data.eta_xi = ratio * eta;
            } else {
                const ConeScaling<T> &s = scaling[c] = cone_scaling(xi, eta);
                // With u = m₂₃, H₂₂ = θ² (I + 2uuᵀ). Far out on the boundary |u| is 1e4 and more: nothing here may cancel, or the direction
                // leaves the cone (with H₂₂⁻¹ H₂₁ multiplied out, cold starts at κ = 1e-9 failed).
                const T u0 = s.middle.y, u1 = s.middle.z, stretch = 1.0 / (1.0 + 2.0 * (u0 * u0 + u1 * u1));
                const T scale = stretch / (s.theta * s.theta), ratio = 2.0 * s.middle.x * stretch;
                N[0] = scale * (1.0 + 2.0 * u1 * u1), N[1] = N[2] = -2.0 * scale * u0 * u1, N[3] = scale * (1.0 + 2.0 * u0 * u0);
                m[0] = -ratio * u0, m[1] = -ratio * u1;
                data.eta_slip[0] = ratio * u0, data.eta_slip[1] = ratio * u1;
                data.eta_xi = {s.theta * s.theta * stretch, T{}, T{}};
            }
            for (int i = 0; i < 2; ++i) data.coupling[i] = mu * data.stiffness * m[i], data.cone_coupling[i] = m[i];
        }
    }

    // Products aimed at: `target` e, minus the second-order term of `second` where that is not null (0 or 1 per lane in `weight`).
    void aim(Problem<T> &problem, const T *w, const T &target, const T *weight) {
        JointCones<T>::aim(problem, w, target, weight);
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            ContactRight<T> &r = right[c];
            const ContactDirection<T> &d = direction[c];
            r.rho = target - w[contact.impulse] * w[contact.slack];
            if (weight) r.rho -= *weight * d.gamma * d.slack;
            for_each_facet(contact, [&](int impulse, int slack) {
                facet_right[slack] = target - w[impulse] * w[slack];
                if (weight) facet_right[slack] -= *weight * facet_direction[impulse] * facet_direction[slack];
            });
            if (contact.friction != 1) continue;
            const ConeScaling<T> &s = scaling[c];
            Vec3<T> rho = -cone_product(s.point, s.point);
            rho.x += target;
            if (weight) rho = rho - *weight * cone_product(s.weigh(d.xi), s.unweigh(d.eta));
            const Vec3<T> t = arrow_solve(s.point, rho);
            const Vec3<T> q = s.weigh(t);
            r.q = {s.theta * s.theta * s.unweigh(t).x / (1.0 + 2.0 * (s.middle.y * s.middle.y + s.middle.z * s.middle.z)), q.y, q.z};
        }
    }

    // With the matrix of the problem, which is factored first where it is not yet: x becomes the direction of bodies and multipliers, `direction` that of the contacts. It
    // removes `residual` (in the places of w; null: the equations are left as they are) and fills `right`.
    void solve(Problem<T> &problem, const T *w, const T *residual, T *x, bool factored) {
        for (int i = 0; i < mechanism.num_bodies; ++i)
            for (int k = 0; k < 6; ++k) x[mechanism.bodies[i].right + k] = residual ? -residual[6 * i + k] : T{};
        for (const JointTable &joint : mechanism.joints)
            for (int k = 0; k < joint.size; ++k) x[joint.right + k] = residual && k < joint.held() ? -residual[joint.row + k] : T{};
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
    }

    void set_direction(Problem<T> &problem, const T *delta) {
        JointCones<T>::set_direction(problem, delta);
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            ContactDirection<T> &d = direction[c];
            d.gamma = delta[contact.impulse], d.slack = delta[contact.slack];
            for_each_facet(contact, [&](int impulse, int slack) {
                facet_direction[impulse] = delta[impulse], facet_direction[slack] = delta[slack];
            });
            if (contact.friction == 1) d.xi = load3(delta + contact.impulse + 1), d.eta = load3(delta + contact.slack + 1);
        }
    }

    // Largest inverse step to the boundary of the cones along `direction`.
    T inverse_step(const Problem<T> &problem, const T *w) const {
        T inverse{};
        JointCones<T>::for_each_pair(problem, [&](const JointConeTable &, const JointConeData<T> &d, int k, int impulse, int slack) {
            inverse = max(inverse, max(-d.impulse[k] / w[impulse], -d.slack[k] / w[slack]));
        });
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            const ContactDirection<T> &d = direction[c];
            inverse = max(inverse, max(-d.gamma / w[contact.impulse], -d.slack / w[contact.slack]));
            for_each_facet(contact, [&](int impulse, int slack) {
                inverse = max(inverse, max(-facet_direction[impulse] / w[impulse], -facet_direction[slack] / w[slack]));
            });
            if (contact.friction != 1) continue;
            inverse = max(inverse, max(cone_limit(load3(w + contact.impulse + 1), d.xi), cone_limit(load3(w + contact.slack + 1), d.eta)));
        }
        return inverse;
    }

    // Mean over cones of impulseᵀ slack at w + α·direction (α null: at w).
    T mean_product(const Problem<T> &problem, const T *w, const T *alpha) const {
        T sum{};
        JointCones<T>::for_each_pair(problem, [&](const JointConeTable &, const JointConeData<T> &d, int k, int impulse, int slack) {
            sum += alpha ? (w[impulse] + *alpha * d.impulse[k]) * (w[slack] + *alpha * d.slack[k]) : w[impulse] * w[slack];
        });
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            const ContactDirection<T> &d = direction[c];
            T gamma = w[contact.impulse], s = w[contact.slack];
            if (alpha) gamma += *alpha * d.gamma, s += *alpha * d.slack;
            sum += gamma * s;
            for_each_facet(contact, [&](int impulse, int slack) {
                sum += alpha ? (w[impulse] + *alpha * facet_direction[impulse]) * (w[slack] + *alpha * facet_direction[slack])
                             : w[impulse] * w[slack];
            });
            if (contact.friction != 1) continue;
            Vec3<T> xi = load3(w + contact.impulse + 1), eta = load3(w + contact.slack + 1);
            if (alpha) xi = xi + *alpha * d.xi, eta = eta + *alpha * d.eta;
            sum += dot(xi, eta);
        }
        return sum / double(mechanism.num_cones > 0 ? mechanism.num_cones : 1);
    }

    // Largest deviation of the products from `target` e, and the sum of all of them (not finite where one is not).
    T violation(const Problem<T> &problem, const T *w, const T &target, T &sum) const {
        T worst{};
        JointCones<T>::for_each_pair(problem, [&](const JointConeTable &, const JointConeData<T> &, int, int impulse, int slack) {
            const T gap = w[impulse] * w[slack] - target;
            worst = max(worst, abs(gap)), sum += gap;
        });
        for (const ContactTable &contact : mechanism.contacts) {
            const T gap = w[contact.impulse] * w[contact.slack] - target;
            worst = max(worst, abs(gap)), sum += gap;
            for_each_facet(contact, [&](int impulse, int slack) {
                const T product = w[impulse] * w[slack] - target;
                worst = max(worst, abs(product)), sum += product;
            });
            if (contact.friction != 1) continue;
            Vec3<T> p = cone_product(load3(w + contact.impulse + 1), load3(w + contact.slack + 1));
            p.x -= target;
            worst = max(worst, max(abs(p.x), max(abs(p.y), abs(p.z)))), sum += p.x + p.y + p.z;
        }
        return worst;
    }

    // The same of the scaled products: how far they are from being alike.
    T spread(const Problem<T> &problem, const T *w, const T &target) const {
        T worst{};
        JointCones<T>::for_each_pair(problem, [&](const JointConeTable &, const JointConeData<T> &, int, int impulse, int slack) {
            worst = max(worst, abs(w[impulse] * w[slack] - target));
        });
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            worst = max(worst, abs(w[contact.impulse] * w[contact.slack] - target));
            for_each_facet(contact, [&](int impulse, int slack) { worst = max(worst, abs(w[impulse] * w[slack] - target)); });
            if (contact.friction != 1) continue;
            const Vec3<T> p = cone_product(scaling[c].point, scaling[c].point);
            worst = max(worst, max(abs(p.x - target), max(abs(p.y), abs(p.z))));
        }
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

    // The cone variables at w + α·direction moved onto the central path, in the lanes of `mask`: a smoothed projection.
    //   orthant: with c = γ − a s, γ = (c + √(c² + 4κa))/2 and s = κ/γ (Chen and Harker 1993; Kanzow 1996; Smale 1987);
    //   friction: with the height ξ₁ = μγ given, t = β − b η₂₃ is split into β inside the disc of that radius and the slip.
    // a and b only decide how far an impulse jumps where a contact opens or closes, sticks or slips: a = m/3h, b = m (of the body; for
    // quadrupeds, ants and humanoids within a factor of 3 of the best, and twice that or more is bad for b).
    void project(Problem<T> &problem, const T *w, const T &alpha, const T &kappa, const Mask<T> &mask, T *to) const {
        JointCones<T>::project(problem, w, alpha, kappa, mask, to);
        const T third = 1.0 / (3.0 * problem.timestep());
        for (int i = 0; i < mechanism.num_contacts; ++i) {
            const ContactTable &contact = mechanism.contacts[i];
            const ContactDirection<T> &d = direction[i];
            const T mass = contact_mass(problem, contact);
            const T *impulse = w + contact.impulse, *slack = w + contact.slack;
            T *new_impulse = to + contact.impulse, *new_slack = to + contact.slack;
            const T a = third * mass, gamma = orthant_on_path(impulse[0] + alpha * d.gamma - a * (slack[0] + alpha * d.slack), a, kappa);
            new_impulse[0] = select(mask, gamma, new_impulse[0]), new_slack[0] = select(mask, kappa / gamma, new_slack[0]);
            if (contact.is_pyramid()) {
                T values[2][1 + most_facets];
                for (int k = 1; k < contact.size(); ++k) {
                    values[0][k - 1] = impulse[k] + alpha * facet_direction[contact.impulse + k];
                    values[1][k - 1] = slack[k] + alpha * facet_direction[contact.slack + k];
                }
                const T mu = problem.parameters[contact.parameters + parameter::friction];
                Pyramid<T>{contact}.project(mu * gamma, kappa, mass, values[0], values[1]);
                for (int k = 1; k < contact.size(); ++k) {
                    new_impulse[k] = select(mask, values[0][k - 1], new_impulse[k]);
                    new_slack[k] = select(mask, values[1][k - 1], new_slack[k]);
                }
            }
            if (contact.friction != 1) continue;
            const T mu = problem.parameters[contact.parameters + parameter::friction];
            const T height = max(mu * gamma, broadcast<T>(constant::least_height)), inverse_height = 1.0 / height;
            const T t1 = impulse[2] + alpha * d.xi.y - mass * (slack[2] + alpha * d.eta.y);
            const T t2 = impulse[3] + alpha * d.xi.z - mass * (slack[3] + alpha * d.eta.z);
            const T length = sqrt(max(t1 * t1 + t2 * t2, broadcast<T>(std::numeric_limits<double>::min()))), base = kappa * inverse_height;
            const T gap = disc_gap(length * inverse_height, base * inverse_height * mass), inside = (1.0 - gap) / length;
            const T eta = base / (gap * (2.0 - gap)), force = height * inside, slip = -eta * inside;
            const T values[6] = {height, force * t1, force * t2, eta, slip * t1, slip * t2};
            for (int k = 0; k < 3; ++k) {
                new_impulse[1 + k] = select(mask, values[k], new_impulse[1 + k]);
                new_slack[1 + k] = select(mask, values[3 + k], new_slack[1 + k]);
            }
        }
    }

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

    // f(place of the impulse, place of the slack) for the pairs of a pyramid's ψ and β.
    template <class F>
    static TD_INLINE void for_each_facet(const ContactTable &contact, const F &f) {
        if (contact.is_pyramid())
            for (int k = 1; k < contact.size(); ++k) f(contact.impulse + k, contact.slack + k);
    }

    // (γ, ξ, …, s, η, …) of one contact.
    TD_INLINE void start(const Problem<T> &problem, const ContactTable &contact, const Vec3<T> *twist_v, const Vec3<T> *twist_omega,
                         const T &level, T *values) const {
        const T *parameters = &problem.parameters[contact.parameters];
        if (contact.pair >= 0) {
            T distance, s1, s2;
            pair_start(problem, contact, twist_v, twist_omega, distance, s1, s2);
            return start(contact, parameters[parameter::friction], distance, s1, s2, level, values);
        }
        const Vec3<T> &v = *twist_v, &omega = *twist_omega;
        const T h = problem.timestep();
        const BodyPose<T> &pose = problem.bodies[contact.body].pose;
        const T *p = &problem.parameters[contact.parameters];
        const Vec3<T> a = (0.5 * h) * omega, normal = load3(p + parameter::normal);
        const Mat3<T> R = rotation_matrix(pose.q * Quat<T>{sqrt(1.0 - dot(a, a)), a});
        const Vec3<T> arm = R * load3(p + parameter::point);
        const T distance = dot(normal, pose.x + h * v + arm) - p[parameter::offset] - p[parameter::radius];
        const Vec3<T> velocity = v + cross(R * omega, arm - p[parameter::radius] * normal);
        const T s1 = dot(load3(p + parameter::tangents), velocity), s2 = dot(load3(p + parameter::tangents + 3), velocity);
        start(contact, p[parameter::friction], distance, s1, s2, level, values);
    }

    TD_INLINE void start(const ContactTable &contact, const T &mu, const T &distance, const T &s1, const T &s2, const T &level,
                         T *values) const {
        const T gap = max(distance, sqrt(level));
        values[0] = level / gap, values[half] = gap;
        if (!contact.friction) return;
        if (contact.is_pyramid()) return Pyramid<T>{contact}.start(mu * values[0], s1, s2, level, values + 1, values + half + 1);
        const T speed = s1 * s1 + s2 * s2, height = max(mu * values[0], level);
        const T eta = (level + sqrt(level * level + 4.0 * height * height * speed)) / (2.0 * height);
        const T scale = level / (eta * eta - speed);
        values[1] = scale * eta, values[2] = -scale * s1, values[3] = -scale * s2;
        values[half + 1] = eta, values[half + 2] = s1, values[half + 3] = s2;
    }

    bool has_other(const ContactTable &contact) const {
        return contact.pair >= 0 && mechanism.pairs[contact.pair].other < mechanism.num_bodies;
    }

    TD_INLINE void store(const ContactTable &contact, const T *values, const Mask<T> &mask, T *w) const {
        for (int k = 0; k < contact.size(); ++k) {
            T &impulse = w[contact.impulse + k], &slack = w[contact.slack + k];
            impulse = select(mask, values[k], impulse), slack = select(mask, values[half + k], slack);
        }
    }

    // Direction of contact c for the derivatives `move` of distance and slip along the body's direction.
    TD_INLINE void eliminate(const Problem<T> &problem, const T *w, int c, const T *residual, const Vec3<T> &move) {
        const ContactTable &contact = mechanism.contacts[c];
        const ContactData<T> &data = problem.contacts[c];
        const ContactRight<T> &r = right[c];
        ContactDirection<T> &d = direction[c];
        const T *row = residual ? residual + contact.impulse : blank;
        d.slack = move.x + row[0];
        d.gamma = r.rho - w[contact.impulse] * d.slack;
        if (contact.stiffness < 0) {
            d.gamma = d.gamma / w[contact.slack];
        } else {
            const T &softness = problem.laws[contact.law].softness;
            d.gamma = d.gamma / (w[contact.slack] + w[contact.impulse] * softness);
            d.slack += softness * d.gamma;
        }
        if (contact.is_pyramid()) {
            T *d_impulse = &facet_direction[contact.impulse + 1], beta[2];
            const Pyramid<T> pyramid{contact};
            pyramid.eliminate(w + contact.impulse + 1, w + contact.slack + 1, &facet_right[contact.slack + 1], row + 1,
                              problem.parameters[contact.parameters + parameter::friction] * d.gamma, move.y, move.z, d_impulse,
                              &facet_direction[contact.slack + 1]);
            pyramid.tangential(d_impulse + 1, beta);
            d.xi.y = beta[0], d.xi.z = beta[1];
        }
        if (contact.friction != 1) return;
        const T *N = data.compliance;
        d.xi.x = problem.parameters[contact.parameters + parameter::friction] * d.gamma - row[1];
        d.eta.y = move.y + row[2], d.eta.z = move.z + row[3];
        const T b0 = r.q.y - d.eta.y, b1 = r.q.z - d.eta.z;
        d.xi.y = N[0] * b0 + N[1] * b1 + data.cone_coupling[0] * d.xi.x;
        d.xi.z = N[2] * b0 + N[3] * b1 + data.cone_coupling[1] * d.xi.x;
        d.eta.x = r.q.x + data.eta_slip[0] * d.eta.y + data.eta_slip[1] * d.eta.z - dot(data.eta_xi, d.xi);
    }

    // 1/α at which x + α d leaves the cone: the most negative eigenvalue of d in the frame in which x is the identity.
    static TD_INLINE T cone_limit(const Vec3<T> &x, const Vec3<T> &d) {
        const T inverse = 1.0 / hyperbolic_norm(x);
        const Vec3<T> a = inverse * x, b = inverse * d;
        const T first = a.x * b.x - a.y * b.y - a.z * b.z, ratio = (first + b.x) / (a.x + 1.0);
        const T y = b.y - ratio * a.y, z = b.z - ratio * a.z;
        return sqrt(y * y + z * z) - first;
    }
};

}  // namespace torchdojo
