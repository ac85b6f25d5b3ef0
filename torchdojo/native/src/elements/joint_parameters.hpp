// Joints in the gradient of parameters (parameter_gradient.hpp): derivatives of V = −λᵀr by the joint's parameters and by the timestep.
#pragma once

#include "elements/joint_geometry.hpp"

namespace torchdojo {

template <class T>
struct JointParameters {
    static void add_parameters(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint, const T *w) {
        const MechanismTable &m = problem.mechanism;
        for (int j = 0; j < m.num_joints; ++j) joint_product(to, problem, adjoint, m.joints[j], problem.joints[j], w);
    }

private:
    static void joint_product(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint, const JointTable &joint,
                              const JointData<T> &data, const T *w) {
        JointGradient<T> g(problem, adjoint.multiplier.data(), joint, data, &to.sum[joint.parameters]);
        g.add_impulse(joint_impulse(problem, joint, data, w));
        if (joint.held()) {  // multipliers act now, their rows hold at the next configuration
            const Quat<T> &p_now = data.now.p, &p_next = data.next.p;
            const Vec3<T> d = problem.displacement(joint, data, data.next);
            Vec3<T> weight{}, mu{};
            for (int k = 0; k < joint.held(); ++k) {
                bool translation;
                const Vec3<T> c = joint_direction(problem, joint, k, translation);
                const T m = adjoint.multiplier[joint.row + k], x = w[joint.row + k];
                if (translation) weight = weight - m * c;
                else mu = mu + m * c;
                g.add_held(k, translation ? x * g.along - m * d : (0.5 * x) * (p_now.w * g.about + cross(g.about, p_now.v)) - m * p_next.v);
            }
            if (joint.repeats) {
                add_left_out(g, problem, adjoint, 0, joint.held_t, w);
                add_left_out(g, problem, adjoint, joint.held_t, joint.held_r, w);
            }
            g.add_displacement(problem.bodies[joint.parent].next, problem.bodies[joint.child].next, weight, d);
            g.add_turn(0.5 * (p_next.w * mu + cross(p_next.v, mu)));
        }
        if (joint.free()) free_product(to, problem, g, w);
        if (joint.free_data >= 0) moving_product(to, problem, adjoint, g, problem.free[joint.free_data], w);
        g.finish();
    }

    // Rows (δ_ik − c_i·c_k) h λ_k of directions that do not act, from `first` on (JointEquations::leave_out).
    static void add_left_out(JointGradient<T> &g, const Problem<T> &problem, const AdjointState<T, T> &adjoint, int first, int count,
                             const T *w) {
        const T h = problem.timestep();
        for (int i = first; i < first + count; ++i) {
            Vec3<T> by_c{};
            for (int k = first; k < first + count; ++k) {
                bool translation;
                const T both =
                    adjoint.multiplier[g.joint.row + i] * w[g.joint.row + k] + adjoint.multiplier[g.joint.row + k] * w[g.joint.row + i];
                by_c = by_c + (h * both) * joint_direction(problem, g.joint, k, translation);
            }
            g.add_held(i, by_c);
        }
    }

    // Impulses along the free directions f, and the arguments of springs and dampers: coordinates, and mean rates since one step back, or
    // velocities along f. These are linear in w as the impulses are in λ, and `velocity` has their derivatives by the geometry.
    // Springs and dampers that are zero everywhere are left out of the step, but not of its gradient.
    static void free_product(ParameterSum<T> &to, const Problem<T> &problem, JointGradient<T> &g, const T *w) {
        const JointTable &joint = g.joint;
        const JointData<T> &data = g.data;
        const T h = problem.timestep();
        const int free = joint.free();
        const bool acts = free_acts(joint), implicit = joint.has_damper || joint.free_data >= 0;
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const Vec3<T> d = problem.displacement(joint, data, data.now);
        JointGradient<T> velocity(problem, w, joint, data, g.out);
        RotationVector<T> angle{}, turn{};
        const bool vector = joint.has_vector();
        if (vector) angle = joint.has_spring ? data.angle : rotation_vector(data.now.p);
        else if (joint.free_r()) turn = joint.has_damper ? data.turn : turn_of_child(problem, joint);
        const Vec3<T> moved = vector ? h * velocity.along : displacement_change(problem, joint, data, w),
                      turned = vector ? h * velocity.about : turn.theta;
        const T *p = &problem.parameters[joint.parameters];
        const T *spring = p + joint.spring(), *damper = p + joint.damper(), *rest = p + joint.rest();
        const T *damping = problem.damping(joint, data);
        T *by_p = &to.sum[joint.parameters];
        T *by_spring = by_p + joint.spring(), *by_damper = by_p + joint.damper(), *by_rest = by_p + joint.rest();
        Vec3<T> pulls{}, drags[2] = {};  // weights of translations; of translations and rotations
        for (int i = 0; i < free; ++i) {
            bool translation;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
            const Vec3<T> &sigma = translation ? g.along : g.about;
            const Vec3<T> &change = translation ? moved : turned;
            const T coordinate = translation ? dot(f, d) : vector ? dot(f, angle.theta) : angle_about(data.now.p, f);
            const T power = dot(f, sigma);
            T drag = damping[i] * power;
            const Vec3<T> pulled = vector && !translation ? left_jacobian_inverse(angle, sigma) : sigma;
            T pull = h * spring[i] * dot(f, pulled);
            by_spring[i] += h * dot(f, pulled) * (rest[i] - coordinate);  // h spring (rest − coordinate)
            by_damper[i] -= power * dot(f, change);              // −(damper + h stiffness) f·change
            if (joint.stiffness >= 0) {
                const T damped = power * dot(f, change), push = -(h * data.excess[i]) * damped;  // push: by the force of spring and input
                to.sum[joint.stiffness + i] -= select(data.excess[i] == T{}, h * damped, T{});
                to.by_timestep -= (damping[i] - damper[i]) / h * damped;
                by_spring[i] += push * (rest[i] - coordinate);
                pull += spring[i] * push;
            }
            if (joint.curve >= 0) curve_product(to, problem, joint, i, power, dot(f, change), pull, drag);
            by_rest[i] += pull;
            if (vector && joint.has_damper) to.by_timestep -= drag * dot(f, change) / h;
            Vec3<T> by_f = -drag * change;
            if (translation) {
                by_f = by_f - pull * d;
                pulls = pulls - pull * f;
            } else if (joint.has_spring) g.add_angle(i, -pull, f, data.now.p, angle);
            if (vector && !translation && joint.has_spring) by_f = by_f + (h * spring[i] * (rest[i] - coordinate)) * pulled;
            if (acts) {
                by_f = by_f + (implicit ? data.free_force[i] + data.impulse[i] : data.free_force[i]) * sigma;
                to.by_timestep += data.free_force[i] * power / h;
            }
            g.add_free(i, by_f);
            Vec3<T> &to_drag = drags[translation ? 0 : 1];
            to_drag = to_drag - drag * f;
        }
        if (joint.has_spring && vector) to.by_timestep += dot(right_jacobian_inverse(angle, data.pull), g.about) / h;
        if (vector) {
            if (joint.has_spring) g.add_displacement(parent.pose, child.pose, pulls, d);
            if (!joint.has_damper) return;
            velocity.add_impulse({h * drags[0], Vec3<T>{}, h * drags[1], Vec3<T>{}, nullptr});
            return velocity.finish();
        }
        if (joint.has_spring || joint.has_damper) g.add_displacement(parent.pose, child.pose, pulls + drags[0], d);
        if (joint.has_damper) back_product(to, problem, g, drags, turn, w);
    }

    // −h P(y) − m s (d₂ + d₃ s) of curves, with m = h ċ⁺ and s = |ċ⁺| (free.hpp). Adds to the weights of −c and of −m.
    [[gnu::noinline]] static void curve_product(ParameterSum<T> &to, const Problem<T> &problem, const JointTable &joint, int i,
                                                const T &power, const T &moved, T &pull, T &drag) {
        const T h = problem.timestep();
        const CurveData<T> curve = problem.curve(joint);
        const T speed = abs(moved) / h, y = joint.implicit ? curve.stretch[i] + moved : curve.stretch[i];
        const T *spring = &problem.parameters[joint.curve + 2 * i], *damper = spring + 2 * joint.free();
        T *by_spring = &to.sum[joint.curve + 2 * i], *by_damper = by_spring + 2 * joint.free();
        const T square = power * (y * y), dragged = power * (moved * speed);
        by_spring[0] -= h * square;
        by_spring[1] -= h * (square * y);
        by_damper[0] -= dragged;
        by_damper[1] -= dragged * speed;
        to.by_timestep += dragged * (damper[0] + 2.0 * damper[1] * speed) / h - square * (spring[0] + spring[1] * y);
        pull += h * curve.slope[i] * power;
        drag += curve.drag[i] * power;
    }

    // Dampers of mean rates, through the configuration one step back. drags: weights of translations and of rotations.
    static void back_product(ParameterSum<T> &to, const Problem<T> &problem, JointGradient<T> &g, const Vec3<T> *drags,
                             const RotationVector<T> &turn, const T *w) {
        const JointTable &joint = g.joint;
        const JointData<T> &data = g.data;
        const BodyPose<T> parent_back = problem.bodies[joint.parent].one_step_back(),
                          child_back = problem.bodies[joint.child].one_step_back();
        const Relative<T> back = problem.relative(joint, parent_back, child_back, data.offset_quaternion);
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        g.add_displacement(parent_back, child_back, -drags[0], problem.displacement(joint, data, back));
        auto by_back = translation_gradient(parent_back, child_back, data.offset, back, anchor, -drags[0]);
        const Vec3<T> by_turn = right_jacobian_inverse(turn, drags[1]);
        by_back.phi_child = by_back.phi_child - by_turn;
        by_back.phi_parent = by_back.phi_parent + data.offset * (rotation_matrix(back.p) * by_turn);
        step_back(to, problem, joint, by_back, [&](int b) { return w + 6 * b; }, [&](int b) { return w + 6 * b + 3; });
    }

    // Armature, limits and friction: rates ċ⁺ of the step and ċ of the one before, and coordinates c⁺ (see JointAdjoint::moving_product).
    static void moving_product(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint, JointGradient<T> &g,
                               const FreeData<T> &from, const T *w) {
        const JointTable &joint = g.joint;
        const JointData<T> &data = g.data;
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const T inverse = 1.0 / problem.timestep();
        const bool armature = joint.armature >= 0;
        if (joint.cone >= 0) {
            const T &angle = problem.parameters[joint.cone];
            to.sum[joint.cone] -= from.extra_impulse[0] * dot(from.now.theta, g.about) / (angle * angle);
        }
        for (int e = 0; e < (joint.cone < 0 ? joint.extra : 0); ++e)
            g.add_free(joint.free_t() + e, from.extra_impulse[e] * left_jacobian_inverse(from.now, g.about));
        T rate[6] = {};  // weights of h ċ⁺
        cone_product(to, problem, adjoint, g, from, w, rate);
        if (!armature && !joint.has_rate_cones) return;
        const Vec3<T> d = problem.displacement(joint, data, data.now), d_next = problem.displacement(joint, data, data.next);
        const Vec3<T> d_before = armature ? problem.displacement(joint, data, from.incoming) : d;
        Vec3<T> next{}, before{}, rate_turn{}, before_turn{};
        for (int i = 0; i < joint.free(); ++i) {
            bool translation;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
            T reflected{};  // weight of h ċ
            if (armature) {  // −a (ċ⁺ − ċ)
                const T power = dot(f, translation ? g.along : g.about), difference = from.rate[i] - from.incoming_rate[i];
                const T a = problem.parameters[joint.armature + i];
                to.sum[joint.armature + i] -= power * difference;
                to.by_timestep += inverse * a * power * difference;
                reflected = inverse * a * power;
                rate[i] -= reflected;
            }
            if (translation) {
                next = next + rate[i] * f;
                before = before - reflected * f;
                g.add_free(i, rate[i] * (d_next - d) + reflected * (d - d_before));
            } else {
                rate_turn = rate_turn + rate[i] * f;
                before_turn = before_turn + reflected * f;
                const Vec3<T> by_f = rate[i] * from.turn.theta;
                g.add_free(i, armature ? by_f + reflected * from.incoming_turn.theta : by_f);
            }
        }
        g.add_displacement(parent.next, child.next, next, d_next);
        g.add_displacement(parent.pose, child.pose, -(next + before), d);
        if (joint.free_r()) g.add_turn(cross(rate_turn, from.turn.theta));
        if (!armature) return;
        const BodyPose<T> &incoming_parent = problem.bodies[joint.parent].incoming, &incoming_child = problem.bodies[joint.child].incoming;
        g.add_displacement(incoming_parent, incoming_child, before, d_before);
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        auto by_before = translation_gradient(incoming_parent, incoming_child, data.offset, from.incoming, anchor, before);
        if (joint.free_r()) {
            g.add_turn(cross(before_turn, from.incoming_turn.theta));
            const auto after = turn_gradient(data.offset, from.incoming.p, from.incoming_turn, before_turn);
            by_before.phi_child = by_before.phi_child - after.phi_child;
            by_before.phi_parent = by_before.phi_parent + data.offset * left_jacobian_inverse(from.incoming_turn, before_turn);
        }
        const T *z = problem.z.data();
        step_back(
            to, problem, joint, by_before, [&](int b) { return z + state_size * b + 3; }, [&](int b) { return z + state_size * b + 10; });
    }

    // Limits and friction of a joint: −ν (±(c⁺ − bound)), −ν (speed ± ċ⁺), and −ν ċ⁺ and 2 λ max(h friction, least) of the pairs' rows.
    static void cone_product(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint, JointGradient<T> &g,
                             const FreeData<T> &from, const T *w, T *rate) {
        const T h = problem.timestep(), inverse = 1.0 / h;
        Vec3<T> pushed{}, weight{};
        for (int c = g.joint.first_cone; c < g.joint.first_cone + g.joint.num_cones; ++c) {
            const JointConeTable &cone = problem.mechanism.joint_cones[c];
            if (cone.is_pair()) {
                const T nu = inverse * adjoint.multiplier[cone.impulse + cone.stride], friction = problem.parameters[cone.parameter];
                const T twice = select(h * friction > broadcast<T>(constant::least_height), 2.0 * adjoint.multiplier[cone.impulse], T{});
                problem.each_row(cone, [&](int row, const T &weight) { rate[row - g.joint.held()] -= weight * nu; });
                to.sum[cone.parameter] += h * twice;
                to.by_timestep += nu * problem.cone_rate(cone) + friction * twice;
                if (const int axis = problem.own_axis(cone); axis >= 0)  // friction_product in joint_adjoint.hpp
                {
                    pushed[axis] = 0.5 * (w[cone.impulse] - w[cone.impulse + cone.stride]);
                    weight[axis] = nu;
                }
                if (cone.kind == JointConeTable::drive) drive_product(to, problem, g, c, h * nu, w);
            } else if (cone.limits_rate()) {  // −ν (v ± ċ⁺)
                const T nu = adjoint.multiplier[cone.impulse], by_rate = (cone.sign() * inverse) * nu;
                rate[cone.coordinate] -= by_rate;
                to.sum[cone.parameter] -= nu;
                to.by_timestep += by_rate * from.rate[cone.coordinate];
            } else {
                const T nu = cone.sign() * adjoint.multiplier[cone.impulse];
                if (g.joint.cone == cone.parameter) add_cone(to, problem, g, -nu, from.next);
                else g.add_coordinate(cone.coordinate, -nu, g.data.next, from.next);
                to.sum[cone.parameter] += nu;
                if (from.recovers) recovery_product(to, problem, g, from, c, nu);
            }
        }
        if (!g.joint.has_rate_cones || g.joint.free_r() != 3) return;
        const Mat3<T> relative = rotation_matrix(g.data.now.p);
        const Vec3<T> turn = transposed_times(relative, from.turn.theta);
        g.add_turn(-(relative * (cross(pushed, transposed_times(relative, g.about)) - cross(weight, turn))));
    }

    // weight · (|θ|²/(2R) + R/2) of a cone.
    [[gnu::noinline]] static void add_cone(ParameterSum<T> &to, const Problem<T> &problem, JointGradient<T> &g, const T &weight,
                                           const RotationVector<T> &angle) {
        const Vec3<T> n = (1.0 / problem.parameters[g.joint.cone]) * angle.theta;
        to.sum[g.joint.cone] += (0.5 * weight) * (1.0 - dot(n, n));
        g.add_turn(-weight * n);
    }

    // A limit that recovers leaves a violation r + h v, and adds ν (r + h v) in its lanes.
    static void recovery_product(ParameterSum<T> &to, const Problem<T> &problem, JointGradient<T> &g, const FreeData<T> &from, int c,
                                 const T &signed_nu) {
        const JointConeTable &cone = problem.mechanism.joint_cones[c];
        const T h = problem.timestep(), nu = problem.joint_cones[c].leaves * signed_nu, by_room = cone.sign() * nu;
        const T speed = recovery_speed(problem, cone);
        const JointTable &joint = g.joint;
        if (joint.cone == cone.parameter) add_cone(to, problem, g, nu, from.now);
        else
            g.add_coordinate(cone.coordinate, nu, problem.bodies[joint.parent].pose, problem.bodies[joint.child].pose, g.data.now,
                             from.now);
        to.sum[cone.parameter] -= nu;
        to.by_timestep += speed * by_room;
        if (cone.fastest < 0) return;
        const Mask<T> slower = speed < broadcast<T>(problem.depenetration_speed);
        to.sum[cone.fastest] += select(slower, constant::recovery_share * h * by_room, T{});
    }

    // A drive: −ν (λ/(g h) − (u − m)/g), and the impulse h m.
    static void drive_product(ParameterSum<T> &to, const Problem<T> &problem, const JointGradient<T> &g, int c, const T &nu, const T *w) {
        const JointConeTable &cone = problem.mechanism.joint_cones[c];
        const DriveData<T> &drive = problem.joint_cones[c].drive;
        const T h = problem.timestep(), pushed = 0.5 * (w[cone.impulse] - w[cone.impulse + cone.stride]);
        const int n = g.joint.free();
        T *by = &to.sum[cone.parameter];
        bool translation;
        const Vec3<T> f = joint_direction(problem, g.joint, g.joint.held() + cone.coordinate, translation);
        by[n * parameter::drive::middle] += h * dot(f, translation ? g.along : g.about) - nu / drive.gain;
        const T by_gain = nu * (drive.compliance * pushed - drive.offset) / drive.gain;
        by[n * parameter::drive::damping] += by_gain;
        by[n * parameter::drive::stiffness] += select(drive.excess == T{}, h * by_gain, T{});
        const T kd = problem.parameters[cone.parameter + n * parameter::drive::damping];
        to.by_timestep += (drive.gain - kd) / h * by_gain + nu * drive.compliance * pushed / h;
    }

    // Gradient of the timestep by the poses one step back, from the velocities of bodies.
    template <class Linear, class Angular>
    static void step_back(ParameterSum<T> &to, const Problem<T> &problem, const JointTable &joint, const RowGradient<T, T> &g,
                          const Linear &linear, const Angular &angular) {
        auto subtract = [&](int body, const Vec3<T> &x, const Vec3<T> &phi) {
            if (body == problem.mechanism.num_bodies) return;
            const Vec3<T> omega = load3(angular(body)), a = (0.5 * problem.timestep()) * omega;
            to.by_timestep -= dot(x, load3(linear(body))) + dot(phi, omega) / sqrt(1.0 - dot(a, a));
        };
        subtract(joint.child, g.x_child, g.phi_child);
        subtract(joint.parent, -g.x_child, g.phi_parent);
    }
};

}  // namespace torchdojo
