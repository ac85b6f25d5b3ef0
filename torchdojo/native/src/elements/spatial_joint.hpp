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
    // configuration, and `rows`: derivatives of the free directions by motions, with the condensed pairs. whole: whether all of the frame
    // and the configuration one step back are wanted.
    template <bool derived>
    void linearize(Problem<T> &problem, const JointTable &joint, JointData<T> &data, const SpatialBody<T> *bodies, const T *turns,
                   const T *axes, const T *w, bool whole, JointFrame<T> &frame, TwistRow<T> *rows) {
        FreeData<T> *free = joint.free_data < 0 ? nullptr : &problem.free[joint.free_data];
        const Turn turn(problem, joint, bodies);
        const Vec3<T> gap = linearize_held<derived>(problem, joint, data, bodies, turns, turn, whole, frame);
        if (!joint.has_damper && !free) return;

        const bool mean_rate = joint.has_damper && !joint.has_vector(), rated = free && (joint.armature >= 0 || joint.has_rate_cones);
        MeanRate mean;
        Advance advance;
        if (joint.free_r() && (mean_rate || rated)) turn.find_vectors(advance.turned, mean.turned);
        if (mean_rate) mean.template move<derived>(problem, joint, data, w, whole);
        if (free) advance.move(problem, joint, data, gap, *free);
        const T *damping = problem.damping(joint, data);
        for (int i = 0; i < joint.free(); ++i) {
            bool translation;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
            TwistRow<T> row{};
            T impulse{};
            if (joint.has_damper) {
                row = mean_rate ? mean_rate_row<derived>(problem, joint, data, bodies, i, translation, f, mean)
                                : velocity_row<derived>(problem, joint, data, bodies, i, translation, f, w);
                impulse = -damping[i] * data.moved[i];
                T slope = damping[i];
                if (joint.curve >= 0) slope += set_curves(problem, joint, data, i);
                row = slope * row;
            }
            if (free && translation) {
                advance.template translate<derived>(problem, frame, i, f, *free);
            } else if (free) {
                const Vec3<T> in_world = load3(axes + 6 * (i - joint.free_t()));
                if (rated) advance.template rotate<derived>(problem, turn, i, in_world, *free);
                if (joint.limited_r && joint.has_vector()) line_of<derived>(joint, i, f, frame, *free);
                else if (joint.limited_r) angle_of<derived>(data.now.p.w, turn, i, *free);
            }
            if (free && joint.armature >= 0) {
                const T &a = problem.parameters[joint.armature + i];
                if constexpr (derived) row = row + a * free->rate_row[i];
                impulse -= a * (free->rate[i] - free->incoming_rate[i]);
            }
            data.impulse[i] = impulse;
            if (joint.curve >= 0) data.impulse[i] += problem.curve(joint).impulse[i];
            if constexpr (derived) rows[i] = row;
        }
        if (joint.cone >= 0) cone_of(problem, joint, data, derived ? &frame.R : nullptr, *free);
        if constexpr (derived)
            for (int e = 0; e < joint.extra; ++e) rows[joint.free() + e] = TwistRow<T>{};
        if (!free) return;
        if (joint.has_rate_cones && joint.free_r() == 3) set_own_rates<derived>(joint, *free);
        linearize_cones(problem, joint, data, *free, w);
        if constexpr (derived) add_pairs(problem, joint, rows);
    }

private:
    T value[3];  // values of the held rotations at the current pose
    Vec3<T> axis;  // axis of a single rotation, as the child has it
    T sine_now;  // f·v of p. sine, cosine: derivatives of f·v and −w of p⁺ by X
    Vec3<T> sine, cosine;

    // The turn of a joint during the step, X = (scalar, vector), and since one step back, (scalar, since).
    struct Turn {
        T scalar;
        Vec3<T> vector, since;
        const Mat3<T> *back;  // turns the parent back; null: the parent is the world

        TD_INLINE Turn(const Problem<T> &problem, const JointTable &joint, const SpatialBody<T> *bodies)
            : scalar(problem.bodies[joint.child].increment.w), vector(bodies[joint.child].a), since(vector), back(nullptr) {
            if (joint.parent == problem.mechanism.num_bodies) return;
            const T c_c = scalar, &c_p = problem.bodies[joint.parent].increment.w;
            const Vec3<T> a_c = vector, a_p = bodies[joint.parent].a, m = c_p * a_c - c_c * a_p, k = cross(a_p, a_c);
            scalar = c_p * c_c + dot(a_p, a_c);
            vector = m - k;
            since = m + k;
            back = &bodies[joint.parent].back;
        }
        TD_INLINE Vec3<T> ahead(const Vec3<T> &v) const { return back ? transposed_times(*back, v) : v; }
        // The rotation vectors of both turns, which have one angle.
        TD_INLINE void find_vectors(RotationVector<T> &of_step, RotationVector<T> &of_both) const {
            T scale;
            turn_scale(scalar, dot(vector, vector), scale, of_step.curvature);
            of_step.theta = scale * vector;
            of_both = {scale * since, of_step.curvature};
        }
    };

    // The motion since one step back, which dampers see as a mean rate.
    struct MeanRate {
        RotationVector<T> turned{};
        Vec3<T> change;  // change of the displacement
        BodyPose<T> parent_back, child_back;

        template <bool derived>
        TD_INLINE void move(const Problem<T> &problem, const JointTable &joint, JointData<T> &data, const T *w, bool whole) {
            const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
            if (joint.free_t()) change = displacement_change(problem, joint, data, w);
            if constexpr (!derived) return;
            if (joint.free_t()) {
                parent_back = parent.one_step_back();
                child_back = child.one_step_back();
                data.before = problem.relative(joint, parent_back, child_back, data.offset_quaternion);
            } else if (whole) {
                data.before.p = conjugate(parent.orientation_back() * data.offset_quaternion) * child.orientation_back();
            }
        }
    };

    // The motion during the step, which rates and coordinates see.
    struct Advance {
        RotationVector<T> turned{};
        Vec3<T> before, after;  // displacements

        TD_INLINE void move(const Problem<T> &problem, const JointTable &joint, JointData<T> &data, const Vec3<T> &gap, FreeData<T> &free) {
            if (joint.free_t()) {
                before = problem.displacement(joint, data, data.now);
                after = transposed_times(data.offset, gap);
            }
            if (joint.limited_r && joint.has_vector()) {
                const BodyPose<T> &parent = problem.bodies[joint.parent].next, &child = problem.bodies[joint.child].next;
                data.next.p = conjugate(parent.q * data.offset_quaternion) * child.q;
                free.next = rotation_vector(data.next.p);
            }
        }
        // Rate and coordinate along a translation f, and their rows.
        template <bool derived>
        TD_INLINE void translate(const Problem<T> &problem, const JointFrame<T> &frame, int i, const Vec3<T> &f, FreeData<T> &free) const {
            free.coordinate[i] = dot(f, after);
            free.rate[i] = problem.inverse_timestep * dot(f, after - before);
            if constexpr (!derived) return;
            const Vec3<T> along = frame.R * f;
            free.coordinate_row[i] = relative_row(along, cross(frame.anchor, along));
            free.rate_row[i] = problem.inverse_timestep * free.coordinate_row[i];
        }
        // Rate about an axis in the world, and its row.
        template <bool derived>
        TD_INLINE void rotate(const Problem<T> &problem, const Turn &turn, int i, const Vec3<T> &axis, FreeData<T> &free) const {
            const T &inverse_h = problem.inverse_timestep;
            free.rate[i] = inverse_h * dot(axis, turned.theta);
            if constexpr (derived) free.rate_row[i] = relative_row(Vec3<T>{}, turn.ahead(inverse_h * right_jacobian_inverse(turned, axis)));
        }
    };

    static TD_INLINE TwistRow<T> relative_row(const Vec3<T> &linear, const Vec3<T> &angular) { return {linear, angular, -angular}; }

    // Residuals of the held rows, and the frame at the next configuration. Returns the displacement of the anchors in the parent's frame.
    template <bool derived>
    TD_INLINE Vec3<T> linearize_held(Problem<T> &problem, const JointTable &joint, JointData<T> &data, const SpatialBody<T> *bodies,
                                     const T *turns, const Turn &turn, bool whole, JointFrame<T> &frame) const {
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const T *p = &problem.parameters[joint.parameters];
        T *residual = &problem.residual[joint.row];
        const Vec3<T> lever = child.next.R * load3(p + parameter::child_anchor);
        data.next.y = child.next.x + lever - parent.next.x;
        data.next.y_parent = transposed_times(parent.next.R, data.next.y);
        const Vec3<T> gap = data.next.y_parent - load3(p + parameter::parent_anchor);
        for (int i = 0; i < joint.held_t; ++i) residual[i] = dot(slide[i], gap);
        for (int i = 0; i < joint.held_r; ++i)
            residual[joint.held_t + i] = turn.scalar * value[i] + 2.0 * dot(turn.vector, load3(turns + 3 * i));
        if constexpr (!derived) return gap;
        frame.anchor = bodies[joint.child].r_next + lever;
        if (whole || joint.free_t() || joint.has_vector()) frame.R = parent.next.R * data.offset;
        for (int i = 0; i < joint.held_r; ++i) {
            const Vec3<T> u = load3(turns + 3 * i);
            frame.held[i] = turn.ahead(turn.scalar * u + cross(turn.vector, u) - (0.5 * value[i]) * turn.vector);
        }
        for (int j = 0; joint.has_vector() && !joint.limited_r && j < joint.free_r(); ++j)
            frame.lines[j] = frame.R * load3(p + parameter::rotations + 3 * (joint.held_r + j));
        return gap;
    }

    // Component i of a rotation vector along f, and its row.
    template <bool derived>
    static TD_INLINE void line_of(const JointTable &joint, int i, const Vec3<T> &f, JointFrame<T> &frame, FreeData<T> &free) {
        free.coordinate[i] = dot(f, free.next.theta);
        if constexpr (!derived) return;
        const Vec3<T> line = frame.R * right_jacobian_inverse(free.next, f);
        frame.lines[i - joint.free_t()] = line;
        free.coordinate_row[i] = relative_row(Vec3<T>{}, line);
    }

    // What the limit of a cone sees, and its row where the frame of the joint is given.
    [[gnu::noinline]] static void cone_of(const Problem<T> &problem, const JointTable &joint, JointData<T> &data, const Mat3<T> *frame,
                                          FreeData<T> &free) {
        data.next.p = conjugate(problem.bodies[joint.parent].next.q * data.offset_quaternion) * problem.bodies[joint.child].next.q;
        measure_cone(problem, joint, data.next.p, free);
        if (!frame) return;
        free.coordinate_row[joint.free_t()] = relative_row(Vec3<T>{}, *frame * cone_gradient(problem, joint, data, free.next).phi_child);
    }

    // The angle of a single rotation, coordinate i, and its row.
    template <bool derived>
    TD_INLINE void angle_of(const T &cosine_now, const Turn &turn, int i, FreeData<T> &free) const {
        const T s = turn.scalar * sine_now + dot(turn.vector, sine), c = turn.scalar * cosine_now - dot(turn.vector, cosine);
        free.coordinate[i] = next_to(double_angle(s, c), free.angle);
        if constexpr (!derived) return;
        const Vec3<T> q = c * sine + s * cosine;
        const Vec3<T> by_turn = turn.scalar * q + cross(turn.vector, q) + (s * cosine_now - c * sine_now) * turn.vector;
        free.coordinate_row[i] = relative_row(Vec3<T>{}, turn.ahead(inverse_of(c * c + s * s) * by_turn));
    }

    // Rates about the axes of the child, and their rows.
    template <bool derived>
    static TD_INLINE void set_own_rates(const JointTable &joint, FreeData<T> &free) {
        const TwistRow<T> *rates = free.rate_row + joint.free_t();
        for (int i = 0; i < 3; ++i) {
            const Vec3<T> &own_axis = free.own_axis[i];
            free.own_rate[i] = dot(own_axis, load3(free.rate + joint.free_t()));
            if constexpr (derived) free.own_row[i] = own_axis.x * rates[0] + own_axis.y * rates[1] + own_axis.z * rates[2];
        }
    }

    // Adds the condensed pairs to the rows.
    static TD_INLINE void add_pairs(const Problem<T> &problem, const JointTable &joint, TwistRow<T> *rows) {
        for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
            const JointConeTable &cone = problem.mechanism.joint_cones[c];
            const TwistRow<T> pair_row = problem.joint_cones[c].stiffness * problem.cone_row(cone);
            problem.each_row(cone, [&](int place, const T &weight) {
                TwistRow<T> &row = rows[place - joint.held()];
                row = row + weight * pair_row;
            });
        }
    }

    // The row of a damper of a mean rate, per unit; sets h times the rate. Dampers compare with the poses one step back: an orientation there
    // turns by −R δφ in the body frame of now, whatever the turn.
    template <bool derived>
    TD_INLINE TwistRow<T> mean_rate_row(const Problem<T> &problem, const JointTable &joint, JointData<T> &data,
                                        const SpatialBody<T> *bodies, int i, bool translation, const Vec3<T> &f,
                                        const MeanRate &mean) const {
        data.moved[i] = translation ? dot(f, mean.change) : dot(axis, mean.turned.theta);
        if constexpr (!derived) return TwistRow<T>{};
        return by_mean_rate(problem, joint, data, bodies, translation, f, mean);
    }
    TwistRow<T> by_mean_rate(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const SpatialBody<T> *bodies,
                             bool translation, const Vec3<T> &f, const MeanRate &mean) const {
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const bool world = joint.parent == problem.mechanism.num_bodies;
        if (!translation) {
            const Vec3<T> on_child = right_jacobian_inverse(mean.turned, axis);
            if (world) return {Vec3<T>{}, on_child, Vec3<T>{}};
            return {Vec3<T>{}, on_child, -transposed_times(bodies[joint.parent].back, bodies[joint.child].back * on_child)};
        }
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        const auto g = translation_gradient(mean.parent_back, mean.child_back, data.offset, data.before, anchor, f);
        const Vec3<T> on_parent = world ? Vec3<T>{} : cross(bodies[joint.parent].r_next, g.x_child);
        return {g.x_child, child.pose.R * g.phi_child + cross(bodies[joint.child].r_next, g.x_child),
                parent.pose.R * g.phi_parent - on_parent};
    }

    // The same for dampers of several rotations, which are linear in the twists.
    template <bool derived>
    TD_INLINE TwistRow<T> velocity_row(const Problem<T> &problem, const JointTable &joint, JointData<T> &data, const SpatialBody<T> *bodies,
                                       int i, bool translation, const Vec3<T> &f, const T *w) const {
        const bool world = joint.parent == problem.mechanism.num_bodies;
        const JointWrench<T> wrench = joint_wrench(problem, joint, data, translation, f);
        const TwistRow<T> by_twist{wrench.force, wrench.on_child, world ? Vec3<T>{} : wrench.on_parent};
        data.moved[i] = problem.timestep() * by_twist.times(w + 6 * joint.child, world ? nullptr : w + 6 * joint.parent);
        if constexpr (!derived) return TwistRow<T>{};
        return by_velocity(problem, joint, bodies, wrench);
    }
    TwistRow<T> by_velocity(const Problem<T> &problem, const JointTable &joint, const SpatialBody<T> *bodies,
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
