// Laws of the gap (Contact.gap in elements/contact.py). The gap of a hard contact without a law is φ⁺.
//
// Laws of overlap change the gap by the distance φ at the current configuration and by the impulse γ:
//     gap = φ⁺ + shift(φ) + softness γ.
// Each law of overlap is a struct below and an entry in `OverlapLaws`. A step in which no law acts computes the distances once, and pays
// nothing more. In an impact that bounces, velocities rule the gap instead: Newton's law h n·(u⁺ + e u⁻) replaces the gap where the law has
// the smaller value.
#pragma once

#include "elements/list.hpp"
#include "gradient/adjoint_state.hpp"

namespace torchdojo {

// shift = −min(φ + h v, 0): overlap is left at the speed v, which is the contact's own or the option of the step.
template <class T>
struct RecoverySpeed {
    static bool acts(const Problem<T> &problem, const ContactTable &contact) {
        return contact.recovery_speed >= 0 || (problem.depenetration_speed > 0 && contact.stiffness < 0);
    }

    static TD_INLINE T speed(const Problem<T> &problem, const ContactTable &contact) {
        return contact.recovery_speed < 0 ? broadcast<T>(problem.depenetration_speed) : problem.parameters[contact.recovery_speed];
    }

    static TD_INLINE void prepare(const Problem<T> &problem, const ContactTable &contact, Overlap<T> &overlap) {
        const T ahead = overlap.distance + problem.timestep() * speed(problem, contact);
        overlap.shift -= min(ahead, T{});
        overlap.slope += select(ahead < T{}, broadcast<T>(1.0), T{});
    }

    // Gives bodies deep inside the world at least the speeds v along the normals, in the lanes of `mask` (StepProblem.cold_start).
    static void leave(const Problem<T> &problem, T *w, const Mask<T> &mask) {
        for (const ContactTable &contact : problem.mechanism.contacts) {
            const LawData<T> &law = problem.laws[contact.law];
            if (!law.overlaps || !acts(problem, contact) || other_body(problem.mechanism, contact) < problem.mechanism.num_bodies) continue;
            const T v = speed(problem, contact);
            const Vec3<T> n = load3(law.distance_row);
            T *linear = w + 6 * contact.body;
            const T missing = max(v - dot(n, load3(linear)), T{});
            const Mask<T> deep = select_mask(mask, law.distance + problem.timestep() * v < T{}, Mask<T>{});
            for (int k = 0; k < 3; ++k) linear[k] = select(deep, linear[k] + missing * n[k], linear[k]);
        }
    }

    // Adds the gradient of `direct` times the gap.
    static void differentiate(const Problem<T> &problem, const ContactTable &contact, const T &direct, const T &, T *sum, T &by_timestep) {
        const T h = problem.timestep();
        const T v = speed(problem, contact);
        const T weight = select(problem.laws[contact.law].distance + h * v < T{}, direct, T{});
        if (contact.recovery_speed >= 0) sum[contact.recovery_speed] -= h * weight;
        by_timestep -= v * weight;
    }
};

// Spring and damper: shift = −softness·damping·min(φ, 0), softness = 1/(h stiffness + damping).
template <class T>
struct Compliance {
    static bool acts(const Problem<T> &, const ContactTable &contact) { return contact.stiffness >= 0; }

    static void prepare(const Problem<T> &problem, const ContactTable &contact, Overlap<T> &overlap) {
        const T damping = problem.parameters[contact.damping];
        overlap.softness = inverse_of(problem.timestep() * problem.parameters[contact.stiffness] + damping);
        overlap.shift -= overlap.softness * damping * min(overlap.distance, T{});
        overlap.slope += select(overlap.distance < T{}, overlap.softness * damping, T{});
    }

    static void differentiate(const Problem<T> &problem, const ContactTable &contact, const T &direct, const T &gamma, T *sum,
                              T &by_timestep) {
        const LawData<T> &law = problem.laws[contact.law];
        const T overlap = min(law.distance, T{});
        const T damping = problem.parameters[contact.damping];
        const T weight = -(direct * law.softness * law.softness) * (gamma - damping * overlap);  // weight of h stiffness + damping
        sum[contact.stiffness] += problem.timestep() * weight;
        sum[contact.damping] += weight - direct * law.softness * overlap;
        by_timestep += weight * problem.parameters[contact.stiffness];
    }
};

template <class T>
using OverlapLaws = List<RecoverySpeed<T>, Compliance<T>>;

template <class T>
struct Restitution {
    static bool acts(const ContactTable &contact) { return contact.restitution >= 0; }

    // Weight h of Newton's law, e, and the weight of the other gap, in lanes that bounce. Without restitution the three are 0, 0, 1.
    struct Weights {
        T law, e, gap;
    };
    static TD_INLINE Weights weights(const Problem<T> &problem, const ContactTable &contact) {
        const T zero{};
        const T one = broadcast<T>(1.0);
        if (!acts(contact)) return {zero, zero, one};
        const Mask<T> &bouncing = problem.laws[contact.law].bouncing;
        return {select(bouncing, problem.timestep() * problem.laws[contact.law].share, zero), problem.parameters[contact.restitution],
                select(bouncing, zero, one)};
    }

    // Stores the velocities that led here, and whether the bodies approach by more than bodies at rest may within a step. Terms of polytopes
    // say that themselves.
    template <class Distance>
    static void prepare(Problem<T> &problem, const ContactTable &contact, int other, const Distance &distance) {
        const T h = problem.timestep();
        LawData<T> &law = problem.laws[contact.law];
        law.share = broadcast<T>(1.0);
        if (contact.pair >= 0 && problem.mechanism.pairs[contact.pair].cores[0]) {
            law.bounces = problem.parameters[problem.mechanism.pairs[contact.pair].shape_a] >= broadcast<T>(constant::near_terms::bouncing);
            return;
        }
        const int bodies[2] = {contact.body, other};
        BodyPose<T> before[2];
        for (const int i : {0, 1}) {
            const BodyPose<T> &pose = problem.bodies[bodies[i]].pose;
            before[i] = pose;
            if (bodies[i] == problem.mechanism.num_bodies) continue;
            const T *state = &problem.z[state_size * bodies[i]];
            const Vec3<T> v = load3(state + 3);
            const Vec3<T> omega = load3(state + 10);
            if (!i) {
                law.incoming = v;
                law.spin = pose.R * omega;
            }
            before[i] = pose_before(pose, h, v, omega);
        }
        const T approach = distance(before[0], before[1]) - law.distance;
        const T slow = constant::resting_acceleration * h * h;
        law.bounces = select_mask(approach > slow, law.distance - approach < slow, Mask<T>{});
    }

    // The gap of a sphere on a half-space and its derivative by the next orientation, where Newton's law rules it.
    static TD_INLINE void linearize(Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data, const Vec3<T> &v,
                                    const Vec3<T> &omega, T &gap, T *row) {
        LawData<T> &law = problem.laws[contact.law];
        const BodyData<T> &body = problem.bodies[contact.body];
        const T *p = &problem.parameters[contact.parameters];
        const T h = problem.timestep();
        const T e = problem.parameters[contact.restitution];
        const Vec3<T> spin = transposed_times(body.next.R, law.spin);
        const Vec3<T> turning = omega + e * spin;
        const Vec3<T> torque = cross(data.lever, data.n);
        const T speed = dot(load3(p + parameter::normal), v + e * law.incoming) + dot(torque, turning);
        law.bouncing = select_mask(law.bounces, h * speed < gap, Mask<T>{});
        gap = select(law.bouncing, h * speed, gap);
        const Vec3<T> turned = h * (torque + transposed_times(body.M, by_turn(data, turning, e * spin, p[parameter::radius])));
        for (int k = 0; k < 3; ++k) row[k] = select(law.bouncing, turned[k], row[k]);
    }

    // The adjoint of Newton's law: −ν times its derivative by the next orientation (added to `phi`) and by the incoming velocity.
    template <class R>
    static TD_INLINE void multiply(AdjointState<T, R> &adjoint, const Problem<T> &problem, const ContactTable &contact,
                                   const ContactData<T> &data, const Vec3<T> &omega, const R &nu, Vec3<R> &phi) {
        const T *p = &problem.parameters[contact.parameters];
        const BodyData<T> &body = problem.bodies[contact.body];
        const auto [law, e, gap] = weights(problem, contact);
        const Vec3<T> spin = transposed_times(body.next.R, problem.laws[contact.law].spin);
        phi = phi - nu * (law * by_turn(data, omega + e * spin, e * spin, p[parameter::radius]));
        // e n·u⁻ with u⁻ = v + (R ω) × l⁺ depends on the current orientation and on the velocities in the state.
        const Vec3<T> torque = transposed_times(body.pose.R, body.next.R * cross(data.lever, data.n));
        const R weight = nu * (law * e);
        const int i = contact.body;
        DataGradient<R> &gradient = adjoint.gradient;
        gradient.v[i] = gradient.v[i] - weight * load3(p + parameter::normal);
        gradient.omega[i] = gradient.omega[i] - weight * torque;
        gradient.phi[i] = gradient.phi[i] - weight * cross(load3(&problem.z[state_size * i + 10]), torque);
    }

private:
    // Derivative of n·(w × l) by φ⁺, where the part s of w = ω + s is fixed in the world: (w × l) × n + (l × n) × s − r (w − (n·w) n).
    static TD_INLINE Vec3<T> by_turn(const ContactData<T> &data, const Vec3<T> &turning, const Vec3<T> &spin, const T &radius) {
        return cross(cross(turning, data.lever), data.n) + cross(cross(data.lever, data.n), spin) -
               radius * (turning - dot(data.n, turning) * data.n);
    }
};

template <class T>
struct GapLaw {
    // distance(a, b): φ at the poses of both bodies. gradient(row): its derivative by the current poses. Where no law acts, as in most
    // steps, nothing but this is stored.
    template <class Distance, class Gradient>
    static void prepare(Problem<T> &problem, const ContactTable &contact, int other, const Distance &distance, const Gradient &gradient) {
        LawData<T> &law = problem.laws[contact.law];
        const bool bounces = Restitution<T>::acts(contact);
        law.overlaps = false;
        if (!bounces && !may_overlap(problem, contact)) return;
        Overlap<T> overlap{distance(problem.bodies[contact.body].pose, problem.bodies[other].pose)};
        each_overlap(problem, contact, [&](auto rule) { rule.prepare(problem, contact, overlap); });
        law.overlaps = contact.stiffness >= 0 || any(overlap.slope > T{});
        if (!law.overlaps && !bounces) return;
        static_cast<Overlap<T> &>(law) = overlap;
        if (law.overlaps) {
            gradient(law.distance_row);
            problem.overlaps = true;
        }
        if (bounces) Restitution<T>::prepare(problem, contact, other, distance);
    }

    static TD_INLINE T shift(const Problem<T> &problem, const ContactTable &contact, const T &gamma) {
        return problem.laws[contact.law].shift + problem.laws[contact.law].softness * gamma;
    }

    // Derivative of −ν·shift by the current poses.
    template <class R>
    static void multiply(AdjointState<T, R> &adjoint, const Problem<T> &problem, const ContactTable &contact, int other, const R &nu) {
        const LawData<T> &law = problem.laws[contact.law];
        if (!law.overlaps) return;
        const R weight = nu * law.slope;
        auto add = [&](int body, const T *row) {
            adjoint.gradient.x[body] = adjoint.gradient.x[body] + weight * load3(row);
            adjoint.gradient.phi[body] = adjoint.gradient.phi[body] + weight * load3(row + 3);
        };
        add(contact.body, law.distance_row);
        if (other < problem.mechanism.num_bodies) add(other, law.distance_row + 6);
    }

    // Adds the gradient of `direct` times the gap by the numbers of the laws of overlap. Returns the weight of the current distance.
    static T differentiate(const Problem<T> &problem, const ContactTable &contact, const T &direct, const T &gamma, T *sum,
                           T &by_timestep) {
        const LawData<T> &law = problem.laws[contact.law];
        if (!law.overlaps) return T{};
        each_overlap(problem, contact, [&](auto rule) { rule.differentiate(problem, contact, direct, gamma, sum, by_timestep); });
        return -direct * law.slope;
    }

private:
    static bool may_overlap(const Problem<T> &problem, const ContactTable &contact) {
        bool any = false;
        each_overlap(problem, contact, [&](auto) { any = true; });
        return any;
    }

    template <class F>
    static TD_INLINE void each_overlap(const Problem<T> &problem, const ContactTable &contact, F &&f) {
        OverlapLaws<T>::each([&](auto rule) {
            if (rule.acts(problem, contact)) f(rule);
        });
    }
};

}  // namespace torchdojo
