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
    Mat3<T> back;  // of bodies with contacts: from the next to the current orientation
    Vec3<T> omega;  // and R⁺ ω
};

// A contact with a half-space, by motions of its body.
template <class T>
struct SpatialContact {
    Vec3<T> lever;  // from the center of mass, at the next pose
    T rows[18];  // of the gap and the slip, 3 x 6
};

template <class T>
TD_INLINE T dot6(const T *a, const T *b) {
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3] + a[4] * b[4] + a[5] * b[5];
}

// Derivative of the balance of a body by its motion, 6 x 6 by rows, with wrenches about the origin.
template <class T>
TD_INLINE void body_matrix(const Problem<T> &problem, int i, const Vec3<T> &origin, SpatialBody<T> &own, const T *w, T *A) {
    const T h = problem.timestep(), &inverse_h = problem.inverse_timestep;
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
    const T inverse_c = inverse_of(c);
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
    const Vec3<T> n = inverse_of(root(dot(u, u))) * u;
    const T sign = select(n.z < T{}, broadcast<T>(-1.0), broadcast<T>(1.0)), a = -inverse_of(sign + n.z), b = n.x * n.y * a;
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
            duals[0] = inverse_of(dot(u[0], u[0])) * u[0];
        } else if (joint.held_r == 2) {
            const Vec3<T> z = cross(u[0], u[1]);
            const T inverse = inverse_of(dot(z, z));
            turn(z);
            duals[0] = inverse * cross(u[1], z), duals[1] = inverse * cross(z, u[0]);
        } else {
            const Vec3<T> xy = cross(u[0], u[1]), yz = cross(u[1], u[2]), zx = cross(u[2], u[0]);
            const T inverse = inverse_of(dot(u[2], xy));
            duals[0] = inverse * yz, duals[1] = inverse * zx, duals[2] = inverse * xy;
        }
    }
};

// Rows of the free directions of a joint by motions of its bodies, in place of those by twists that linearize_free stores, with the condensed
// pairs. `frame` is at the next configuration. Rates and coordinates are functions of the relative pose, so only the difference of the
// motions counts, and Q J_r⁻¹(θ) f is the whole row of a component of a rotation vector θ. Dampers compare with the poses one step back: an
// orientation there turns by −R δφ in the body frame of now, whatever the turn.
template <class T>
void motion_rows(Problem<T> &problem, const JointTable &joint, JointData<T> &data, const SpatialBody<T> *bodies, const JointFrame<T> &frame,
                 TwistRow<T> *rows) {
    const T &inverse_h = problem.inverse_timestep;
    const T *damping = problem.damping(joint, data);
    const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
    const bool world = joint.parent == problem.mechanism.num_bodies;
    const Vec3<T> child_next = bodies[joint.child].r_next, parent_next = world ? Vec3<T>{} : bodies[joint.parent].r_next;
    FreeData<T> *free = joint.free_data < 0 ? nullptr : &problem.free[joint.free_data];
    const auto relative_row = [](const Vec3<T> &linear, const Vec3<T> &angular) { return TwistRow<T>{linear, angular, -angular}; };
    const bool mean_rate = joint.has_damper && !joint.has_vector();
    BodyPose<T> parent_back, child_back;
    if (mean_rate && joint.free_t()) {
        parent_back = parent.one_step_back(), child_back = child.one_step_back();
        data.before = problem.relative(joint, parent_back, child_back, data.offset_quaternion);
    } else if (mean_rate) {
        data.before.p = conjugate(parent.orientation_back() * data.offset_quaternion) * child.orientation_back();
    }
    for (int i = 0; i < joint.free(); ++i) {
        bool translation;
        const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
        TwistRow<T> &row = rows[i];
        row = TwistRow<T>{};
        if (mean_rate && translation) {
            const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
            const auto g = translation_gradient(parent_back, child_back, data.offset, data.before, anchor, f);
            row = damping[i] * TwistRow<T>{g.x_child, child.pose.R * g.phi_child + cross(child_next, g.x_child),
                                           parent.pose.R * g.phi_parent - cross(parent_next, g.x_child)};
        } else if (mean_rate) {
            const Vec3<T> g = damping[i] * right_jacobian_inverse(data.turn, f);
            row.child = child.pose.R * g;
            if (!world) row.parent = -(parent.pose.R * (data.offset * rotate(data.before.p, g)));
        } else if (joint.has_damper) {
            const JointWrench<T> wrench = joint_wrench(problem, joint, data, translation, f);
            const auto turn = [](const BodyData<T> &body, const Vec3<T> &torque) {
                return body.next.R * (body.increment.w * torque - cross(body.increment.v, torque));
            };
            row = damping[i] * TwistRow<T>{wrench.force, turn(child, wrench.on_child) + cross(child_next, wrench.force),
                                           world ? Vec3<T>{} : turn(parent, wrench.on_parent) - cross(parent_next, wrench.force)};
        }
        if (!free) continue;
        if (translation) {
            const Vec3<T> along = frame.R * f;
            free->coordinate_row[i] = relative_row(along, cross(frame.anchor, along));
            free->rate_row[i] = inverse_h * free->coordinate_row[i];
        } else {
            free->rate_row[i] = relative_row(Vec3<T>{}, frame.R * (inverse_h * right_jacobian_inverse(free->turn, f)));
            if (joint.limited_r)
                free->coordinate_row[i] = relative_row(Vec3<T>{}, frame.R * angle_by_turn(joint, data.next.p, free->next, f));
        }
        if (joint.armature >= 0) row = row + problem.parameters[joint.armature + i] * free->rate_row[i];
    }
    for (int e = 0; e < joint.extra; ++e) rows[joint.free() + e] = TwistRow<T>{};
    if (!free) return;
    if (joint.has_rate_cones && joint.free_r() == 3)
        for (int i = 0; i < 3; ++i) {
            const Vec3<T> &axis = free->own_axis[i];
            const TwistRow<T> *rates = free->rate_row + joint.free_t();
            free->own_row[i] = axis.x * rates[0] + axis.y * rates[1] + axis.z * rates[2];
        }
    for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
        const JointConeTable &cone = problem.mechanism.joint_cones[c];
        const TwistRow<T> own = problem.joint_cones[c].stiffness * problem.cone_row(cone);
        problem.each_row(cone, [&](int at, const T &weight) { rows[at - joint.held()] = rows[at - joint.held()] + weight * own; });
    }
}

// A contact with a half-space (HalfSpace): its residuals, its force and moment about the center of mass, which it adds to `pressed`, and,
// if `derived`, its rows and its part of the body's matrix.
template <bool derived, class T>
TD_INLINE void touch(Problem<T> &problem, const ContactTable &contact, const SpatialBody<T> &own, const T *w, SpatialContact<T> &at,
                     T *pressed, T *A) {
    ContactData<T> &data = problem.contacts[&contact - problem.mechanism.contacts.data()];
    const BodyData<T> &body = problem.bodies[contact.body];
    const T *p = &problem.parameters[contact.parameters], *impulse = w + contact.impulse, *slack = w + contact.slack;
    const T &radius = p[parameter::radius], &inverse_h = problem.inverse_timestep, &c = body.increment.w;
    const Vec3<T> n = load3(p + parameter::normal), arm = body.next.R * load3(p + parameter::point), lever = arm - radius * n;
    at.lever = lever;
    T *row = &problem.residual[contact.impulse], *C = at.rows;
    T gap = dot(n, body.next.x + arm) - p[parameter::offset] - radius;
    if (problem.overlaps && problem.laws[contact.law].overlaps) gap += GapLaw<T>::shift(problem, contact, impulse[0]);
    row[0] = gap - slack[0];
    Vec3<T> force = impulse[0] * n, tangent[2];
    if constexpr (derived) store3(C, n), store3(C + 3, cross(lever + own.r_next, n));
    if (contact.friction) {
        const Vec3<T> v = load3(w + 6 * contact.body), sweep = cross(own.omega, lever), velocity = v + sweep;
        tangential(contact, impulse + 1, data.beta);
        for (int i = 0; i < 2; ++i) {
            const Vec3<T> t = tangent[i] = load3(p + parameter::tangents + 3 * i);
            force = force + data.beta[i] * t;
            if constexpr (!derived) continue;
            const Vec3<T> m = cross(lever, t), turn = cross(sweep, t) - radius * cross(cross(t, own.omega), n);
            store3(C + 6 * (1 + i), inverse_h * t);
            store3(C + 6 * (1 + i) + 3, turn + inverse_h * (cross(own.r_next, t) + c * m - cross(own.a, m)));
        }
        friction_rows(contact, p[parameter::friction] * impulse[0], impulse + 1, slack + 1, dot(tangent[0], velocity),
                      dot(tangent[1], velocity), row + 1);
    }
    add3(pressed, force), add3(pressed + 3, cross(lever, force));
    if constexpr (!derived) return;
    T KC[18], F[18];  // condensed force by motion
    stiffen(contact, data, C, KC);
    for (int r = 0; r < 3; ++r)
        for (int k = 0; k < 6; ++k) {
            T sum = n[r] * KC[k];
            if (contact.friction) sum += tangent[0][r] * KC[6 + k] + tangent[1][r] * KC[12 + k];
            F[6 * r + k] = sum, A[6 * r + k] += sum;
        }
    const Vec3<T> &o = own.r;
    const Vec3<T> about[3] = {{T{}, -o.z, o.y}, {o.z, T{}, -o.x}, {-o.y, o.x, T{}}};
    for (int r = 0; r < 3; ++r) {
        const Vec3<T> moment = cross(own.back.row(r), lever) + about[r];
        for (int k = 0; k < 6; ++k) A[18 + 6 * r + k] += moment.x * F[k] + moment.y * F[6 + k] + moment.z * F[12 + k];
    }
    // The torque l × P turns with the body: its derivative is S.
    const Mat3<T> S = own.back * torque_by_turn(lever, n, force, radius);
    for (int r = 0; r < 3; ++r)
        for (int k = 0; k < 3; ++k) A[21 + 6 * r + k] -= S.m[3 * r + k];
}

}  // namespace torchdojo
