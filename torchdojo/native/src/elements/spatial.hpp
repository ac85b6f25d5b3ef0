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
#include "elements/joint.hpp"

namespace torchdojo {

template <class T>
struct SpatialBody {
    Vec3<T> r, r_next;  // center of mass from the origin, at the current and at the next pose
    Vec3<T> a;  // R a
    Mat3<T> inertia;  // in world axes
};

template <class T>
TD_INLINE T dot6(const T *a, const T *b) {
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3] + a[4] * b[4] + a[5] * b[5];
}

// Derivative of the balance of a body by its motion, 6 x 6 by rows, with wrenches about the origin.
template <class T>
TD_INLINE void body_matrix(const Problem<T> &problem, int i, const Vec3<T> &origin, SpatialBody<T> &own, const T *w, T *A) {
    const T h = problem.timestep(), inverse_h = 1.0 / h;
    const BodyData<T> &body = problem.bodies[i];
    const T mass = inverse_h * problem.body_parameters(i)[parameter::mass], &c = body.increment.w;
    const Vec3<T> omega = body.pose.R * load3(w + 6 * i + 3), spin = own.inertia * omega, half = (0.5 * h) * spin;
    own.a = (0.5 * h) * omega;
    own.r_next = body.next.x - origin;
    const Vec3<T> &a = own.a, &r = own.r, &next = own.r_next, first = mass * next, now = mass * r;
    const T zero{};
    const T blocks[12] = {mass, zero, zero, zero, mass, zero, zero, zero, mass};
    for (int k = 0; k < 3; ++k)
        for (int j = 0; j < 3; ++j) A[6 * k + j] = blocks[3 * k + j];
    A[3] = zero, A[4] = first.z, A[5] = -first.y, A[9] = -first.z, A[10] = zero, A[11] = first.x;
    A[15] = first.y, A[16] = -first.x, A[17] = zero;
    A[18] = zero, A[19] = -now.z, A[20] = now.y, A[24] = now.z, A[25] = zero, A[26] = -now.x;
    A[30] = -now.y, A[31] = now.x, A[32] = zero;
    // d/dω (c Jω + a × Jω) = c J − (h/2) Jω aᵀ/c + [a]× J − (h/2) [Jω]×
    Mat3<T> G;
    const T inverse_c = 1.0 / c;
    for (int k = 0; k < 3; ++k) {
        const Vec3<T> column = own.inertia.column(k);
        const Vec3<T> g = c * column + cross(a, column) - (inverse_c * a[k]) * half;
        for (int j = 0; j < 3; ++j) G.m[3 * j + k] = g[j];
    }
    G.m[1] += half.z, G.m[2] -= half.y, G.m[3] -= half.z, G.m[5] += half.x, G.m[6] += half.y, G.m[7] -= half.x;
    const T trace = dot(first, r);
    for (int k = 0; k < 3; ++k) {
        const Vec3<T> g = G.row(k), row = inverse_h * (c * g - cross(g, a)) - first[k] * r;
        for (int j = 0; j < 3; ++j) A[18 + 6 * k + 3 + j] = j == k ? row[j] + trace : row[j];
    }
}

// The row by a body's motion of a quantity with derivatives by its velocity v and by its angular velocity ω in the body frame.
template <class T>
TD_INLINE void motion_row(const BodyData<T> &body, const SpatialBody<T> &own, const T &inverse_h, const Vec3<T> &linear,
                          const Vec3<T> &angular, T *row) {
    const Vec3<T> turn = body.next.R * (body.increment.w * angular - cross(body.increment.v, angular));
    store3(row, inverse_h * linear), store3(row + 3, inverse_h * (cross(own.r_next, linear) + turn));
}

// Velocities (v, ω) of a motion.
template <class T>
TD_INLINE void twist_of(const BodyData<T> &body, const SpatialBody<T> &own, const T &inverse_h, const T *motion, T *twist) {
    const Vec3<T> phi = load3(motion + 3), turn = transposed_times(body.next.R, phi);
    store3(twist, inverse_h * (load3(motion) + cross(phi, own.r_next)));
    store3(twist + 3, inverse_h * (body.increment.w * turn + cross(body.increment.v, turn)));
}

// Two axes across u, which is not zero (Duff et al. 2017, "Building an orthonormal basis, revisited").
template <class T>
TD_INLINE void axes_across(const Vec3<T> &u, Vec3<T> &first, Vec3<T> &second) {
    const Vec3<T> n = (1.0 / sqrt(dot(u, u))) * u;
    const T sign = select(n.z < T{}, broadcast<T>(-1.0), broadcast<T>(1.0)), a = -1.0 / (sign + n.z), b = n.x * n.y * a;
    first = {1.0 + sign * n.x * n.x * a, sign * b, -sign * n.x}, second = {b, sign + n.y * n.y * a, -n.y};
}

// A joint at one configuration, with the motions that no held direction hinders.
template <class T>
struct JointFrame {
    Mat3<T> R;  // of the joint frame
    Vec3<T> anchor;  // of the child, from the origin
    Vec3<T> held[3], duals[3];  // rotations that the held rows see, and their dual vectors

    // `frame`, of the parent; p: relative orientation. Writes a motion of 6 numbers for each free direction, translations first.
    TD_INLINE void set(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const Mat3<T> &frame, const Quat<T> &p,
                       T *motions) {
        const T *own = &problem.parameters[joint.parameters];
        R = frame * data.offset;
        for (int i = joint.held_t; i < 3; ++i, motions += 6)
            store3(motions, R * load3(own + parameter::translations + 3 * i)), store3(motions + 3, Vec3<T>{});
        const auto turn = [&](const Vec3<T> &z) { store3(motions, cross(anchor, z)), store3(motions + 3, z), motions += 6; };
        Vec3<T>(&u)[3] = held;
        for (int i = 0; i < joint.held_r; ++i) {
            const Vec3<T> c = load3(own + parameter::rotations + 3 * i);
            u[i] = R * (0.5 * (p.w * c + cross(p.v, c)));
        }
        if (joint.held_r == 0) {
            const T one = broadcast<T>(1.0), zero{};
            turn({one, zero, zero}), turn({zero, one, zero}), turn({zero, zero, one});
        } else if (joint.held_r == 1) {
            Vec3<T> first, second;
            axes_across(u[0], first, second);
            turn(first), turn(second);
            duals[0] = (1.0 / dot(u[0], u[0])) * u[0];
        } else if (joint.held_r == 2) {
            const Vec3<T> z = cross(u[0], u[1]);
            const T inverse = 1.0 / dot(z, z);
            turn(z);
            duals[0] = inverse * cross(u[1], z), duals[1] = inverse * cross(z, u[0]);
        } else {
            const Vec3<T> xy = cross(u[0], u[1]), yz = cross(u[1], u[2]), zx = cross(u[2], u[0]);
            const T inverse = 1.0 / dot(u[2], xy);
            duals[0] = inverse * yz, duals[1] = inverse * zx, duals[2] = inverse * xy;
        }
    }
};

// A contact with a half-space: adds to the body's matrix; B (6 x 3) and C (3 x 6) as in ContactData, by wrenches and motions. The contact
// has been linearized without derivatives.
template <class T>
TD_INLINE void contact_matrix(const Problem<T> &problem, const ContactTable &contact, const SpatialBody<T> &own, const Mat3<T> &back,
                              const T *w, T *B, T *C, T *A) {
    const ContactData<T> &data = problem.contacts[&contact - problem.mechanism.contacts.data()];
    const BodyData<T> &body = problem.bodies[contact.body];
    const T *p = &problem.parameters[contact.parameters], inverse_h = 1.0 / problem.timestep(), &c = body.increment.w;
    const Vec3<T> n = load3(p + parameter::normal), lever = body.next.R * data.lever;
    const auto store_column = [&](int column, const Vec3<T> &direction, const Vec3<T> &moment) {
        const Vec3<T> torque = back * moment + cross(own.r, direction);
        for (int k = 0; k < 3; ++k) B[3 * k + column] = direction[k], B[3 * (3 + k) + column] = torque[k];
    };
    const Vec3<T> moment = cross(lever, n);
    store_column(0, n, moment);
    store3(C, n), store3(C + 3, moment + cross(own.r_next, n));
    Vec3<T> force = w[contact.impulse] * n;
    if (contact.friction) {
        const Vec3<T> omega = body.next.R * load3(w + 6 * contact.body + 3), sweep = cross(omega, lever);
        for (int i = 0; i < 2; ++i) {
            const Vec3<T> t = load3(p + parameter::tangents + 3 * i), m = cross(lever, t);
            store_column(1 + i, t, m);
            const Vec3<T> turn = cross(sweep, t) - p[parameter::radius] * cross(cross(t, omega), n);
            store3(C + 6 * (1 + i), inverse_h * t);
            store3(C + 6 * (1 + i) + 3, turn + inverse_h * (cross(own.r_next, t) + c * m - cross(own.a, m)));
            force = force + data.beta[i] * t;
        }
    }
    T KC[18];
    stiffen(contact, data, C, KC);
    for (int r = 0; r < 6; ++r) {
        const T normal = B[3 * r], first = B[3 * r + 1], second = B[3 * r + 2];
        if (!contact.friction) {
            for (int k = 0; k < 6; ++k) A[6 * r + k] += normal * KC[k];
            continue;
        }
#pragma GCC unroll 6
        for (int k = 0; k < 6; ++k) {
            T sum = normal * KC[k];
            sum += first * KC[6 + k] + second * KC[12 + k];
            A[6 * r + k] += sum;
        }
    }
    // The torque l × P turns with the body: its derivative is S.
    const Mat3<T> S = back * torque_by_turn(lever, n, force, p[parameter::radius]);
    for (int r = 0; r < 3; ++r)
        for (int k = 0; k < 3; ++k) A[21 + 6 * r + k] -= S.m[3 * r + k];
}

}  // namespace torchdojo
