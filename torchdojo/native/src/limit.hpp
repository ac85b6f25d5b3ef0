// Points of the limit κ → 0 from points of the central path at a small κ (limit_maps.py, which says what they are and why).
#pragma once

#include "cone.hpp"

namespace torchdojo {

namespace constant {
constexpr double limit_kappa = 1e-12, limit_path_tol = 0.99;  // LIMIT_KAPPA, LIMIT_PATH_TOL
constexpr double compliance = 1e-10, vanishing = 1e-30;       // COMPLIANCE, VANISHING
}  // namespace constant

template <class T>
class Limit {
public:
    // Moves the cone variables of w to the limit. `problem` has been prepared.
    static void apply(Problem<T> &problem, const Cones<T> &cones, T *w) {
        const MechanismTable &m = problem.mechanism;
        const T per_step = 1.0 / problem.timestep();
        for (const JointConeTable &cone : m.joint_cones) {
            const T mass = problem.cone_mass(cone), worth = cone.kind == JointConeTable::friction ? mass : per_step * mass;
            for (int k = 0; k < cone.pairs(); ++k) pair(w[cone.impulse + k * cone.stride], w[cone.slack + k * cone.stride], worth);
        }
        for (const ContactTable &contact : m.contacts) {
            const T mass = cones.contact_mass(problem, contact);
            T *impulse = w + contact.impulse, *slack = w + contact.slack;
            const Mask<T> pressed = pair(impulse[0], slack[0], per_step * mass);
            if (contact.is_pyramid()) pyramid(contact, pressed, mass, impulse + 1, slack + 1);
            else if (contact.friction) disc(pressed, mass, impulse + 1, slack + 1);
        }
    }

private:
    // Open where the impulse is less than `worth` times the slack; whether it is closed.
    static TD_INLINE Mask<T> pair(T &impulse, T &slack, const T &worth) {
        const Mask<T> closed = impulse > worth * slack;
        slack = select(closed, constant::compliance * impulse / worth, slack);
        impulse = select(closed, impulse, broadcast<T>(constant::vanishing));
        return closed;
    }

    static void pyramid(const ContactTable &contact, const Mask<T> &pressed, const T &mass, T *impulse, T *slack) {
        const T one = broadcast<T>(1.0), inverse = 1.0 / mass;
        for (int i = 0; i <= contact.facets; ++i) {
            pair(impulse[i], slack[i], i ? mass : inverse);
            impulse[i] = select(pressed, impulse[i], i ? broadcast<T>(constant::vanishing) : one);
            slack[i] = select(pressed, slack[i], one);
        }
    }

    static void disc(const Mask<T> &pressed, const T &mass, T *xi, T *eta) {
        const T force = sqrt(xi[1] * xi[1] + xi[2] * xi[2]), slip = sqrt(eta[1] * eta[1] + eta[2] * eta[2]);
        // The small eigenvalue of ξ against the large one of η: their product is κ.
        const T speed = 0.5 * (eta[0] + slip), inverse = 1.0 / max(force, broadcast<T>(std::numeric_limits<double>::min()));
        const Mask<T> sticking = xi[0] - force > mass * speed;
        const T give = constant::compliance / mass, height = xi[0];
        for (int k = 0; k < 3; ++k) {
            const T along = k ? inverse * xi[k] : broadcast<T>(1.0), identity = broadcast<T>(k ? 0.0 : 1.0);
            eta[k] = select(pressed, select(sticking, give * xi[k], k ? -speed * along : speed), identity);
            xi[k] = select(pressed, select(sticking, xi[k], height * along), constant::vanishing * identity);
        }
    }
};

}  // namespace torchdojo
