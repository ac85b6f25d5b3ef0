// Points of the limit κ → 0 from points of the central path at a small κ. elements/hard_maps.py defines these points and gives the reason.
#pragma once

#include "solver/cones.hpp"

namespace torchdojo {

template <class T>
class Limit {
public:
    // Moves the cone variables of w to the hard limit. `give`, in the places of the impulses, becomes the compliance of closed pairs and of
    // slips that stick, slack over impulse, and zero elsewhere. `problem` is prepared.
    static void apply(Problem<T> &problem, const Cones<T> &cones, T *w, T *give) {
        const MechanismTable &m = problem.mechanism;
        const T per_step = 1.0 / problem.timestep();
        for (const JointConeTable &cone : m.joint_cones) {
            const T mass = problem.cone_mass(cone), threshold = cone.on_rate() ? mass : per_step * mass;
            for (int k = 0; k < cone.pairs(); ++k) {
                const int place = cone.impulse + k * cone.stride;
                pair(w[place], w[cone.slack + k * cone.stride], threshold, constant::compliance, give[place]);
            }
        }
        for (const ContactTable &contact : m.contacts)
            pair(w[contact.impulse], w[contact.slack], per_step * ContactCones<T>::mass(problem, contact), constant::compliance,
                 give[contact.impulse]);
        cones.for_each_friction([&](const ContactTable &friction, int c) {
            const ContactTable &contact = m.contacts[ContactCones<T>::contact_of(m, c)];
            const T mass = c < m.num_contacts ? ContactCones<T>::mass(problem, contact) : couple_mass(problem, contact);
            const Mask<T> pressed = give[contact.impulse] > T{};
            const int impulse = friction.friction_impulse(), slack = friction.friction_slack();
            if (friction.is_pyramid()) pyramid(friction, pressed, mass, w + impulse, w + slack, give + impulse);
            else disc(pressed, mass, w + impulse, w + slack, give + impulse);
        });
    }

    // Makes a contact breaking in the lanes of `mask`.
    static void open(const MechanismTable &m, const ContactTable &contact, const Mask<T> &mask, T *w, T *give) {
        const T one = broadcast<T>(1.0), vanishing = broadcast<T>(constant::vanishing);
        auto put = [&](int impulse, int slack, const T &new_impulse, const T &new_slack) {
            w[impulse] = select(mask, new_impulse, w[impulse]);
            w[slack] = select(mask, new_slack, w[slack]);
            give[impulse] = select(mask, T{}, give[impulse]);
        };
        auto release = [&](const ContactTable &friction) {
            for (int k = 0; k < friction.friction_size(); ++k) {
                // The tangential parts of a disc vanish; a pyramid keeps ψ.
                const bool tangential = !friction.is_pyramid() && k, keeps = friction.is_pyramid() && !k;
                put(friction.friction_impulse() + k, friction.friction_slack() + k,
                    tangential ? T{}
                    : keeps    ? one
                               : vanishing,
                    tangential ? T{} : one);
            }
        };
        put(contact.impulse, contact.slack, vanishing, one);
        release(contact);
        for (int k = contact.first_couple; k < contact.first_couple + contact.num_couples; ++k) release(m.couples[k].friction);
    }

private:
    // Opens a pair whose impulse is less than `threshold` times its slack; returns whether the pair is closed.
    static TD_INLINE Mask<T> pair(T &impulse, T &slack, const T &threshold, double compliance, T &give) {
        const Mask<T> closed = impulse > threshold * slack;
        give = select(closed, compliance / threshold, T{});
        slack = select(closed, give * impulse, slack);
        impulse = select(closed, impulse, broadcast<T>(constant::vanishing));
        return closed;
    }

    static void pyramid(const ContactTable &friction, const Mask<T> &pressed, const T &mass, T *impulse, T *slack, T *give) {
        const T one = broadcast<T>(1.0), inverse = 1.0 / mass;
        for (int i = 0; i <= friction.facets; ++i) {
            // ψ follows from the remaining slip and needs no compliance.
            pair(impulse[i], slack[i], i ? mass : inverse, i ? constant::compliance : constant::vanishing, give[i]);
            impulse[i] = select(pressed, impulse[i], i ? broadcast<T>(constant::vanishing) : one);
            slack[i] = select(pressed, slack[i], one);
            give[i] = i ? select(pressed, give[i], T{}) : T{};
        }
    }

    static void disc(const Mask<T> &pressed, const T &mass, T *xi, T *eta, T *give) {
        const T force = sqrt(xi[1] * xi[1] + xi[2] * xi[2]), slip = sqrt(eta[1] * eta[1] + eta[2] * eta[2]);
        // The small eigenvalue of ξ against the large one of η: their product is κ.
        const T speed = 0.5 * (eta[0] + slip), inverse = 1.0 / max(force, broadcast<T>(std::numeric_limits<double>::min()));
        const Mask<T> sticking = xi[0] - force > mass * speed;
        const T compliance = constant::compliance / mass, height = xi[0];
        for (int k = 0; k < 3; ++k) {
            const T along = k ? inverse * xi[k] : broadcast<T>(1.0), identity = broadcast<T>(k ? 0.0 : 1.0);
            eta[k] = select(pressed, select(sticking, compliance * xi[k], k ? -speed * along : speed), identity);
            xi[k] = select(pressed, select(sticking, xi[k], height * along), constant::vanishing * identity);
            give[k] = k ? select(pressed, select(sticking, compliance, T{}), T{}) : T{};
        }
    }
};

}  // namespace torchdojo
