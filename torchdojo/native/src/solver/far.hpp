// Contacts that are far from touching: their variables follow from the next configuration in closed form.
//
// On the central path s = φ⁺, γ = κ/φ⁺, ξ₁ = μγ, and the slip fixes η and ξ (Disc::start), whatever the rest of the mechanism does. So a
// contact whose gap is wide takes these values wherever the equations are evaluated, in place of a direction and a projection. Its impulse
// and its derivative stay in the equations, and the path of all κ is what it was. A contact is far from the start of a step from a warm
// start until its gap falls below half the width, in each lane by itself; what all lanes leave out costs nothing.
#pragma once

#include "elements/spatial.hpp"
#include "solver/cone_state.hpp"

namespace torchdojo {

namespace constant {
constexpr double far_width = 20.0;  // gap, in √κ, above which a contact is far; the impulse there is κ/φ = √κ/20
}  // namespace constant

template <class T>
class FarContacts {
public:
    explicit FarContacts(const MechanismTable &m) : mechanism(m) {
        for (int c = 0; c < m.num_contacts; ++c)
            if (const ContactTable &contact = m.contacts[c]; !contact.is_pyramid() && contact.stiffness < 0 && !contact.num_couples)
                eligible.push_back(c);
    }

    T curvature{}, slip_curvature{};  // sums of second derivatives of impulses by gaps and by slips, for Foresight

    static void reset(ConeState<T> &cones) {
        for (auto &far : cones.far) far = {};
    }

    // Decides in the lanes of `fresh`, and goes on in those of `kept`, of `active` ones. Bodies have been placed at w. Returns the lanes in
    // which a contact is not far any more.
    Mask<T> update(ConeState<T> &cones, const Problem<T> &problem, const SpatialBody<T> *bodies, T *w, const T &kappa, const Mask<T> &fresh,
                   const Mask<T> &kept, const Mask<T> &active) {
        const T width = constant::far_width * sqrt(kappa);
        Mask<T> nearer{};
        curvature = slip_curvature = T{};
        for (const int c : eligible) {
            const ContactTable &contact = mechanism.contacts[c];
            Mask<T> &far = cones.far[c].lanes;
            const Mask<T> wide = w[contact.slack] > width;
            const Mask<T> candidates = select_mask(fresh, wide, select_mask(kept, far, Mask<T>{}));
            if (!any(candidates)) {
                far = Mask<T>{}, cones.far[c].all = false;
                continue;
            }
            T gap = settle(problem, contact, bodies[contact.body], w, kappa, candidates);
            if (problem.overlaps && problem.laws[contact.law].overlaps) gap = select(problem.laws[contact.law].shift > T{}, T{}, gap);
            far = select_mask(gap > 0.5 * width, candidates, Mask<T>{});
            nearer = select_mask(candidates, select_mask(far, nearer, candidates), nearer);
            cones.far[c].all = !any(select_mask(far, Mask<T>{}, active));
            const T gamma = w[contact.impulse], mu = contact.friction ? problem.parameters[contact.parameters + parameter::friction] : T{};
            const T bend = select(far, gamma * gamma * gamma / (kappa * kappa), T{});
            curvature += bend, slip_curvature += mu * mu * mu * bend;
        }
        return nearer;
    }

    // The values at the poses at which the bodies of the lanes of `mask` have been placed.
    void settle(const ConeState<T> &cones, const Problem<T> &problem, const SpatialBody<T> *bodies, T *w, const T &kappa,
                const Mask<T> &mask) const {
        for (const int c : eligible) {
            const Mask<T> lanes = select_mask(mask, cones.far[c].lanes, Mask<T>{});
            const ContactTable &contact = mechanism.contacts[c];
            if (any(lanes)) settle(problem, contact, bodies[contact.body], w, kappa, lanes);
        }
    }

private:
    const MechanismTable &mechanism;
    std::vector<int> eligible;

    // Returns the gap.
    static TD_INLINE T settle(const Problem<T> &problem, const ContactTable &contact, const SpatialBody<T> &own, T *w, const T &kappa,
                              const Mask<T> &lanes) {
        const BodyData<T> &body = problem.bodies[contact.body];
        const T *p = &problem.parameters[contact.parameters];
        const Vec3<T> n = load3(p + parameter::normal), arm = body.next.R * load3(p + parameter::point);
        const T gap = dot(n, body.next.x + arm) - p[parameter::offset] - p[parameter::radius];
        const T slack = max(gap, sqrt(kappa)), gamma = kappa / slack;
        const auto put = [&](int place, const T &value) { w[place] = select(lanes, value, w[place]); };
        put(contact.impulse, gamma), put(contact.slack, slack);
        if (!contact.friction) return gap;
        const Vec3<T> velocity = load3(w + 6 * contact.body) + cross(own.omega, arm - p[parameter::radius] * n);
        const T s1 = dot(load3(p + parameter::tangents), velocity), s2 = dot(load3(p + parameter::tangents + 3), velocity);
        const T height = max(p[parameter::friction] * gamma, broadcast<T>(constant::least_height)), base = kappa / height;
        const T first = 0.5 * (base + sqrt(base * base + 4.0 * (s1 * s1 + s2 * s2))), share = height / first;
        const int impulse = contact.friction_impulse(), eta = contact.friction_slack();
        put(impulse, height), put(impulse + 1, -share * s1), put(impulse + 2, -share * s2);
        put(eta, first), put(eta + 1, s1), put(eta + 2, s2);
        return gap;
    }
};

}  // namespace torchdojo
