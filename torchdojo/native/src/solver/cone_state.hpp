// Impulses and slacks of all cones: their places in w, the right-hand sides of their products, and their direction.
#pragma once

#include "elements/disc.hpp"
#include "solver/problem.hpp"

namespace torchdojo {

template <class T>
struct ConeState {
    struct Pair {
        int impulse, slack;
    };
    struct Second {  // a second-order cone: three places of the impulse and of the slack, and its number among the frictions
        int impulse, slack, friction;
    };
    const MechanismTable &mechanism;
    std::vector<Pair> pairs;  // limits and frictions of joints, gaps of contacts, and ψ and β of pyramids
    std::vector<Second> discs;
    std::vector<ConeScaling<T>> scaling;  // per friction, in the lanes of `scaled`
    Mask<T> early{};                      // lanes in one of the first iterations of their attempt
    Mask<T> scaled{};                     // lanes whose products are linearized in scaled variables, the others plainly
    std::vector<T> right;                 // in the places of slacks: ρ of pairs, (p, q₂₃) of discs (see contact_cone.hpp)
    std::vector<T> direction;             // in the places of w

    explicit ConeState(const MechanismTable &m)
        : mechanism(m), scaling(m.frictions.size()), right(m.num_unknowns), direction(m.num_unknowns), blank(m.num_unknowns) {
        for (const JointConeTable &cone : m.joint_cones)
            for (int k = 0; k < cone.pairs(); ++k) pairs.push_back({cone.impulse + k * cone.stride, cone.slack + k * cone.stride});
        for (const ContactTable &contact : m.contacts) pairs.push_back({contact.impulse, contact.slack});
        for_each_friction([&](const ContactTable &friction, int c) {
            const int impulse = friction.friction_impulse(), slack = friction.friction_slack();
            if (!friction.is_pyramid()) return discs.push_back({impulse, slack, c});
            for (int k = 0; k < friction.friction_size(); ++k) pairs.push_back({impulse + k, slack + k});
        });
    }

    // Calls f(friction, its number) for contacts, then for couples.
    template <class F>
    TD_INLINE void for_each_friction(const F &f) const {
        for (size_t c = 0; c < mechanism.frictions.size(); ++c)
            if (mechanism.frictions[c].friction) f(mechanism.frictions[c], int(c));
    }

    // Residual of the equations from row `impulse` on, or zeros if the equations are left as they are.
    TD_INLINE const T *rows(const T *residual, int impulse) const { return (residual ? residual : blank.data()) + impulse; }

private:
    const std::vector<T> blank;
};

}  // namespace torchdojo
