// Rows of the system of joint_jacobian.hpp to which the impulses of one joint add.
//
// An impulse λ_k of a joint's free directions acts as a wrench w_k. It depends on the relative motion of the joint's bodies at the next
// configuration, at the current one and at the one before, on inputs, and, where dampers compare bodies with themselves one step back, on
// the parent's motion, too. Rows are the negative derivatives of λ_k, as in solver/tree.hpp; those by the next motion come from there.
#pragma once

#include "elements/joint_adjoint.hpp"
#include "solver/tree.hpp"

namespace torchdojo {

template <class T>
struct JointRows {
    struct Sum {  // Σ (n·w_k) times the rows of λ_k, for one n
        T next[6], now[6], before[6], by_input[6];
        Vec3<T> next_drift, now_drift;  // derivatives by the parent's rotation
    };
    Sum sums[6];
    Vec3<T> force, torque;  // W, about the origin of the tree
    bool drifts;

    // Friction about the child's own axes changes its directions with the relative orientation.
    static bool covers(const JointTable &joint) { return !joint.repeats && !(joint.has_rate_cones && joint.free_r() == 3); }

    // n: 6 numbers for each free direction. `state` has the derivatives of the joint's coordinates and rates.
    void set(const Problem<T> &problem, const AdjointState<T, T> &state, const Tree<T> &tree, const typename Tree<T>::Node &node,
             int number, const T *n) {
        const JointTable &joint = problem.mechanism.joints[number];
        const JointData<T> &data = problem.joints[number];
        const T *p = &problem.parameters[joint.parameters];
        const int free = joint.free();
        force = torque = Vec3<T>{};
        drifts = joint.has_damper && joint.parent < problem.mechanism.num_bodies;
        for (int a = 0; a < free; ++a) sums[a] = Sum{};
        if (!joint.size && !free_acts(joint)) return;
        const Mat3<T> frame = problem.bodies[joint.parent].pose.R * data.offset;
        const Vec3<T> anchor = tree.bodies[joint.child].r + problem.bodies[joint.child].pose.R * load3(p + parameter::child_anchor);
        const JointImpulse<T> &impulse = state.impulses[number].impulse;
        force = frame * impulse.force;
        torque = cross(anchor, force) + frame * impulse.torque(data.now.p);
        if (!free_acts(joint) || !free) return;
        TwistRow<T> rows[9];
        for (int k = 0; k < free + joint.extra; ++k) rows[k] = TwistRow<T>{};
        const Places places(problem, tree, joint);
        T by_input[9] = {}, by_drive[9] = {};
        for (int i = 0; i < free; ++i) {
            bool translation;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
            set_row(problem, state, joint, data, places, number, i, translation, f, rows[i], by_input[i]);
            T share[6];
            const Vec3<T> axis = frame * f, moment = cross(anchor, axis);
            for (int a = 0; a < free; ++a)
                share[a] = translation ? dot(load3(n + 6 * a), axis) + dot(load3(n + 6 * a + 3), moment) : dot(load3(n + 6 * a + 3), axis);
            if (joint.armature >= 0) add_before(problem, state, joint, tree, i, share);
            if (joint.has_spring && !translation && joint.has_vector()) {  // acts along the rotation vector
                const TwistRow<T> row = problem.timestep() * p[joint.spring() + i] * places.motion(state.free[number].coordinate[i]);
                const Vec3<T> pull = frame * right_jacobian_inverse(data.angle, f);
                for (int a = 0; a < free; ++a) add_now(sums[a], dot(load3(n + 6 * a + 3), pull), row);
            }
        }
        if (joint.num_cones) add_cones(problem, state, joint, places, rows, by_drive);
        for (int k = 0; k < free + joint.extra; ++k) {
            const int extra = k - free;
            Vec3<T> linear{}, angular;
            if (extra >= 0) {
                angular = -(problem.bodies[joint.parent].pose.R * problem.free[joint.free_data].limit_parent[extra]);
            } else {
                bool translation;
                const Vec3<T> axis = frame * joint_direction(problem, joint, joint.held() + k, translation);
                if (translation) linear = axis;
                angular = translation ? cross(anchor, axis) : axis;
            }
            for (int a = 0; a < free; ++a) {
                const T share = dot(load3(n + 6 * a), linear) + dot(load3(n + 6 * a + 3), angular);
                Sum &sum = sums[a];
                add_now(sum, share, rows[k]);
                if (extra < 0) sum.by_input[k] += share * by_input[k];
                if (joint.driven) sum.by_input[extra < 0 ? k : joint.free_t() + extra] += share * by_drive[k];
                if (k >= node.rows) continue;
                for (int c = 0; c < 6; ++c) sum.next[c] += share * node.row[6 * k + c];
                if (node.two_sided) sum.next_drift = sum.next_drift + share * load3(node.drift + 6 * k + 3);
            }
        }
    }

    // n·(change of W by a motion of the child), at given impulses.
    T turned(const Problem<T> &problem, const AdjointState<T, T> &state, const Tree<T> &tree, int number, const T *n,
             const T *motion) const {
        const JointTable &joint = problem.mechanism.joints[number];
        if (!joint.size && !free_acts(joint)) return T{};
        const JointData<T> &data = problem.joints[number];
        const JointImpulse<T> &impulse = state.impulses[number].impulse;
        const Mat3<T> frame = problem.bodies[joint.parent].pose.R * data.offset;
        const Vec3<T> anchor = tree.bodies[joint.child].r +
                               problem.bodies[joint.child].pose.R * load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        const Vec3<T> omega = load3(motion + 3), along = load3(n + 3), sigma = transposed_times(frame, along);
        const Vec3<T> turn = transposed_times(frame, omega);
        const Quat<T> &rel = data.now.p;
        const T straight = -0.5 * dot(turn, rel.v);
        const Vec3<T> side = 0.5 * (rel.w * turn + cross(turn, rel.v));
        T sum = dot(along, cross(load3(motion) + cross(omega, anchor), force)) +
                0.5 * dot(sigma, straight * impulse.held + cross(side, impulse.held));
        if (impulse.angle) sum += dot(right_jacobian_inverse(*impulse.angle, push_gradient(impulse, sigma)), turn);
        return sum;
    }

private:
    // The places of a joint's bodies, with which gradients by poses become rows by motions.
    struct Places {
        const Problem<T> &problem;
        const bool world;
        const BodyData<T> &parent, &child;
        Vec3<T> r_parent, r_child;  // centers of mass from the origin

        Places(const Problem<T> &problem, const Tree<T> &tree, const JointTable &joint)
            : problem(problem), world(joint.parent == problem.mechanism.num_bodies), parent(problem.bodies[joint.parent]),
              child(problem.bodies[joint.child]), r_parent(world ? Vec3<T>{} : tree.bodies[joint.parent].r),
              r_child(tree.bodies[joint.child].r) {}
        // x: derivative by the center of mass of the child, and −x by the center of mass of the parent; torques in world axes.
        TD_INLINE TwistRow<T> motion(const Vec3<T> &x, const Vec3<T> &on_child, const Vec3<T> &on_parent) const {
            return {x, on_child + cross(r_child, x), on_parent - cross(r_parent, x)};
        }
        TD_INLINE TwistRow<T> motion(const RowGradient<T, T> &g) const {
            return motion(g.x_child, child.pose.R * g.phi_child, parent.pose.R * g.phi_parent);
        }
    };

    void add_now(Sum &sum, const T &share, const TwistRow<T> &row) {
        for (int c = 0; c < 3; ++c) {
            sum.now[c] += share * row.linear[c];
            sum.now[3 + c] += share * row.child[c];
        }
        if (drifts) sum.now_drift = sum.now_drift + share * (row.child + row.parent);
    }

    // Springs, dampers and armature of a free direction, and the derivative of its impulse by its input.
    static void set_row(const Problem<T> &problem, const AdjointState<T, T> &state, const JointTable &joint, const JointData<T> &data,
                        const Places &places, int number, int i, bool translation, const Vec3<T> &f, TwistRow<T> &row, T &by_input) {
        const T h = problem.timestep(), *p = &problem.parameters[joint.parameters];
        const FreeGradient<T> &free = state.free[number];
        const bool stiffens = joint.stiffness >= 0 && joint.has_damper && !translation;
        T share = broadcast<T>(1.0);  // share of a force that acts: the stiffness that it adds takes away the rest
        if (stiffens) share -= data.excess[i] * data.moved[i];
        if (joint.input >= 0 && !joint.drives(i)) by_input = h * share;
        if (joint.has_spring) {
            if (!translation && joint.has_vector()) share -= 1.0;
            T pull = (h * p[joint.spring() + i]) * share;
            if (joint.curve >= 0) pull += h * problem.curve(joint).slope[i];
            row = row + pull * places.motion(free.coordinate[i]);
        }
        if (joint.has_damper) {
            T drag = problem.damping(joint, data)[i];
            if (joint.curve >= 0) drag += problem.curve(joint).drag[i];
            row = row + drag * (places.motion(free.difference[i]) + carried(problem, joint, data, places, translation, f));
        }
        if (joint.armature < 0) return;
        const MovingGradient<T> &moving = state.moving[joint.free_data];
        const T weight = problem.parameters[joint.armature + i] / h;
        row = row + weight * (places.motion(moving.rate_now[i]) + broadcast<T>(-1.0) * places.motion(moving.incoming_now[i]));
    }

    // Derivatives of `difference` take the next pose along with the current one; this leaves it where it is.
    static TwistRow<T> carried(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const Places &places,
                               bool translation, const Vec3<T> &f) {
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        if (!joint.has_vector()) {
            if (translation)
                return places.motion(negated(translation_gradient(places.parent.one_step_back(), places.child.one_step_back(), data.offset,
                                                                  data.before, anchor, f)));
            const Vec3<T> g = right_jacobian_inverse(data.turn, f);
            return places.motion({Vec3<T>{}, -g, data.offset * rotate(data.before.p, g)});
        }
        const JointWrench<T> wrench = joint_wrench(problem, joint, data, translation, f);
        const auto turn = [](const BodyData<T> &body, const Vec3<T> &torque) {
            return body.next.R * (body.increment.w * torque - cross(body.increment.v, torque));
        };
        return places.motion(-wrench.force, -turn(places.child, wrench.on_child),
                             places.world ? Vec3<T>{} : -turn(places.parent, wrench.on_parent));
    }
    static TD_INLINE RowGradient<T, T> negated(const RowGradient<T, T> &g) { return {-g.x_child, -g.phi_child, -g.phi_parent}; }

    // Armature compares with the rate of the step that led here.
    void add_before(const Problem<T> &problem, const AdjointState<T, T> &state, const JointTable &joint, const Tree<T> &tree, int i,
                    const T *share) {
        const auto &g = state.moving[joint.free_data].before_child[i];
        const T weight = -problem.parameters[joint.armature + i] / problem.timestep();
        const Vec3<T> r = tree.bodies[joint.child].r - problem.timestep() * load3(&problem.z[state_size * joint.child + 3]);
        const Vec3<T> x = weight * g.x, turn = weight * (problem.bodies[joint.child].pose.R * g.phi) + cross(r, x);
        for (int a = 0; a < joint.free(); ++a) {
            add3(sums[a].before, share[a] * x);
            add3(sums[a].before + 3, share[a] * turn);
        }
    }

    // Limits, friction and drives: condensed, as in motion_rows.
    static void add_cones(const Problem<T> &problem, const AdjointState<T, T> &state, const JointTable &joint, const Places &places,
                          TwistRow<T> *rows, T *by_drive) {
        const T h = problem.timestep(), inverse_h = 1.0 / h;
        const MovingGradient<T> &moving = state.moving[joint.free_data];
        const FreeData<T> &free = problem.free[joint.free_data];
        for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
            const JointConeTable &cone = problem.mechanism.joint_cones[c];
            const JointConeData<T> &cone_data = problem.joint_cones[c];
            TwistRow<T> &row = rows[cone.row - joint.held()];
            if (cone.on_rate()) {
                row = row + (inverse_h * cone_data.stiffness) * places.motion(moving.rate_now[cone.coordinate]);
            } else if (free.recovers) {
                bool translation;
                const Vec3<T> f = joint_direction(problem, joint, joint.held() + cone.coordinate, translation);
                const JointData<T> &data = problem.joints[cone.joint];
                const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
                const RowGradient<T, T> g =
                    translation       ? translation_gradient(places.parent.pose, places.child.pose, data.offset, data.now, anchor, f)
                    : joint.cone >= 0 ? cone_gradient(problem, joint, data, free.now)
                                      : angle_gradient(joint, data.offset, data.now.p, free.now, f);
                row = row + (-cone_data.stiffness * cone_data.leaves) * places.motion(g);
            }
            if (cone.kind != JointConeTable::drive || joint.input < 0) continue;
            const DriveData<T> &drive = cone_data.drive;
            const T pushed = 0.5 * (state.point[cone.impulse] - state.point[cone.impulse + cone.stride]);
            by_drive[cone.row - joint.held()] +=
                cone_data.stiffness * (1.0 + h * drive.excess * (drive.compliance * pushed - drive.offset)) / drive.gain;
        }
    }
};

}  // namespace torchdojo
