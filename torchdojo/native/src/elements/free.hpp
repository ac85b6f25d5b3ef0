// The free directions of joints: dampers, armature, and limits and Coulomb friction of the coordinates (joint_cones.py, joints.py).
//
// The impulse λ along a free direction has its own row in the joint's node. So λ couples the bodies through the joint and not directly:
//
//     δλ + (h·damping ∂r̂ + armature ∂ċ⁺ + k ∂ċ⁺ + Σ (γ/s) ∂c⁺) δw = remaining error of the cones' products.
//
// c⁺ is the coordinate at the next configuration, and ċ⁺ = (c⁺ − c)/h. For rotations, ċ⁺ is the rotation vector of p⁺ p⁻¹ over h. Dampers
// see the backward difference r̂, or in joints with several rotations the velocity along the direction, which is linear in w. The condensed
// pairs have k = 1/(c + σ_p/p + σ_q/q) and γ/s (joint_cone.hpp). Limits on components of a rotation vector act in other directions than
// inputs; their rows stand behind the others.
#pragma once

#include "solver/problem.hpp"

namespace torchdojo {

// Cones of balls (ball_cones.py): the limit sees c = |θ|²/(2R) + R/2 of the rotation vector θ, at most R. Its derivative by θ is n = θ/R,
// which J_l⁻¹ and J_r⁻¹ leave as it is. Most mechanisms have none, so these functions stand alone.
template <class T>
[[gnu::noinline]] void measure_cone(const Problem<T> &problem, const JointTable &joint, const Quat<T> &p, FreeData<T> &free) {
    const T &angle = problem.parameters[joint.cone];
    free.next = rotation_vector(p);
    free.coordinate[joint.free_t()] = 0.5 * (dot(free.next.theta, free.next.theta) / angle + angle);
}

// Derivatives of c by the poses.
template <class T>
[[gnu::noinline]] RowGradient<T, T> cone_gradient(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data,
                                                  const RotationVector<T> &angle) {
    const Vec3<T> n = (1.0 / problem.parameters[joint.cone]) * angle.theta;
    return {Vec3<T>{}, n, -(data.offset * n)};
}

// The torques of a cone, at the current configuration.
template <class T>
[[gnu::noinline]] void prepare_cone(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, FreeData<T> &free) {
    measure_cone(problem, joint, data.now.p, free);  // `prepare_limits` looks at it
    free.now = free.next;
    free.limit_parent[0] = cone_gradient(problem, joint, data, free.now).phi_parent;
    free.limit_child[0] = transposed_times(problem.bodies[joint.child].pose.R, problem.bodies[joint.parent].pose.R * -free.limit_parent[0]);
}

// The row of c at the next configuration by the twists.
template <class T>
[[gnu::noinline]] void set_cone_row(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, FreeData<T> &free) {
    const RowGradient<T, T> g = cone_gradient(problem, joint, data, free.next);
    free.coordinate_row[joint.free_t()] = {Vec3<T>{}, transposed_times(problem.bodies[joint.child].M, g.phi_child),
                                           transposed_times(problem.bodies[joint.parent].M, g.phi_parent)};
}

// Rates and coordinates of a joint with armature, limits or friction at the end of a step to the configuration of `next`.
template <class T>
void free_values(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const Relative<T> &next, FreeData<T> &free) {
    const T *p = &problem.parameters[joint.parameters];
    Vec3<T> d_now, d_next;
    if (joint.free_t()) {
        d_now = problem.displacement(joint, data, data.now);
        d_next = problem.displacement(joint, data, next);
    }
    for (int i = 0; i < joint.free_t(); ++i) {
        const Vec3<T> f = load3(p + parameter::translations + 3 * (joint.held_t + i));
        free.coordinate[i] = dot(f, d_next);
        free.rate[i] = problem.inverse_timestep * dot(f, d_next - d_now);
    }
    if (!joint.free_r()) return;
    free.turn = rotation_vector(next.p * conjugate(data.now.p));
    if (joint.limited_r && joint.free_r() > 1) free.next = rotation_vector(next.p);
    for (int j = 0; j < joint.free_r(); ++j) {
        const Vec3<T> f = load3(p + parameter::rotations + 3 * (joint.held_r + j));
        const int i = joint.free_t() + j;
        free.rate[i] = problem.inverse_timestep * dot(f, free.turn.theta);
        if (joint.limited_r) free.coordinate[i] = joint.free_r() > 1 ? dot(f, free.next.theta) : angle_near(next.p, f, free.angle);
    }
    if (joint.cone >= 0) measure_cone(problem, joint, next.p, free);
    if (joint.has_rate_cones && joint.free_r() == 3)
        for (int i = 0; i < 3; ++i) free.own_rate[i] = dot(free.own_axis[i], load3(free.rate + joint.free_t()));
}

// max(stiffness, √r |torque| / 1 rad) of one of r angles where the stiffness is not zero, and its derivative by the torque (servo.py).
template <class T>
TD_INLINE T at_most_one_radian(const JointTable &joint, int i, const T &stiffness, const T &torque, T &slope) {
    slope = T{};
    if (i < joint.free_t()) return stiffness;
    const double root = std::sqrt(double(joint.free_r()));
    const T larger = select(stiffness > T{}, root * abs(torque), T{});
    slope = select(larger > stiffness, select(torque > T{}, broadcast<T>(root), broadcast<T>(-root)), T{});
    return max(stiffness, larger);
}

// Dampers together with implicit springs and servos, from the impulses along the free directions and along the rotation vector.
template <class T>
void prepare_stiffness(const Problem<T> &problem, const JointTable &joint, JointData<T> &data, const T *pull) {
    const T h = problem.timestep(), *damper = &problem.parameters[joint.parameters + joint.damper()];
    for (int i = 0; i < joint.free(); ++i) {
        const T stiffness = problem.parameters[joint.stiffness + i];
        const T torque = (data.free_force[i] + pull[i]) / h;
        data.damping[i] = damper[i] + h * at_most_one_radian(joint, i, stiffness, torque, data.excess[i]);
    }
}

// Offsets and compliances of drives. A drive has the input of its coordinate, and its middle is a constant force.
template <class T>
void prepare_drives(Problem<T> &problem, const JointTable &joint, JointData<T> &data) {
    const T h = problem.timestep();
    const int n = joint.free();
    for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
        const JointConeTable &cone = problem.mechanism.joint_cones[c];
        if (cone.kind != JointConeTable::drive) continue;
        const T *p = &problem.parameters[cone.parameter];
        const T middle = p[n * parameter::drive::middle];
        DriveData<T> &drive = problem.joint_cones[c].drive;
        const T u = joint.input < 0 ? T{} : problem.u[joint.input + cone.coordinate];
        const T stiffness = p[n * parameter::drive::stiffness];
        drive.gain = p[n * parameter::drive::damping] + h * at_most_one_radian(joint, cone.coordinate, stiffness, u, drive.excess);
        drive.compliance = inverse_of(drive.gain * h);
        drive.offset = h * drive.compliance * (u - middle);
        data.free_force[cone.coordinate] += h * middle;
    }
}

// The way that a limit leaves to a coordinate, or the speed that it leaves to a rate.
template <class T>
TD_INLINE T cone_room(const JointConeTable &cone, const JointConeData<T> &data, const FreeData<T> &free, const T &limit) {
    const int i = cone.coordinate;
    return cone.limits_rate() ? limit + cone.sign() * free.rate[i] : cone.sign() * (free.coordinate[i] - limit) - data.left;
}

// The speed at which a violated limit recovers (JointLimits.room).
template <class T>
TD_INLINE T recovery_speed(const Problem<T> &problem, const JointConeTable &cone) {
    const T speed = broadcast<T>(problem.depenetration_speed);
    if (cone.fastest < 0) return speed;
    const T limit_speed = constant::recovery_share * problem.parameters[cone.fastest];
    return select(limit_speed < speed, limit_speed, speed);
}

// left = min(r + h v, 0) with the room r of each limit at the current configuration.
template <class T>
void prepare_limits(Problem<T> &problem, const JointTable &joint, const JointData<T> &data, FreeData<T> &free) {
    free.recovers = false;
    for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
        const JointConeTable &cone = problem.mechanism.joint_cones[c];
        if (cone.on_rate()) continue;
        JointConeData<T> &cone_data = problem.joint_cones[c];
        cone_data.left = cone_data.leaves = T{};
        if (!(problem.depenetration_speed > 0)) continue;
        bool translation;
        const Vec3<T> f = joint_direction(problem, joint, joint.held() + cone.coordinate, translation);
        const T coordinate = translation          ? dot(f, problem.displacement(joint, data, data.now))
                             : joint.cone >= 0    ? free.coordinate[cone.coordinate]
                             : joint.free_r() > 1 ? dot(f, free.now.theta)
                                                  : free.angle;
        const T room = cone.sign() * (coordinate - problem.parameters[cone.parameter]);
        const T ahead = room + problem.timestep() * recovery_speed(problem, cone);
        const Mask<T> violated = ahead < T{};
        if (!any(violated)) continue;
        cone_data.left = select(violated, ahead, T{});
        cone_data.leaves = select(violated, broadcast<T>(1.0), T{});
        free.recovers = true;
    }
}

// Rates of the armature in the step that led to the current configuration, from the turn of the bodies or from their poses before.
template <class T>
void prepare_armature(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, FreeData<T> &free) {
    const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
    const bool by_turns = problem.by_turns() && !joint.free_t();
    Vec3<T> change;
    if (by_turns) {
        const Quat<T> turn = child.arrival * conjugate(parent.arrival);
        free.incoming_turn = rotation_vector(turn);
    } else {
        const auto before = [&](int body) {
            const T *state = &problem.z[state_size * body];
            const bool has_incoming = body == problem.mechanism.num_bodies || !problem.by_turns();
            const BodyData<T> &body_data = problem.bodies[body];
            return has_incoming ? body_data.incoming : pose_before(body_data.pose, problem.timestep(), load3(state + 3), load3(state + 10));
        };
        free.incoming = problem.relative(joint, before(joint.parent), before(joint.child), data.offset_quaternion);
        if (joint.free_t()) change = problem.displacement(joint, data, data.now) - problem.displacement(joint, data, free.incoming);
        if (joint.free_r()) free.incoming_turn = rotation_vector(data.now.p * conjugate(free.incoming.p));
    }
    for (int i = 0; i < joint.free(); ++i) {
        bool translation;
        const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
        const Vec3<T> along = by_turns ? parent.pose.R * (data.offset * f) : f;
        free.incoming_rate[i] = problem.inverse_timestep * dot(along, translation ? change : free.incoming_turn.theta);
    }
}

// Effective masses of the directions: 1/(J M⁻¹ Jᵀ), damper, armature and drives. They scale the smoothed projection (coordinate_mass in
// joint_cones.py).
template <class T>
void prepare_masses(Problem<T> &problem, const JointTable &joint, const JointData<T> &data, FreeData<T> &free) {
    const T h = problem.timestep();
    const T *p = &problem.parameters[joint.parameters];
    const bool world = joint.parent == problem.mechanism.num_bodies;
    const int n = joint.free();
    auto mobility = [&](int body, bool moves, const Vec3<T> &force, const Vec3<T> &torque) {
        const T turned = dot(torque, problem.bodies[body].inverse_inertia * torque);
        return moves ? quotient(dot(force, force), problem.body_parameters(body)[parameter::mass]) + turned : turned;
    };
    auto plain_damping = [&](int i) {
        return joint.stiffness < 0 ? p[joint.damper() + i] : p[joint.damper() + i] + h * problem.parameters[joint.stiffness + i];
    };
    for (int i = 0; i < n; ++i) {
        bool translation;
        const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
        const JointWrench<T> wrench = joint_wrench(problem, joint, data, translation, f);
        T total = mobility(joint.child, translation, wrench.force, wrench.on_child);
        if (!world) total += mobility(joint.parent, translation, wrench.force, wrench.on_parent);
        free.mass[i] = inverse_of(total) + h * plain_damping(i);
        if (joint.armature >= 0) free.mass[i] += problem.parameters[joint.armature + i];
    }
    T drives[6] = {};  // h (kd + h kp)
    for (int c = joint.first_cone; joint.driven && c < joint.first_cone + joint.num_cones; ++c) {
        const JointConeTable &cone = problem.mechanism.joint_cones[c];
        if (cone.kind != JointConeTable::drive) continue;
        DriveData<T> &drive = problem.joint_cones[c].drive;
        T &mass = free.mass[cone.coordinate], &added = drives[cone.coordinate];
        const T *drive_parameters = &problem.parameters[cone.parameter];
        added = h * (drive_parameters[n * parameter::drive::damping] + h * drive_parameters[n * parameter::drive::stiffness]);
        drive.mass = quotient(mass, 1.0 + quotient(mass, added));
        mass += added;
    }
    if (joint.cone >= 0) free.limit_mass[0] = (1.0 / 3.0) * (free.mass[n - 3] + free.mass[n - 2] + free.mass[n - 1]);  // whatever the axis
    for (int j = 0; j < (joint.extra && joint.cone < 0 ? joint.free_r() : 0); ++j) {
        T total = mobility(joint.child, false, Vec3<T>{}, free.limit_child[j]);
        if (!world) total += mobility(joint.parent, false, Vec3<T>{}, free.limit_parent[j]);
        free.limit_mass[j] = inverse_of(total) + h * plain_damping(joint.free_t() + j) + drives[joint.free_t() + j];
        if (joint.armature >= 0) free.limit_mass[j] += problem.parameters[joint.armature + joint.free_t() + j];
    }
}

// Numbers that stay the same during the step.
template <class T>
void prepare_free(Problem<T> &problem, const JointTable &joint, const JointData<T> &data, FreeData<T> &free) {
    const T *p = &problem.parameters[joint.parameters];
    if (joint.limited_r && joint.free_r() == 1) free.angle = angle_about(data.now.p, load3(p + parameter::rotations + 6));
    if (joint.cone >= 0) prepare_cone(problem, joint, data, free);
    else if (joint.extra) {
        const RotationVector<T> angle = rotation_vector(data.now.p);
        for (int j = 0; j < joint.free_r(); ++j) {
            const Vec3<T> torque = right_jacobian_inverse(angle, load3(p + parameter::rotations + 3 * (joint.held_r + j)));
            const Vec3<T> in_parent = data.offset * torque;
            free.limit_parent[j] = -in_parent;
            free.limit_child[j] = transposed_times(problem.bodies[joint.child].pose.R, problem.bodies[joint.parent].pose.R * in_parent);
        }
        free.now = angle;
    }
    if (joint.has_rate_cones && joint.free_r() == 3) {
        const Mat3<T> relative = rotation_matrix(data.now.p);
        for (int i = 0; i < 3; ++i) free.own_axis[i] = relative.column(i);
    }
    if (joint.armature >= 0) prepare_armature(problem, joint, data, free);
    prepare_limits(problem, joint, data, free);
    if (joint.num_cones && problem.solves) prepare_masses(problem, joint, data, free);
}

// The change of d, and the turn of the child, over the step that leads to the current poses at the next velocities (elements/changes.py).
template <class T>
TD_INLINE Vec3<T> displacement_change(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const T *w) {
    const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
    const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
    const auto change = [](const Quat<T> &q, const Vec3<T> &v) {  // R(q) v − v
        const Vec3<T> t = cross(q.v, v);
        return 2.0 * (q.w * t + cross(q.v, t));
    };
    const T h = problem.timestep();
    const Vec3<T> moved = h * load3(w + 6 * joint.child) - child.pose.R * change(conjugate(child.increment), anchor);
    if (joint.parent == problem.mechanism.num_bodies) return transposed_times(data.offset, moved);
    const Vec3<T> in_parent = transposed_times(parent.pose.R, moved - h * load3(w + 6 * joint.parent));
    return transposed_times(data.offset, in_parent + change(parent.increment, in_parent - data.now.y_parent));
}
template <class T>
TD_INLINE RotationVector<T> turn_of_child(const Problem<T> &problem, const JointTable &joint) {
    const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
    if (joint.parent == problem.mechanism.num_bodies) return rotation_vector(child.increment);
    const Vec3<T> in_child = transposed_times(child.pose.R, parent.pose.R * parent.increment.v);
    return rotation_vector(child.increment * Quat<T>{parent.increment.w, -in_child});
}

// Impulses of cones along the free directions, which are added, and the residuals of their rows, at rates and coordinates.
template <class T>
void linearize_cones(Problem<T> &problem, const JointTable &joint, JointData<T> &data, FreeData<T> &free, const T *w) {
    const T h = problem.timestep();
    const int held = joint.held();
    for (int e = 0; e < joint.extra; ++e) free.extra_impulse[e] = T{};
    for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
        const JointConeTable &cone = problem.mechanism.joint_cones[c];
        const T *impulse = w + cone.impulse, *slack = w + cone.slack;
        const T value = problem.parameters[cone.parameter];
        T *row = &problem.residual[cone.impulse];
        if (cone.is_pair()) {
            const int q = cone.stride;
            const T pushed = 0.5 * (impulse[0] - impulse[q]);
            problem.each_row(cone, [&](int k, const T &weight) { data.impulse[k - held] += weight * pushed; });
            row[0] = impulse[0] + impulse[q] - 2.0 * max(h * value, broadcast<T>(constant::least_height));
            row[q] = problem.cone_rate(cone) - slack[0] + slack[q];
            if (cone.kind == JointConeTable::drive) {
                const DriveData<T> &drive = problem.joint_cones[c].drive;
                row[q] += drive.compliance * pushed - drive.offset;
            }
        } else {
            const int i = cone.row - held, extra = i - joint.free();
            (extra < 0 ? data.impulse[i] : free.extra_impulse[extra]) += cone.sign() * impulse[0];
            row[0] = cone_room(cone, problem.joint_cones[c], free, value) - slack[0];
        }
    }
}

// The motion of a joint since one step back, which dampers see: numbers that all rows share. Rates have its turn and its configuration.
template <class T>
struct MeanMotion {
    Vec3<T> change{};  // change of d
    BodyPose<T> parent_back, child_back;
    Mat3<T> before;  // R(p) one step back
    T inverse_child{}, inverse_parent{};  // 1/c
};

template <bool derived, class T>
TD_INLINE void move_back(const Problem<T> &problem, const JointTable &joint, JointData<T> &data, const T *w, MeanMotion<T> &mean) {
    const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
    if (joint.free_t()) mean.change = displacement_change(problem, joint, data, w);
    if (joint.free_r()) data.turn = turn_of_child(problem, joint);
    if constexpr (derived) {
        if (joint.free_t()) {
            mean.parent_back = parent.one_step_back();
            mean.child_back = child.one_step_back();
            data.before = problem.relative(joint, mean.parent_back, mean.child_back, data.offset_quaternion);
        } else {
            data.before.p = conjugate(parent.orientation_back() * data.offset_quaternion) * child.orientation_back();
        }
        mean.before = rotation_matrix(data.before.p);
        mean.inverse_child = 1.0 / child.increment.w;
        mean.inverse_parent = 1.0 / parent.increment.w;
    }
}

// Derivatives of h times a mean rate along f by motions. With N = c I + a aᵀ/c + [a]×, the orientation one step back turns by −h N δω.
template <class T>
TD_INLINE TwistRow<T> mean_row(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const MeanMotion<T> &mean,
                               bool translation, const Vec3<T> &f) {
    const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
    auto back = [&](const BodyData<T> &body, const T &inverse, const Vec3<T> &g) {  // Nᵀ g
        const Vec3<T> &a = body.increment.v;
        return body.increment.w * g + (inverse * dot(a, g)) * a - cross(a, g);
    };
    if (translation) {
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        const auto g = translation_gradient(mean.parent_back, mean.child_back, data.offset, data.before, anchor, f);
        return {g.x_child, back(child, mean.inverse_child, g.phi_child), back(parent, mean.inverse_parent, g.phi_parent)};
    }
    const Vec3<T> g = right_jacobian_inverse(data.turn, f);
    return {Vec3<T>{}, back(child, mean.inverse_child, g), -back(parent, mean.inverse_parent, data.offset * (mean.before * g))};
}

// Rows of a rate and a coordinate at the next configuration, along f.
template <class T>
TD_INLINE void next_rows(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, int i, bool translation,
                         const Vec3<T> &f, FreeData<T> &free) {
    const T h = problem.timestep();
    const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
    auto forward = [&](const RowGradient<T, T> &g) {
        return TwistRow<T>{h * g.x_child, transposed_times(child.M, g.phi_child), transposed_times(parent.M, g.phi_parent)};
    };
    RowGradient<T, T> g;
    if (translation) {
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        g = translation_gradient(parent.next, child.next, data.offset, data.next, anchor, f);
        free.coordinate_row[i] = forward(g);
    } else {
        g = turn_gradient(data.offset, data.now.p, free.turn, f);
        if (joint.limited_r) free.coordinate_row[i] = forward(angle_gradient(joint, data.offset, data.next.p, free.next, f));
    }
    free.rate_row[i] = problem.inverse_timestep * forward(g);
}

// Sets the impulse of the curves along coordinate i, −h P(y) − m s (d₂ + d₃ s) with m = h ċ⁺ and s = |ċ⁺|. Returns what they add to the
// damper: minus the derivative by m.
template <class T>
[[gnu::noinline]] T set_curves(Problem<T> &problem, const JointTable &joint, const JointData<T> &data, int i) {
    const T h = problem.timestep(), *spring = &problem.parameters[joint.curve + 2 * i], *damper = spring + 2 * joint.free();
    const CurveData<T> curve = problem.curve(joint);
    const T speed = abs(problem.inverse_timestep * data.moved[i]);
    const T y = joint.implicit ? curve.stretch[i] + data.moved[i] : curve.stretch[i];
    curve.slope[i] = (2.0 * spring[0] + 3.0 * spring[1] * y) * y;
    curve.impulse[i] = -(h * ((spring[0] + spring[1] * y) * (y * y)) + data.moved[i] * (speed * (damper[0] + damper[1] * speed)));
    curve.drag[i] = speed * (2.0 * damper[0] + 3.0 * damper[1] * speed);
    if (joint.implicit) curve.drag[i] += h * curve.slope[i];
    return curve.drag[i];
}

// Impulses along the free directions and, if `derived`, their rows, without the condensed pairs.
template <bool derived, class T, class Store>
void linearize_free(Problem<T> &problem, const JointTable &joint, JointData<T> &data, const T *w, const Store &store_row) {
    const T h = problem.timestep();
    const T *damping = problem.damping(joint, data);
    const int held = joint.held();
    const bool world = joint.parent == problem.mechanism.num_bodies;
    FreeData<T> *free = joint.free_data < 0 ? nullptr : &problem.free[joint.free_data];
    const bool mean_rate = joint.has_damper && !joint.has_vector();
    MeanMotion<T> mean;
    if (mean_rate) move_back<derived>(problem, joint, data, w, mean);
    if (free) free_values(problem, joint, data, data.next, *free);
    for (int i = 0; i < joint.free(); ++i) {
        bool translation;
        const Vec3<T> f = joint_direction(problem, joint, held + i, translation);
        TwistRow<T> row{};
        T impulse{};
        if (mean_rate) {
            data.moved[i] = dot(f, translation ? mean.change : data.turn.theta);
            if constexpr (derived) row = mean_row(problem, joint, data, mean, translation, f);
        } else if (joint.has_damper) {
            const JointWrench<T> wrench = joint_wrench(problem, joint, data, translation, f);
            row = {wrench.force, wrench.on_child, world ? Vec3<T>{} : wrench.on_parent};
            data.moved[i] = h * row.times(w + 6 * joint.child, world ? nullptr : w + 6 * joint.parent);
        }
        if (joint.has_damper) {
            impulse = -damping[i] * data.moved[i];
            T slope = damping[i];
            if (joint.curve >= 0) slope += set_curves(problem, joint, data, i);
            row = (h * slope) * row;
        }
        if constexpr (derived)
            if (free) next_rows(problem, joint, data, i, translation, f, *free);
        if (free && joint.armature >= 0) {
            const T a = problem.parameters[joint.armature + i];
            if constexpr (derived) row = row + a * free->rate_row[i];
            impulse -= a * (free->rate[i] - free->incoming_rate[i]);
        }
        data.impulse[i] = impulse;
        if (joint.curve >= 0) data.impulse[i] += problem.curve(joint).impulse[i];
        if constexpr (derived) store_row(held + i, row.linear, row.child, row.parent);
    }
    if (derived && joint.cone >= 0) set_cone_row(problem, joint, data, *free);
    if (derived && free && joint.has_rate_cones && joint.free_r() == 3) {
        const TwistRow<T> *rows = free->rate_row + joint.free_t();
        for (int i = 0; i < 3; ++i) {
            const Vec3<T> &axis = free->own_axis[i];
            free->own_row[i] = axis.x * rows[0] + axis.y * rows[1] + axis.z * rows[2];
        }
    }
    if constexpr (derived)
        for (int e = 0; e < joint.extra; ++e) store_row(held + joint.free() + e, Vec3<T>{}, Vec3<T>{}, Vec3<T>{});
    if (free) linearize_cones(problem, joint, data, *free, w);
}

// Adds the condensed pairs, k ∂ċ⁺ and (γ/s) ∂c⁺, to the rows.
template <class T>
void condense_free(Problem<T> &problem, const JointTable &joint) {
    const bool world = joint.parent == problem.mechanism.num_bodies;
    for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
        const JointConeTable &cone = problem.mechanism.joint_cones[c];
        const TwistRow<T> row = problem.joint_cones[c].stiffness * problem.cone_row(cone);
        problem.each_row(cone, [&](int place, const T &weight) {
            T *child = &problem.values[joint.joint_child] + 6 * place;
            for (int k = 0; k < 3; ++k) {
                child[k] += weight * row.linear[k];
                child[3 + k] += weight * row.child[k];
            }
            if (world) return;
            T *parent = &problem.values[joint.joint_parent] + 6 * place;
            for (int k = 0; k < 3; ++k) {
                parent[k] -= weight * row.linear[k];
                parent[3 + k] += weight * row.parent[k];
            }
        });
    }
}

}  // namespace torchdojo
