// Bodies, joints and contacts in spatial coordinates, for the tree (solver/tree.hpp).
//
// One origin o serves a whole tree, and all vectors are in world axes. A motion (δx, δφ) is a small change of a body's next pose: δx moves
// the point of the body that is at o, δφ turns it. A wrench (f, t) acts on a body at its current pose, with the torque t about o. With
// centers of mass at r and r⁺ from o, the increment (s, a) of the orientation, and ω = 2a/h:
//
//     δv = (δx + δφ × r⁺)/h,    R δω = (s − [R a]×) δφ/h,    t = R τ + r × f.
//
// So neither M = dφ⁺/dω nor its inverse occurs. A joint's rows only see the difference of the motions of its two bodies, at any violation,
// and its reactions are opposite wrenches: between bodies of one tree neither needs a transformation. Featherstone 2008, "Rigid Body
// Dynamics Algorithms", chapter 2, has spatial vectors of one pose; here motions belong to the next pose and wrenches to the current one.
#pragma once

#include "elements/contact.hpp"
#include "elements/ground.hpp"

namespace torchdojo {

template <class T>
struct SpatialBody {
    Vec3<T> r, r_next;  // center of mass from the origin, at the current and at the next pose
    Vec3<T> a;  // R a
    Mat3<T> inertia;  // in world axes
    Mat3<T> back;  // from the next to the current orientation
    Vec3<T> omega;  // R⁺ ω, for bodies with contacts
};

// A contact with a half-space or a height field, by motions of its body.
template <class T>
struct SpatialContact {
    Vec3<T> lever;  // lever from the center of mass, at the next pose
    T rows[18];  // rows of the gap and the slip, 3 x 6
    T frame[9];  // normal and tangents, on a height field
};

template <class T>
TD_INLINE T dot6(const T *a, const T *b) {
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3] + a[4] * b[4] + a[5] * b[5];
}

// Derivative of the balance of a body by its motion, 6 x 6 by rows, with wrenches about the origin.
template <class T>
TD_INLINE void body_matrix(const Problem<T> &problem, int i, const Vec3<T> &origin, SpatialBody<T> &spatial, const T *w, T *A) {
    const T h = problem.timestep(), &inverse_h = problem.inverse_timestep;
    const BodyData<T> &body = problem.bodies[i];
    const T mass = inverse_h * problem.body_parameters(i)[parameter::mass], &c = body.increment.w;
    const Vec3<T> omega = body.pose.R * load3(w + 6 * i + 3), spin = spatial.inertia * omega, half = (0.5 * h) * spin;
    spatial.r_next = body.next.x - origin;
    const Vec3<T> &a = spatial.a, &r = spatial.r, &next = spatial.r_next, moment_next = mass * next, moment_now = mass * r;
    const T zero{};
    const T blocks[12] = {mass, zero, zero, zero, mass, zero, zero, zero, mass};
    for (int k = 0; k < 3; ++k)
        for (int j = 0; j < 3; ++j) A[6 * k + j] = blocks[3 * k + j];
    store_skew(A + 3, 6, -moment_next);
    store_skew(A + 18, 6, moment_now);
    // d/dω (c Jω + a × Jω) = c J − (h/2) Jω aᵀ/c + [a]× J − (h/2) [Jω]×
    Mat3<T> G;
    const T inverse_c = inverse_of(c);
    for (int k = 0; k < 3; ++k) {
        const Vec3<T> column = spatial.inertia.column(k);
        const Vec3<T> g = c * column + cross(a, column) - (inverse_c * a[k]) * half;
        for (int j = 0; j < 3; ++j) G.m[3 * j + k] = g[j];
    }
    add_skew(G, -half);
    const T trace = dot(moment_next, r);
    for (int k = 0; k < 3; ++k) {
        const Vec3<T> g = G.row(k), row = inverse_h * (c * g - cross(g, a)) - moment_next[k] * r;
        for (int j = 0; j < 3; ++j) A[18 + 6 * k + 3 + j] = j == k ? row[j] + trace : row[j];
    }
}

// Velocities (v, ω) of a motion.
template <class T>
TD_INLINE void twist_of(const BodyData<T> &body, const SpatialBody<T> &spatial, const T &inverse_h, const T *motion, T *twist) {
    const Vec3<T> phi = load3(motion + 3), turn = transposed_times(body.next.R, phi);
    store3(twist, inverse_h * (load3(motion) + cross(phi, spatial.r_next)));
    store3(twist + 3, inverse_h * (body.increment.w * turn + cross(body.increment.v, turn)));
}

// The frame of a contact with a height field turns with the place of the ball. This function adds the turn to its rows and its part of the body's
// matrix. The row of its gap is along the normal, scaled. force: P.
template <class T>
void add_ground(const ContactTable &contact, const SpatialBody<T> &spatial, const GroundFrame<T> &ground, const Vec3<T> &centre,
                const Vec3<T> &lever, const T &radius, const T &gamma, const T *beta, const Vec3<T> &velocity, const Vec3<T> &force, T *C,
                T *A) {
    for (int i = 0; i < 6; ++i) C[i] *= ground.steepness;
    for (int k = 0; k < 2; ++k) {
        const Vec3<T> *by = ground.by[k], moved = -radius * by[0];  // moved: derivative of the lever
        T tilt[6];  // derivative of a or b by the motion
        store3(tilt, ground.tilt[k]);
        store3(tilt + 3, cross(centre, ground.tilt[k]));
        Vec3<T> push = gamma * by[0];
        if (contact.friction) {
            const Vec3<T> swept = cross(spatial.omega, moved);
            for (int i = 0; i < 2; ++i) {
                const T weight = dot(by[1 + i], velocity) + dot(ground.axis[1 + i], swept);
                for (int m = 0; m < 6; ++m) C[6 * (1 + i) + m] += weight * tilt[m];
                push = push + beta[i] * by[1 + i];
            }
        }
        const Vec3<T> torque = spatial.back * (cross(moved, force) + cross(lever, push)) + cross(spatial.r, push);
        for (int r = 0; r < 3; ++r)
            for (int m = 0; m < 6; ++m) {
                A[6 * r + m] -= push[r] * tilt[m];
                A[18 + 6 * r + m] -= torque[r] * tilt[m];
            }
    }
}

// A contact with a half-space or a height field: its residuals, its force and moment about the center of mass, which it adds to `pressed`,
// and, if `derived`, its rows and its part of the body's matrix.
template <bool derived, class T>
TD_INLINE void touch(Problem<T> &problem, const ContactTable &contact, const SpatialBody<T> &spatial, const T *w,
                     SpatialContact<T> &spatial_contact, T *pressed, T *A) {
    ContactData<T> &data = problem.contacts[&contact - problem.mechanism.contacts.data()];
    const BodyData<T> &body = problem.bodies[contact.body];
    const T *p = &problem.parameters[contact.parameters], *impulse = w + contact.impulse, *slack = w + contact.slack;
    const T &radius = p[parameter::radius], &inverse_h = problem.inverse_timestep, &c = body.increment.w;
    const Vec3<T> arm = body.next.R * load3(p + parameter::point);
    const T *frame = p + parameter::normal;
    GroundFrame<T> ground;
    if (contact.pair >= 0) {
        const PairTable &pair = problem.mechanism.pairs[contact.pair];
        ground = ground_frame<derived>(pair, problem.samples, body.next.x + arm, radius, &problem.parameters[pair.shape_b]);
        for (int i = 0; i < 3; ++i) store3(spatial_contact.frame + 3 * i, ground.axis[i]);
        frame = spatial_contact.frame;
    }
    const Vec3<T> n = load3(frame), lever = arm - radius * n;
    spatial_contact.lever = lever;
    T *row = &problem.residual[contact.impulse], *C = spatial_contact.rows;
    T gap = contact.pair < 0 ? dot(n, body.next.x + arm) - p[parameter::offset] - radius : ground.distance;
    if (problem.overlaps && problem.laws[contact.law].overlaps) gap += GapLaw<T>::shift(problem, contact, impulse[0]);
    row[0] = gap - slack[0];
    Vec3<T> force = impulse[0] * n, tangent[2], velocity{};
    if constexpr (derived) {
        store3(C, n);
        store3(C + 3, cross(lever + spatial.r_next, n));
    }
    if (contact.friction) {
        const Vec3<T> v = load3(w + 6 * contact.body), sweep = cross(spatial.omega, lever);
        velocity = v + sweep;
        tangential(contact, impulse + 1, data.beta);
        for (int i = 0; i < 2; ++i) {
            const Vec3<T> t = load3(frame + 3 + 3 * i);
            tangent[i] = t;
            force = force + data.beta[i] * t;
            if constexpr (!derived) continue;
            const Vec3<T> m = cross(lever, t), turn = cross(sweep, t) - radius * cross(cross(t, spatial.omega), n);
            store3(C + 6 * (1 + i), inverse_h * t);
            store3(C + 6 * (1 + i) + 3, turn + inverse_h * (cross(spatial.r_next, t) + c * m - cross(spatial.a, m)));
        }
        friction_rows(contact, p[parameter::friction] * impulse[0], impulse + 1, slack + 1, dot(tangent[0], velocity),
                      dot(tangent[1], velocity), row + 1);
    }
    add3(pressed, force);
    add3(pressed + 3, cross(lever, force));
    if constexpr (!derived) return;
    if (contact.pair >= 0)
        add_ground(contact, spatial, ground, spatial.r_next + arm, lever, radius, impulse[0], data.beta, velocity, force, C, A);
    T KC[18], F[18];  // condensed force by motion
    stiffen(contact, data, C, KC);
    for (int r = 0; r < 3; ++r)
        for (int k = 0; k < 6; ++k) {
            T sum = n[r] * KC[k];
            if (contact.friction) sum += tangent[0][r] * KC[6 + k] + tangent[1][r] * KC[12 + k];
            F[6 * r + k] = sum;
            A[6 * r + k] += sum;
        }
    const Vec3<T> &o = spatial.r;
    const Vec3<T> about[3] = {{T{}, -o.z, o.y}, {o.z, T{}, -o.x}, {-o.y, o.x, T{}}};
    for (int r = 0; r < 3; ++r) {
        const Vec3<T> moment = cross(spatial.back.row(r), lever) + about[r];
        for (int k = 0; k < 6; ++k) A[18 + 6 * r + k] += moment.x * F[k] + moment.y * F[6 + k] + moment.z * F[12 + k];
    }
    // The torque l × P turns with the body: its derivative is S.
    const Mat3<T> S = spatial.back * torque_by_turn(lever, n, force, radius);
    for (int r = 0; r < 3; ++r)
        for (int k = 0; k < 3; ++k) A[21 + 6 * r + k] -= S.m[3 * r + k];
}

}  // namespace torchdojo
