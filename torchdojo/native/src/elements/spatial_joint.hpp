// Joints of trees in spatial coordinates (spatial.hpp): their values and rows from the turns of bodies during a step.
//
// With the increments (c, a) of the orientations of parent and child, a in world axes, the relative orientation changes in the world frame by
//
//     p⁺ p⁻¹ ~ X = (c_p, −a_p)(c_c, a_c) = (w, m − k),    w = c_p c_c + a_p·a_c,  m = c_p a_c − c_c a_p,  k = a_p × a_c,
//
// and the child has turned since one step back by (w, m + k), seen from its current orientation. A function linear in p⁺ is linear in X, with
// vectors that stay the same during a step: no quaternion of a next pose is multiplied. `ahead` turns vectors as the parent turns.
#pragma once

#include "elements/joint.hpp"
#include "elements/spatial.hpp"

namespace torchdojo {

// A joint at one configuration, with the motions that no held direction hinders.
template <class T>
struct JointFrame {
    Mat3<T> R;  // axes of the joint frame; at the next configuration only where they are wanted
    Vec3<T> anchor;  // anchor of the child, from the origin
    Vec3<T> held[3], duals[3];  // rotations that the held rows see, and their dual vectors
    Vec3<T> lines[3];  // for several free rotations: the directions that limits see, or else the axes

    // Sets `held` at the relative orientation p.
    TD_INLINE void hold(const T *parameters, const JointTable &joint, const Quat<T> &p) {
        for (int i = 0; i < joint.held_r; ++i) {
            const Vec3<T> c = load3(parameters + parameter::rotations + 3 * i);
            held[i] = R * (0.5 * (p.w * c + cross(p.v, c)));
        }
    }

    // Writes a motion of 6 numbers for each free direction, translations first, and sets the duals. Each of several rotations is seen by
    // one line alone. Else a pressed limit, which adds about 1/κ, would be in all entries of the joint's pivot, and its rounding would cost
    // 1e-8 of a derivative for κ = 1e-6.
    TD_INLINE void set(const T *parameters, const JointTable &joint, T *motions) {
        for (int i = joint.held_t; i < 3; ++i, motions += 6) {
            store3(motions, R * load3(parameters + parameter::translations + 3 * i));
            store3(motions + 3, Vec3<T>{});
        }
        const auto turn = [&](const Vec3<T> &z) {
            store3(motions, cross(anchor, z));
            store3(motions + 3, z);
            motions += 6;
        };
        const Vec3<T>(&u)[3] = held;
        if (joint.held_r == 0) {
            turn(cross(lines[1], lines[2]));
            turn(cross(lines[2], lines[0]));
            turn(cross(lines[0], lines[1]));
        } else if (joint.held_r == 1) {
            turn(cross(lines[1], u[0]));
            turn(cross(u[0], lines[0]));
            duals[0] = inverse_of(dot(u[0], u[0])) * u[0];
        } else if (joint.held_r == 2) {
            const Vec3<T> z = cross(u[0], u[1]);
            const T inverse = inverse_of(dot(z, z));
            turn(z);
            duals[0] = inverse * cross(u[1], z);
            duals[1] = inverse * cross(z, u[0]);
        } else {
            const Vec3<T> xy = cross(u[0], u[1]), yz = cross(u[1], u[2]), zx = cross(u[2], u[0]);
            const T inverse = inverse_of(dot(u[2], xy));
            duals[0] = inverse * yz;
            duals[1] = inverse * zx;
            duals[2] = inverse * xy;
        }
    }
};

// A joint during a step: constants, and the linearization. `turns` has `held` of the current frame. `axes` has the free rotations of the
// joint frame in world axes, 6 numbers apart.
template <class T>
class SpatialJoint {
public:
    Vec3<T> slide[3];  // held translations in the parent's frame

    // Numbers of the step, from the frame at the current pose.
    void prepare(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const JointFrame<T> &frame) {
        const T *p = &problem.parameters[joint.parameters];
        for (int i = 0; i < joint.held_t; ++i) slide[i] = data.offset * load3(p + parameter::translations + 3 * i);
        for (int i = 0; i < joint.held_r; ++i) value[i] = dot(load3(p + parameter::rotations + 3 * i), data.now.p.v);
        if (joint.free_r() != 1) return;
        const Vec3<T> f = load3(p + parameter::rotations + 6);
        axis = problem.bodies[joint.child].pose.R * f;
        if (!joint.limited_r) return;
        sine_now = dot(f, data.now.p.v);
        sine = frame.R * (data.now.p.w * f + cross(data.now.p.v, f));
        cosine = frame.R * data.now.p.v;
    }

    // Residuals of the held rows, rates and coordinates, and impulses along the free directions at w. If `derived`, the frame at the next
    // configuration, and `rows`: derivatives of the free directions by motions, with the condensed pairs.
    template <bool derived>
    void linearize(Problem<T> &problem, const JointTable &joint, JointData<T> &data, const SpatialBody<T> *bodies, const T *turns,
                   const T *axes, const T *w, bool whole, JointFrame<T> &frame, TwistRow<T> *rows) {
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const bool world = joint.parent == problem.mechanism.num_bodies;
        const T *p = &problem.parameters[joint.parameters];
        FreeData<T> *free = joint.free_data < 0 ? nullptr : &problem.free[joint.free_data];
        T *residual = &problem.residual[joint.row];

        const Vec3<T> lever = child.next.R * load3(p + parameter::child_anchor);
        data.next.y = child.next.x + lever - parent.next.x;
        data.next.y_parent = transposed_times(parent.next.R, data.next.y);
        const Vec3<T> gap = data.next.y_parent - load3(p + parameter::parent_anchor);
        for (int i = 0; i < joint.held_t; ++i) residual[i] = dot(slide[i], gap);

        // X, and the turn since one step back
        const T &c_c = child.increment.w, &c_p = parent.increment.w;
        const Vec3<T> a_c = bodies[joint.child].a;
        T scalar = c_c;
        Vec3<T> turn = a_c, since = a_c;
        if (!world) {
            const Vec3<T> a_p = bodies[joint.parent].a, m = c_p * a_c - c_c * a_p, k = cross(a_p, a_c);
            scalar = c_p * c_c + dot(a_p, a_c);
            turn = m - k;
            since = m + k;
        }
        const auto ahead = [&](const Vec3<T> &v) { return world ? v : transposed_times(bodies[joint.parent].back, v); };
        for (int i = 0; i < joint.held_r; ++i) residual[joint.held_t + i] = scalar * value[i] + 2.0 * dot(turn, load3(turns + 3 * i));
        if constexpr (derived) {
            frame.anchor = bodies[joint.child].r_next + lever;
            if (whole || joint.free_t() || joint.has_vector()) frame.R = parent.next.R * data.offset;
            for (int i = 0; i < joint.held_r; ++i) {
                const Vec3<T> u = load3(turns + 3 * i);
                frame.held[i] = ahead(scalar * u + cross(turn, u) - (0.5 * value[i]) * turn);
            }
        }
        if (derived && joint.has_vector() && !joint.limited_r)
            for (int j = 0; j < joint.free_r(); ++j) frame.lines[j] = frame.R * load3(p + parameter::rotations + 3 * (joint.held_r + j));
        if (!joint.has_damper && !free) return;

        // The rotation vectors of both turns, which have one angle.
        const bool mean_rate = joint.has_damper && !joint.has_vector(), rated = free && (joint.armature >= 0 || joint.has_rate_cones);
        RotationVector<T> moved{}, advanced{};
        if (joint.free_r() && (mean_rate || rated)) {
            T scale;
            turn_scale(scalar, dot(turn, turn), scale, advanced.curvature);
            advanced.theta = scale * turn;
            moved = {scale * since, advanced.curvature};
        }
        const T h = problem.timestep(), &inverse_h = problem.inverse_timestep, *damping = problem.damping(joint, data);
        Vec3<T> change, before, after;
        if (mean_rate && joint.free_t()) change = displacement_change(problem, joint, data, w);
        if (free && joint.free_t()) {
            before = problem.displacement(joint, data, data.now);
            after = transposed_times(data.offset, gap);
        }
        if (free && joint.limited_r && joint.has_vector()) {
            data.next.p = conjugate(parent.next.q * data.offset_quaternion) * child.next.q;
            free->next = rotation_vector(data.next.p);
        }
        BodyPose<T> parent_back, child_back;
        if (derived && mean_rate && joint.free_t()) {
            parent_back = parent.one_step_back();
            child_back = child.one_step_back();
            data.before = problem.relative(joint, parent_back, child_back, data.offset_quaternion);
        } else if (derived && mean_rate && whole) {
            data.before.p = conjugate(parent.orientation_back() * data.offset_quaternion) * child.orientation_back();
        }
        const auto relative_row = [](const Vec3<T> &linear, const Vec3<T> &angular) { return TwistRow<T>{linear, angular, -angular}; };

        for (int i = 0; i < joint.free(); ++i) {
            bool translation;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
            const Vec3<T> forward = translation ? Vec3<T>{} : load3(axes + 6 * (i - joint.free_t()));  // f in world axes
            TwistRow<T> row{};
            T impulse{};
            if (mean_rate) {
                data.moved[i] = translation ? dot(f, change) : dot(axis, moved.theta);
                impulse = -damping[i] * data.moved[i];
                if constexpr (derived)
                    row = damping[i] * mean_rate_row(problem, joint, data, bodies, translation, f, moved, parent_back, child_back);
            } else if (joint.has_damper) {
                const JointWrench<T> wrench = joint_wrench(problem, joint, data, translation, f);
                const TwistRow<T> by_twist{wrench.force, wrench.on_child, world ? Vec3<T>{} : wrench.on_parent};
                data.moved[i] = h * by_twist.times(w + 6 * joint.child, world ? nullptr : w + 6 * joint.parent);
                impulse = -damping[i] * data.moved[i];
                if constexpr (derived) row = damping[i] * velocity_row(problem, joint, bodies, wrench);
            }
            if (free) {
                if (translation) {
                    free->coordinate[i] = dot(f, after);
                    free->rate[i] = inverse_h * dot(f, after - before);
                } else {
                    if (rated) free->rate[i] = inverse_h * dot(forward, advanced.theta);
                    if (joint.limited_r && joint.has_vector()) free->coordinate[i] = dot(f, free->next.theta);
                }
                if constexpr (derived) {
                    if (translation) {
                        const Vec3<T> along = frame.R * f;
                        free->coordinate_row[i] = relative_row(along, cross(frame.anchor, along));
                        free->rate_row[i] = inverse_h * free->coordinate_row[i];
                    } else {
                        if (rated)
                            free->rate_row[i] = relative_row(Vec3<T>{}, ahead(inverse_h * right_jacobian_inverse(advanced, forward)));
                        if (joint.limited_r && joint.has_vector()) {
                            const Vec3<T> line = frame.lines[i - joint.free_t()] = frame.R * right_jacobian_inverse(free->next, f);
                            free->coordinate_row[i] = relative_row(Vec3<T>{}, line);
                        }
                    }
                }
                if (!translation && joint.limited_r && !joint.has_vector()) {
                    const T &cosine_now = data.now.p.w, s = scalar * sine_now + dot(turn, sine),
                            c = scalar * cosine_now - dot(turn, cosine);
                    free->coordinate[i] = next_to(double_angle(s, c), free->angle);
                    if constexpr (derived) {
                        const Vec3<T> q = c * sine + s * cosine;
                        const Vec3<T> by_turn = scalar * q + cross(turn, q) + (s * cosine_now - c * sine_now) * turn;
                        free->coordinate_row[i] = relative_row(Vec3<T>{}, ahead(inverse_of(c * c + s * s) * by_turn));
                    }
                }
                if (joint.armature >= 0) {
                    const T &a = problem.parameters[joint.armature + i];
                    if constexpr (derived) row = row + a * free->rate_row[i];
                    impulse -= a * (free->rate[i] - free->incoming_rate[i]);
                }
            }
            data.impulse[i] = impulse;
            if constexpr (derived) rows[i] = row;
        }
        if constexpr (derived)
            for (int e = 0; e < joint.extra; ++e) rows[joint.free() + e] = TwistRow<T>{};
        if (!free) return;
        if (joint.has_rate_cones && joint.free_r() == 3)
            for (int i = 0; i < 3; ++i) {
                const Vec3<T> &own_axis = free->own_axis[i];
                const TwistRow<T> *rates = free->rate_row + joint.free_t();
                free->own_rate[i] = dot(own_axis, load3(free->rate + joint.free_t()));
                if constexpr (derived) free->own_row[i] = own_axis.x * rates[0] + own_axis.y * rates[1] + own_axis.z * rates[2];
            }
        linearize_cones(problem, joint, data, *free, w);
        if constexpr (!derived) return;
        for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
            const JointConeTable &cone = problem.mechanism.joint_cones[c];
            const TwistRow<T> pair_row = problem.joint_cones[c].stiffness * problem.cone_row(cone);
            problem.each_row(
                cone, [&](int place, const T &weight) { rows[place - joint.held()] = rows[place - joint.held()] + weight * pair_row; });
        }
    }

private:
    T value[3];  // values of the held rotations at the current pose
    Vec3<T> axis;  // axis of a single rotation, as the child has it
    T sine_now;  // f·v of p. sine, cosine: derivatives of f·v and −w of p⁺ by X
    Vec3<T> sine, cosine;

    // Dampers compare with the poses one step back: an orientation there turns by −R δφ in the body frame of now, whatever the turn.
    TwistRow<T> mean_rate_row(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const SpatialBody<T> *bodies,
                              bool translation, const Vec3<T> &f, const RotationVector<T> &moved, const BodyPose<T> &parent_back,
                              const BodyPose<T> &child_back) const {
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const bool world = joint.parent == problem.mechanism.num_bodies;
        if (!translation) {
            const Vec3<T> on_child = right_jacobian_inverse(moved, axis);
            if (world) return {Vec3<T>{}, on_child, Vec3<T>{}};
            return {Vec3<T>{}, on_child, -transposed_times(bodies[joint.parent].back, bodies[joint.child].back * on_child)};
        }
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        const auto g = translation_gradient(parent_back, child_back, data.offset, data.before, anchor, f);
        const Vec3<T> on_parent = world ? Vec3<T>{} : cross(bodies[joint.parent].r_next, g.x_child);
        return {g.x_child, child.pose.R * g.phi_child + cross(bodies[joint.child].r_next, g.x_child),
                parent.pose.R * g.phi_parent - on_parent};
    }

    // Dampers of several rotations are linear in the twists.
    TwistRow<T> velocity_row(const Problem<T> &problem, const JointTable &joint, const SpatialBody<T> *bodies,
                             const JointWrench<T> &wrench) const {
        const auto turn = [&](int body, const Vec3<T> &torque) {
            const BodyData<T> &data = problem.bodies[body];
            return data.next.R * (data.increment.w * torque - cross(data.increment.v, torque));
        };
        TwistRow<T> row{wrench.force, turn(joint.child, wrench.on_child) + cross(bodies[joint.child].r_next, wrench.force), Vec3<T>{}};
        if (joint.parent != problem.mechanism.num_bodies)
            row.parent = turn(joint.parent, wrench.on_parent) - cross(bodies[joint.parent].r_next, wrench.force);
        return row;
    }
};

}  // namespace torchdojo
