// Near terms that arrive in a step (torchdojo/engine/near_bounces.py), and the reach from which on they do (`reach_of_step` of near_slots.py).
#pragma once

#include "abi/near_pairs.hpp"
#include "elements/kinematics.hpp"

namespace torchdojo {

// Gap at the start of a step of h below which places of a pair may touch in it, besides the way that bodies travel. bounces: whether the pair
// has restitution.
inline double reach_at_rest(bool bounces, double h) {
    constexpr double reach = constant::near_terms::reach;
    return bounces ? std::max(reach, constant::resting_acceleration * h * h) : reach;
}

// Whether a term (kind, feature, feature) of a pair with restitution arrives in a step of h from a state of all bodies.
inline bool arrives(const NearPairs::Pair &pair, int num_bodies, const double *states, double h, const double *term) {
    const Polytope &a = *pair.cores[0], &b = *pair.cores[1];
    const int numbers[3] = {int(term[0]), int(term[1]), int(term[2])};
    BodyPose<double> now[2], before[2];
    for (const int i : {0, 1}) {
        const int32_t body = i ? pair.other : pair.body;
        now[i] = {{0, 0, 0}, {1, {0, 0, 0}}, {{1, 0, 0, 0, 1, 0, 0, 0, 1}}};
        before[i] = now[i];
        if (body == num_bodies) continue;
        const double *state = states + state_size * body;
        const Quat<double> q = load4(state + 6);
        now[i] = {load3(state), q, rotation_matrix(q)};
        before[i] = pose_before(now[i], h, load3(state + 3), load3(state + 10));
    }
    const auto term_at = [&](const BodyPose<double> *poses) {
        return near_term<double>(a, b, {{poses[0].x, poses[1].x}, {poses[0].R, poses[1].R}}, numbers, 0.0);
    };
    const auto gap = [&](const NearTerm<double> &at) { return numbers[0] == crossing_term ? at.raw : at.gap; };
    const NearTerm<double> start = term_at(now);
    if (!(start.weight > 0)) return false;
    const double approach = gap(term_at(before)) - gap(start), slow = constant::resting_acceleration * h * h;
    return approach > slow && gap(start) - approach < slow;
}

}  // namespace torchdojo
