// Laws of the gap (Contact.gap in contact_base.py): recovery from overlap, compliance, restitution. What stays the same during the step:
//     gap = φ⁺ + shift + softness γ,   shift = −min(φ + h v_rec, 0) − softness·damping·min(φ, 0),   softness = 1/(h k + damping),
// and whether it is an impact that bounces.
#pragma once

#include "elements/pair.hpp"

namespace torchdojo {

template <class T>
struct LawData {
    T distance;                       // φ at the current configuration
    T distance_row[12];  // its derivative by the current poses (x, φ of the body, then of the other), where the gap is shifted
    T shift, softness;
    Mask<T> bounces, bouncing;  // whether it is an impact that bounces, and the velocities rule the gap
    Vec3<T> incoming, spin;  // velocity and (world frame) angular velocity that led here
};

template <class T>
void prepare_law(Problem<T> &problem, const ContactTable &contact) {
    const T h = problem.timestep(), *p = &problem.parameters[contact.parameters];
    LawData<T> &law = problem.laws[contact.law];
    const PairTable *pair = contact.pair < 0 ? nullptr : &problem.mechanism.pairs[contact.pair];
    const int world = problem.mechanism.num_bodies, bodies[2] = {contact.body, pair ? pair->other : world};
    Vec3<T> x[2];
    Mat3<T> R[2];
    auto distance = [&]() -> T {
        if (pair) return touch<T, T>(problem, *pair, contact.body, x[0], R[0], x[1], R[1]).distance;
        const Vec3<T> centre = x[0] + R[0] * load3(p + parameter::point);
        return dot(load3(p + parameter::normal), centre) - p[parameter::offset] - p[parameter::radius];
    };
    for (const int i : {0, 1}) x[i] = problem.bodies[bodies[i]].pose.x, R[i] = problem.bodies[bodies[i]].pose.R;
    law.distance = distance();
    law.shift = law.softness = T{};
    if (contact.recovery >= 0) law.shift -= min(law.distance + h * problem.parameters[contact.recovery], T{});
    if (contact.stiffness >= 0) {
        const T damping = problem.parameters[contact.stiffness + 1];
        law.softness = 1.0 / (h * problem.parameters[contact.stiffness] + damping);
        law.shift -= law.softness * damping * min(law.distance, T{});
    }
    if (contact.recovery >= 0 || contact.stiffness >= 0) {
        if (pair) {
            using S = Dual<T>;
            Vec3<S> moving[2];
            Mat3<S> turning[2];
            for (const int i : {0, 1}) {
                if (bodies[i] < world) seed(problem.bodies[bodies[i]].pose, 6 * i, moving[i], turning[i]);
                else moving[i] = lift<S>(x[i]), turning[i] = lift<S>(R[i]);
            }
            const S here = touch<T, S>(problem, *pair, contact.body, moving[0], turning[0], moving[1], turning[1]).distance;
            for (int k = 0; k < dual_size; ++k) law.distance_row[k] = here.d[k];
        } else {
            const Vec3<T> normal = load3(p + parameter::normal);
            store3(law.distance_row, normal);
            store3(law.distance_row + 3, cross(load3(p + parameter::point), transposed_times(R[0], normal)));
        }
    }
    if (contact.restitution < 0) return;
    for (const int i : {0, 1}) {
        if (bodies[i] == world) continue;
        const T *state = &problem.z[state_size * bodies[i]];
        const Vec3<T> omega = load3(state + 10), a = (0.5 * h) * omega;
        if (!i) law.incoming = load3(state + 3), law.spin = R[0] * omega;
        x[i] = x[i] - h * load3(state + 3);
        R[i] = rotation_matrix(problem.bodies[bodies[i]].pose.q * conjugate(Quat<T>{sqrt(1.0 - dot(a, a)), a}));
    }
    const T approach = distance() - law.distance, slow = constant::resting_acceleration * h * h;
    law.bounces = select_mask(approach > slow, law.distance - approach < slow, Mask<T>{});
}

// −∂shift/∂φ
template <class T>
TD_INLINE T law_slope(const Problem<T> &problem, const ContactTable &contact) {
    const LawData<T> &law = problem.laws[contact.law];
    T slope{};
    if (contact.recovery >= 0)
        slope += select(law.distance + problem.timestep() * problem.parameters[contact.recovery] < T{}, broadcast<T>(1.0), T{});
    if (contact.stiffness >= 0) slope += select(law.distance < T{}, law.softness * problem.parameters[contact.stiffness + 1], T{});
    return slope;
}

}  // namespace torchdojo
