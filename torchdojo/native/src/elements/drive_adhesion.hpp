// Adhesion of a body (elements/transmissions.py): equal pulls along the normals of those of its contacts whose gap is below a reach.
//
// With the normal n, from the other body to the contact's own, and the point of contact P, each of k such contacts pulls its body by −n/k at P,
// and the other one by n/k. Where a contact comes or goes, pulls jump; everywhere else the derivatives are those of n and P.
#pragma once

#include "elements/joint_motion.hpp"
#include "elements/pair.hpp"

namespace torchdojo {

template <class T>
class Adhesion {
public:
    // parameters: packed. samples: of height fields, per lane.
    Adhesion(const MechanismTable &m, const std::vector<MovingBody<T>> &bodies, const T *parameters, const double *const *samples, int body)
        : m(m), bodies(bodies), parameters(parameters), samples(samples), body(body) {}

    // Calls f(body, other) with the bodies of all contacts; the world is the number of bodies.
    template <class F>
    static void each_pair(const MechanismTable &m, int body, F &&f) {
        each_contact(m, body, [&](const ContactTable &contact, int other) { f(contact.body, other); });
    }

    // Sets the pulls of all bodies.
    void measure(const T &reach, Pull<T> *pulls) const {
        std::fill_n(pulls, m.num_bodies + 1, Pull<T>{});
        const T inverse = inverse_count(reach);
        each_contact(m, body, [&](const ContactTable &contact, int other) {
            const BodyPose<T> &a = bodies[contact.body].pose;
            const BodyPose<T> &b = bodies[other].pose;
            const auto touched = touch<T>(contact, other, a.x, a.R, b.x, b.R);
            const Vec3<T> pull = select(touched.distance < reach, inverse, T{}) * touched.normal;
            Pull<T> &on_a = pulls[contact.body];
            Pull<T> &on_b = pulls[other];
            on_a.force = on_a.force - pull;
            on_a.torque = on_a.torque - transposed_times(a.R, cross(touched.point - a.x, pull));
            on_b.force = on_b.force + pull;
            on_b.torque = on_b.torque + transposed_times(b.R, cross(touched.point - b.x, pull));
        });
    }

    // Calls add(body, x, φ) with gradients of Σ c·pulls over all bodies by the poses, for c that do not change.
    template <class F>
    void pull_back(const T &reach, const Pull<T> *c, F &&add) const {
        using S = Dual<T>;
        const T inverse = inverse_count(reach);
        each_contact(m, body, [&](const ContactTable &contact, int other) {
            Vec3<S> x[2];
            Mat3<S> R[2];
            const int both[2] = {contact.body, other};
            for (int i = 0; i < 2; ++i) {
                const BodyPose<T> &pose = bodies[both[i]].pose;
                if (both[i] < m.num_bodies) seed(pose, 6 * i, x[i], R[i]);
                else {
                    x[i] = lift<S>(pose.x);
                    R[i] = lift<S>(pose.R);
                }
            }
            const auto touched = touch<S>(contact, other, x[0], R[0], x[1], R[1]);
            S sum = dot(touched.normal, lift<S>(c[other].force - c[contact.body].force));
            sum = sum - dot(cross(touched.point - x[0], touched.normal), R[0] * lift<S>(c[contact.body].torque));
            sum = sum + dot(cross(touched.point - x[1], touched.normal), R[1] * lift<S>(c[other].torque));
            const Mask<T> near = touched.distance.v < reach;
            for (T &slope : sum.d) slope = select(near, inverse * slope, T{});
            for (int i = 0; i < 2; ++i)
                if (both[i] < m.num_bodies) add(both[i], load3(sum.d + 6 * i), load3(sum.d + 6 * i + 3));
        });
    }

private:
    const MechanismTable &m;
    const std::vector<MovingBody<T>> &bodies;
    const T *parameters;
    const double *const *samples;
    const int body;

    template <class F>
    static void each_contact(const MechanismTable &m, int body, F &&f) {
        for (const ContactTable &contact : m.contacts) {
            const int other = contact.pair < 0 ? m.num_bodies : m.pairs[contact.pair].other;
            if (contact.body == body || other == body) f(contact, other);
        }
    }

    template <class S>
    __attribute__((noinline)) geometry::Witness<S> touch(const ContactTable &contact, int other, const Vec3<S> &xa, const Mat3<S> &Ra,
                                                         const Vec3<S> &xb, const Mat3<S> &Rb) const {
        if (contact.pair >= 0) {
            const PairTable &pair = m.pairs[contact.pair];
            return witness<T>(pair, xa, Ra, xb, Rb, &parameters[pair.shape_a], &parameters[pair.shape_b], samples);
        }
        const T *p = &parameters[contact.parameters];
        const S radius = S(p[parameter::radius]);
        const Vec3<S> centre = xa + Ra * lift<S>(load3(p + parameter::point));
        geometry::Witness<S> result;
        result.normal = lift<S>(load3(p + parameter::normal));
        result.distance = dot(result.normal, centre) - S(p[parameter::offset]) - radius;
        result.point = centre - radius * result.normal;
        return result;
    }

    // 1/k; 1 where no contact is near.
    T inverse_count(const T &reach) const {
        T count{};
        each_contact(m, body, [&](const ContactTable &contact, int other) {
            const BodyPose<T> &a = bodies[contact.body].pose;
            const BodyPose<T> &b = bodies[other].pose;
            count += select(touch<T>(contact, other, a.x, a.R, b.x, b.R).distance < reach, broadcast<T>(1.0), T{});
        });
        return inverse_of(max(count, broadcast<T>(1.0)));
    }
};

}  // namespace torchdojo
